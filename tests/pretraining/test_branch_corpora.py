"""The position of a branch in its text, if its arms read other corpora than those of the first run."""

import dataclasses

import numpy as np
import pytest

from birdie_jax.engine import Workdir
from birdie_jax.engine.branch import Branch
from birdie_jax.errors import ConfigError
from birdie_jax.pretraining.corpora import with_corpora_of
from birdie_jax.pretraining.mixture_batches import ROW_STREAMS
from tests.trained_workdirs import micro_config, small_tokenizer

ARM = {"objective": "causal_lm"}


def config_of(**arms):
    config = micro_config()
    data = dataclasses.replace(
        config.data, source="", corpora={name: {"source": f"{name}.jsonl"} for name in "ab"}
    )
    objectives = dataclasses.replace(config.objectives, arms=arms)
    return dataclasses.replace(config, data=data, objectives=objectives)


@pytest.fixture
def branch(tmp_path):
    small_tokenizer().save(tmp_path / "tokenizer.model")
    return Branch(Workdir(tmp_path), 5)


def test_the_same_corpora_and_arms_change_nothing(branch):
    before, after = (config_of(lm=ARM | {"weight": weight}) for weight in (1.0, 2.0))
    assert with_corpora_of(branch, before, after, small_tokenizer()) is branch


def test_arms_with_other_corpora_start_new_counts(branch):
    before, after = config_of(lm=ARM), config_of(one=ARM | {"corpora": "a"}, other=ARM | {"corpora": "b"})
    moved = with_corpora_of(branch, before, after, small_tokenizer()).moved
    (states,) = moved.template.values()
    # Example 7; corpus a at record 3, token 4; b at record 5, token 6; then the drawn positions of both.
    states[:, :7] = 7, 3, 4, 5, 6, 100, 90
    found = moved.move({ROW_STREAMS: states})[ROW_STREAMS]
    assert found.shape[1] == states.shape[1] - 2
    np.testing.assert_array_equal(found[0, :6], [7, 3, 4, 5, 6, -1])


def test_another_tokenizer_is_refused(branch):
    before, after = config_of(lm=ARM), config_of(lm=ARM | {"corpora": "a"})
    with pytest.raises(ConfigError, match=r"^config\.init\.from: found a run with another tokenizer"):
        with_corpora_of(branch, before, after, small_tokenizer(301))
