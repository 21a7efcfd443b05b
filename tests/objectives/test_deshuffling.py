"""Deshuffling and copying."""

import numpy as np
import pytest

from birdie_jax import vocabulary as v
from birdie_jax.objectives import make_objective


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
def test_deshuffling_moves_only_the_chosen_share(distinct_text, rate):
    objective = make_objective("deshuffling", rate=rate)
    moved = np.zeros(len(distinct_text), np.int64)
    for seed in range(60):
        made = objective.build(distinct_text, np.random.default_rng(seed))
        assert made.context[0] == v.DESHUFFLING
        assert sorted(made.context[1:].tolist()) == distinct_text.tolist()
        assert made.target.tolist() == [*distinct_text.tolist(), v.END]
        changed = made.context[1:] != distinct_text
        # A permutation leaves about one token in place.
        assert rate * 400 - 8 <= changed.sum() <= rate * 400
        moved += changed
    # All positions are equally likely to move: 60 draws with probability `rate`, within five standard
    # deviations plus the few draws that leave a token in place.
    assert np.all(np.abs(moved - 60 * rate) <= 5 * np.sqrt(60 * rate * (1 - rate)) + 4)


def test_copying_repeats_the_text(natural_text):
    made = make_objective("copying").build(natural_text, np.random.default_rng(0))
    assert made.context.tolist() == [v.COPYING, *natural_text.tolist()]
    assert made.target.tolist() == [*natural_text.tolist(), v.END]
