"""Full span corruption, with and without deshuffling."""

import numpy as np
import pytest

from birdie_jax import vocabulary as v
from birdie_jax.objectives import make_objective


@pytest.mark.parametrize("settings", [{"rate": 0.15, "mean_span": 3}, {"rate": 0.5, "mean_span": 8}])
def test_context_matches_span_corruption_and_target_is_the_text(natural_text, settings):
    full = make_objective("full_span_corruption", **settings)
    cut = make_objective("span_corruption", marker=v.FULL_SPAN_CORRUPTION, **settings)
    made = full.build(natural_text[:400], np.random.default_rng(3))
    other = cut.build(natural_text[:400], np.random.default_rng(3))
    np.testing.assert_array_equal(made.context, other.context)
    assert made.target.tolist() == [*natural_text[:400].tolist(), v.END]


def pieces(context, text_start):
    """Cut a context into sentinels and runs of consecutive ids, for a text with increasing ids."""
    found = []
    for token in context.tolist():
        if found and found[-1][-1] >= text_start and token == found[-1][-1] + 1:
            found[-1].append(token)
        else:
            found.append([token])
    return found


def test_deshuffling_moves_only_whole_pieces(distinct_text):
    shuffled = make_objective("full_span_corruption_deshuffling", rate=0.5, mean_span=8, marker=None)
    ordered = make_objective("full_span_corruption", rate=0.5, mean_span=8, marker=None)
    orders = set()
    for seed in range(10):
        made = shuffled.build(distinct_text, np.random.default_rng(seed))
        other = ordered.build(distinct_text, np.random.default_rng(seed))
        # Noise separates the kept spans of the text, so the ids of two spans are never consecutive.
        expected = pieces(other.context, 1000)
        assert sorted(made.context.tolist()) == sorted(other.context.tolist())
        places = {piece[0]: made.context.tolist().index(piece[0]) for piece in expected}
        for piece in expected:
            start = places[piece[0]]
            assert made.context[start : start + len(piece)].tolist() == piece
        orders.add(tuple(sorted(places, key=places.get)))
        assert made.target.tolist() == [*distinct_text.tolist(), v.END]
    assert len(orders) == 10


def test_an_example_matches_table_1():
    """The early [mask] Bird [mask] is a shuffle of Bird [mask] the early [mask]."""
    objective = make_objective("full_span_corruption_deshuffling", rate=0.5, mean_span=2, marker=None)
    first, second = v.FIRST_SENTINEL, v.FIRST_SENTINEL + 1
    rng = np.random.default_rng(0)
    made = [tuple(objective.build(np.arange(300, 307), rng).context.tolist()) for _ in range(3000)]
    assert (304, 305, first, 300, second) in made
