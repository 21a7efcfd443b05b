"""Compare a folder for `transformers` with the run that it was exported from."""

import json
from pathlib import Path

import jax
import numpy as np

from birdie_jax.interop import read_model
from birdie_jax.trained_model import model_of_workdir
from birdie_jax.vocabulary import START, special_token_name


def is_the_run(exported: str, workdir: str) -> None:
    """Check that an exported folder has the fine-tuned model of a run, and its start token."""
    found, expected = read_model(exported), model_of_workdir(workdir)
    assert (found.config, found.step) == (expected.config, expected.step)
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)
    described, tokens = (
        json.loads((Path(exported) / f"{name}.json").read_text()) for name in ("config", "tokenizer")
    )
    assert (described["model_type"], described["start_token_id"]) == ("birdie", START)
    # The start token is the last token of a prompt.
    (token,) = tokens["post_processor"]["single"][-1].values()
    assert token["id"] == special_token_name(START)
