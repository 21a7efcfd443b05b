"""Checkpoints that earlier versions of the program wrote restore for ever."""

import json
import shutil

import jax
import numpy as np
import pytest

from birdie_jax.config import CheckpointConfig
from birdie_jax.engine import Checkpoints, Workdir
from birdie_jax.engine.stored_parameters import restore_parameters
from birdie_jax.planning.compilation import abstract_step
from birdie_jax.resolve import resolve_run
from birdie_jax.saved_config import parse_saved_config, read_json
from tests.engine.record_checkpoint import RECORDED, STEP

pytestmark = pytest.mark.slow

# The rows of the embedding table of the tokenizer that the recorded runs trained.
VOCAB_SIZE = 640
VERSIONS = sorted(path.name for path in RECORDED.iterdir())


@pytest.fixture(params=VERSIONS)
def workdir(request, tmp_path):
    shutil.copytree(RECORDED / request.param, tmp_path / "run")
    return Workdir(tmp_path / "run")


@pytest.fixture
def step(workdir):
    config = parse_saved_config(read_json(workdir.config, "a recorded run"), workdir.config, importing=True)
    return abstract_step(resolve_run(config, VOCAB_SIZE))


def restore(workdir, step):
    checkpoints = Checkpoints(workdir, CheckpointConfig())
    meta = json.loads((workdir.checkpoints / f"{STEP:08d}" / "meta" / "metadata").read_text())
    shape = meta["contents"]["arrays"]["batches/row_streams"][0]
    try:
        return checkpoints.restore(
            step.abstract_state, {"row_streams": np.zeros(shape, np.int64)}, step.create_sections
        )
    finally:
        checkpoints.close()


def test_all_of_it_restores(workdir, step):
    restored = restore(workdir, step)
    assert int(restored.state.step) == STEP
    assert int(restored.state.sections["bandit"].count) == 2
    assert restored.position["row_streams"].any()
    # What a later version adds is named, and what it no longer has; nothing else is new.
    assert all(name.startswith(("bandit/", "bad_steps/")) for name in restored.filled + restored.unused)
    leaves = jax.tree.leaves(restored.state.params)
    assert all(np.isfinite(leaf).all() and np.any(leaf) for leaf in leaves)


def test_its_parameters_restore_alone(workdir, step):
    params, found = restore_parameters(workdir, step.abstract_state.params)
    assert found == STEP
    whole = restore(workdir, step).state.params
    jax.tree.map(np.testing.assert_array_equal, params, whole)
