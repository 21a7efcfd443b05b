"""The lengths of the arms' examples, and the resulting shares, agree with drawn rows."""

import numpy as np
import pytest

from birdie_jax.batching import RowSettings, RowStream
from birdie_jax.batching.arm_lengths import count_lengths
from birdie_jax.errors import DataError
from birdie_jax.objectives import mixture_from_arms
from birdie_jax.objectives.shares import sampling_probabilities

COUNTED = 1500
SETTINGS = RowSettings(seed=3, rows=4, length=128, spacing=3, lookahead=6)
MIXTURE = mixture_from_arms(
    {
        "text": {"objective": "causal_lm", "weight": 0.4},
        "copy": {"objective": "copying", "min_length": 8, "max_length": 48, "weight": 0.3},
        "noise": {
            "objective": "span_corruption",
            "mean_span": 3,
            "rate": 0.15,
            "max_length": 64,
            "weight": 0.3,
        },
        "never": {"objective": "copying", "min_length": 4, "max_length": 8, "weight": 0.0},
    }
)


def draw(text, probabilities, rows):
    """Return the number of target tokens of every example of each arm, in rows of all streams."""
    tokens = [[] for _ in MIXTURE.arms]
    streams = [RowStream(text, MIXTURE.arms, SETTINGS, row) for row in range(SETTINGS.rows)]
    for stream in streams:
        stream.set_mixture(probabilities)
    for number in range(rows):
        for example in streams[number % len(streams)].next_row():
            tokens[example.arm].append(len(example.target))
    return [np.array(each, float) for each in tokens]


@pytest.fixture(scope="module")
def counted(long_text):
    return count_lengths(long_text, MIXTURE.arms, SETTINGS, MIXTURE.weights, 1000)


@pytest.mark.slow
def test_counts_depend_only_on_text_and_settings(long_text, counted):
    again = count_lengths(long_text, MIXTURE.arms, SETTINGS, MIXTURE.weights, 1000)
    for one, other in zip(counted, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert 1000 <= counted.examples.sum() < 1000 + SETTINGS.length
    # An arm with probability 0 has a length too.
    assert counted.examples.min() >= 4


def test_lengths_agree_with_the_objectives(counted):
    text, copy, noise, never = range(4)
    # Copying repeats its context and adds the end token: 8 to 48 tokens, or cut to at least 8.
    assert 9 <= counted.mean_target_tokens[copy] <= 49
    assert 5 <= counted.mean_target_tokens[never] <= 9
    assert counted.mean_target_tokens[text] <= 128
    # Causal LM has no context. The context of copying is a marker and the target without its end token.
    assert counted.positions[text] == counted.target_tokens[text]
    assert counted.positions[copy] == 2 * counted.target_tokens[copy]
    # T5's span corruption removes 15 % of at most 64 tokens: at most 10 tokens, 10 sentinels and an end.
    assert counted.mean_target_tokens[noise] < 0.25 * counted.mean_positions[noise]


@pytest.mark.slow
def test_arms_have_the_requested_shares_of_target_tokens(long_text, counted):
    sampling = sampling_probabilities(MIXTURE.weights, counted.mean_target_tokens)
    lengths = count_lengths(long_text, MIXTURE.arms, SETTINGS, sampling, COUNTED)
    sampling = sampling_probabilities(MIXTURE.weights, lengths.mean_target_tokens)
    drawn = draw(long_text, sampling, 500)
    tokens = np.array([each.sum() for each in drawn])
    assert tokens[3] == 0
    # A share is a ratio of sums over independent draws. The delta method gives its variance, once for the
    # draws here and once for the draws that estimated the lengths.
    requested = MIXTURE.weights
    total, count = tokens.sum(), sum(map(len, drawn))
    for arm in range(3):
        terms = np.concatenate([(float(a == arm) - requested[arm]) * each for a, each in enumerate(drawn)])
        deviation = np.sqrt(len(terms) * terms.var()) / total * np.sqrt(1 + count / COUNTED)
        assert deviation < 0.04
        assert abs(tokens[arm] / total - requested[arm]) < 4 * deviation, (arm, tokens / total)
    # The same numbers as shares of examples give far different shares of tokens.
    as_examples = np.array([each.sum() for each in draw(long_text, MIXTURE.weights, 100)])
    assert as_examples[0] / as_examples.sum() > 0.6


def test_an_arm_that_cannot_use_the_text_is_named(long_text):
    arms = mixture_from_arms({"long": {"objective": "copying", "min_length": 5000}}).arms
    with pytest.raises(DataError, match="no train record makes an example of arm 'long'"):
        count_lengths(long_text, arms, SETTINGS._replace(length=16_384), np.ones(1), 10)
