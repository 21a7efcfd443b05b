"""Causal LM, prefix LM and fill-in-the-middle."""

import numpy as np
import pytest

from birdie_jax import vocabulary as v
from birdie_jax.objectives import make_objective


@pytest.mark.parametrize("ends", [False, True])
def test_causal_lm_has_no_context_and_writes_the_text_once(distinct_text, ends):
    made = make_objective("causal_lm").build(distinct_text, np.random.default_rng(0), ends)
    assert len(made.context) == 0
    assert made.target.tolist() == distinct_text.tolist() + [v.END] * ends


@pytest.mark.parametrize(
    ("count", "fraction", "splits"),
    [
        (20, (0.5, 1.0), range(10, 17)),
        (21, (0.5, 1.0), range(11, 18)),
        (20, (0.0, 1.0), range(4, 17)),
        (20, (0.25, 0.5), range(5, 11)),
        (8, (0.5, 1.0), range(4, 5)),
        (20, (0.0, 0.1), range(4, 5)),
        (20, (0.95, 1.0), range(16, 17)),
    ],
)
def test_prefix_lm_splits_within_the_fractions(count, fraction, splits):
    objective = make_objective("prefix_lm", prefix_fraction=fraction)
    rng = np.random.default_rng(0)
    text = np.arange(256, 256 + count)
    assert {len(objective.build(text, rng).context) - 1 for _ in range(300)} == set(splits)


@pytest.mark.parametrize(("rate", "orders"), [(0.0, {False}), (1.0, {True}), (0.5, {False, True})])
def test_fill_in_the_middle_draws_cuts_and_orders(rate, orders):
    objective = make_objective("fill_in_the_middle", suffix_first_rate=rate)
    rng = np.random.default_rng(0)
    text = np.arange(300, 305)
    suffix_first, middles = set(), set()
    for _ in range(200):
        target = objective.build(text, rng).target.tolist()
        suffix_first.add(target[0] == v.MIDDLE_SUFFIX)
        middles.add(tuple(target[target.index(v.MIDDLE) + 1 : -1]))
    assert suffix_first == orders
    assert middles == {(301,), (302,), (303,), (301, 302), (302, 303), (301, 302, 303)}
