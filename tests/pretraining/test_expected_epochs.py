"""The epochs of each corpus that a run expects before it trains."""

import numpy as np
import pytest

from birdie_jax.batching.arm_lengths import ArmLengths
from birdie_jax.config import parse_config
from birdie_jax.pretraining.corpora import describe_corpora
from birdie_jax.pretraining.mixture_shares import MixtureShares
from birdie_jax.resolve import configured_mixture
from birdie_jax.text import TokenShards, prepare
from birdie_jax.text.corpora import Corpora
from tests.micro_config import get_config
from tests.whole_runs import write_corpus


def test_examples_that_wait_for_a_row_are_not_counted_in_every_row(tmp_path):
    source = str(write_corpus(tmp_path))
    folder = prepare(
        source,
        tmp_path / "prepared",
        vocab_size=300,
        record_tokens=512,
        validation_fraction=0.3,
        workers=0,
        progress=False,
    )
    text = TokenShards(folder, "train")
    config = get_config("fixed")
    config.data.corpora = {"a": {"source": source}}
    config.objectives.arms = {
        f"text_{length}": {"objective": "causal_lm", "max_length": length} for length in (50, 70, 90)
    }
    config.batching.lookahead = 48
    config.train.num_steps = 1000
    config = parse_config(config)
    mixture = configured_mixture(config)
    # With shares of examples, the lengths have no effect.
    shares = MixtureShares("examples", mixture.weights, ArmLengths(*np.ones((3, 3), np.int64)))
    described = describe_corpora(config, mixture, shares, Corpora(("a",), (text,), (1.0,)))
    # Each token of text takes one position of a row, and a few positions are padding.
    positions = 1000 * config.batching.rows * config.batching.length
    assert described["a"]["expected_epochs"] == pytest.approx(0.95 * positions / text.num_tokens, rel=0.07)
