"""docs/follow_a_step.md names the files of a step in the order of Python's calls."""

import json
import re
import traceback
from itertools import groupby
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax import train
from birdie_jax.config import parse_config
from birdie_jax.engine import Workdir
from birdie_jax.engine.coordination import Processes
from birdie_jax.engine.watch import Limits, Watch
from pallas_kernels.gated_scan import tpu
from tests.micro_config import get_config

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "follow_a_step.md"
PACKAGES = ("birdie_jax", "pallas_kernels")


class ReachedError(Exception):
    """The kernel was called within a train step."""


def files_of(stack):
    """Return the project's files on a stack, from the first call to the last."""
    paths = (Path(frame.filename) for frame in stack)
    ours = (path.relative_to(ROOT).as_posix() for path in paths if path.is_relative_to(ROOT))
    return [file for file, _ in groupby(file for file in ours if file.startswith(PACKAGES))]


def test_the_page_names_the_files_of_a_step_in_order(tmp_path, monkeypatch):
    """From `train` to the kernel no file is entered twice, and all interfaces are typed."""
    config = get_config("fixed")
    config.model.name = "gated_ssm"
    config.model.scan_implementation = "pallas_interpret"
    text = tmp_path / "text.jsonl"
    words = np.random.default_rng(0).integers(0, 999, (20, 400)).astype(str)
    text.write_text("".join(json.dumps({"text": " ".join(document)}) + "\n" for document in words))
    config.data.source = str(text)
    config.data.cache_dir = str(tmp_path / "data")
    found = []

    def kernel(cell, inputs, **_):
        stack = traceback.extract_stack()
        if any(frame.name == "take_step" for frame in stack):
            found.extend(files_of(stack))
            raise ReachedError
        h = inputs.operands[0]
        rows, length, channels = h.shape
        return h, jnp.zeros((rows, channels)), jnp.zeros((rows, length // 64, channels))

    monkeypatch.setattr(tpu, "forward", kernel)
    watch = Watch(Processes(), Limits(30, 600), workdir := Workdir(tmp_path / "run"), ())
    with pytest.raises(ReachedError), watch:
        train.run(parse_config(config), workdir, watch)
    found.append(Path(tpu.__file__).relative_to(ROOT).as_posix())
    named = re.findall(r"^\| \d+ \| `([^`]+)` ", PAGE.read_text(), re.MULTILINE)
    assert found == named
    assert len(named) == len(set(named)) == 10
    for file in named:
        assert not re.search(r"\bAny\b|Callable\[\.\.\.", (ROOT / file).read_text()), file
