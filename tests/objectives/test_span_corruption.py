"""Span corruption has the counts and the distribution of spans of T5."""

import itertools
from collections import Counter

import numpy as np
import pytest

from birdie_jax import vocabulary as v
from birdie_jax.errors import UnsuitableText
from birdie_jax.objectives import make_objective


@pytest.mark.parametrize(
    ("count", "rate", "mean_span", "noise", "spans"),
    [
        (568, 0.15, 3, 85, 28),
        (512, 0.15, 3, 77, 26),
        (512, 0.5, 64, 256, 4),
        (100, 0.05, 32, 5, 1),
        (100, 0.9, 1, 90, 10),  # at most one span per kept token
        (2, 0.01, 3, 1, 1),
        (2, 0.99, 3, 1, 1),
        (10, 0.25, 1, 2, 2),  # rounds half to even, as T5 does
    ],
)
def test_span_corruption_has_the_counts_of_t5(count, rate, mean_span, noise, spans):
    objective = make_objective("span_corruption", rate=rate, mean_span=mean_span)
    made = objective.build(np.arange(256, 256 + count), np.random.default_rng(count))
    assert len(made.target) == noise + spans + 1
    assert len(made.context) == 1 + count - noise + spans


def lengths_between_specials(tokens):
    places = np.flatnonzero(tokens < v.NUM_SPECIAL_TOKENS)
    return tuple((np.diff(places) - 1).tolist())


def test_span_lengths_are_uniform_over_all_compositions():
    """Chi-square test over the 21 ways to cut 8 tokens into 3 spans, for noise and for kept tokens."""
    objective = make_objective("span_corruption", rate=0.5, mean_span=8 / 3)
    ways = {parts for parts in itertools.product(range(1, 7), repeat=3) if sum(parts) == 8}
    assert len(ways) == 21
    text = np.arange(256, 272)
    rng = np.random.default_rng(7)
    draws = 2100
    noise, kept = Counter(), Counter()
    for _ in range(draws):
        made = objective.build(text, rng)
        noise[lengths_between_specials(made.target)] += 1
        kept[lengths_between_specials(made.context)] += 1
    for counts in (noise, kept):
        assert set(counts) == ways
        expected = draws / len(ways)
        # 20 degrees of freedom: the probability to exceed 45.3 is 0.001.
        assert sum((counts[way] - expected) ** 2 / expected for way in ways) < 45.3


def test_long_texts_have_the_exact_distribution_of_span_lengths():
    """In a uniform composition of N into k, a span has length l with C(N-l-1, k-2) / C(N-1, k-1)."""
    objective = make_objective("span_corruption", rate=0.15, mean_span=3)
    rng = np.random.default_rng(11)
    counts = Counter()
    for _ in range(150):
        counts.update(lengths_between_specials(objective.build(np.arange(256, 824), rng).target))
    total = sum(counts.values())
    assert total == 150 * 28
    remaining, probability = 85, 1.0
    for length in range(1, 9):
        # Probability that a part is longer than `length`, as the product of (N-l-k+1) / (N-l) steps.
        survives = probability * (remaining - length - 28 + 1) / (remaining - length)
        expected = (probability - survives) * total
        assert abs(counts[length] - expected) < 4.5 * np.sqrt(expected)
        probability = survives


def test_an_example_matches_table_1():
    """Bird [mask] the early [mask] -> songs fill, air is a possible cut of 7 tokens at this rate."""
    text = np.arange(300, 307)
    objective = make_objective("span_corruption", rate=3 / 7 + 0.1, mean_span=2, marker=None)
    first, second = v.FIRST_SENTINEL, v.FIRST_SENTINEL + 1
    expected = ([300, first, 304, 305, second], [first, 301, 302, 303, second, 306, v.END])
    rng = np.random.default_rng(0)
    made = [objective.build(text, rng) for _ in range(200)]
    assert expected in [(one.context.tolist(), one.target.tolist()) for one in made]


def test_texts_within_the_limit_have_enough_sentinels():
    objective = make_objective("span_corruption", rate=0.5, mean_span=3)
    limit = objective.text_limit(100_000)
    made = objective.build(np.arange(256, 256 + limit), np.random.default_rng(0))
    assert made.context[made.context < 256].max() == 255
    with pytest.raises(UnsuitableText) as error:
        objective.build(np.arange(256, 256 + limit + 3), np.random.default_rng(0))
    message = f"span_corruption: a text of {limit + 3} tokens has 193 noise spans; there are 192 sentinels"
    assert str(error.value) == message
