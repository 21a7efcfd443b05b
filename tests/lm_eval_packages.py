"""The packages of LM Evaluation Harness, which are outside .venv."""

import contextlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator

import pytest

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1"}


@contextlib.contextmanager
def lm_eval_packages(cache: str) -> Iterator[None]:
    """Make the harness importable, without a network, with its caches in a folder of the test."""
    folder = os.environ.get("BIRDIE_LM_EVAL", "")
    if not folder and importlib.util.find_spec("lm_eval") is None:
        pytest.skip("lm-eval is not there: bash tests/run.sh fetches it")
    sys.path.append(folder)  # last, so it shadows nothing
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**OFFLINE, "HF_HOME": cache}.items():
                patch.setenv(name, value)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings of their imports
                import lm_eval.evaluator
                import lm_eval.models
                import lm_eval.tasks  # noqa: F401
            yield
    finally:
        sys.path.remove(folder)
