"""The mixtures of a search: their shares, their dependence on seed and number, and their schedules."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.bandit.policies.staged import first_decisions, parse_stages
from birdie_jax.mixture_search.design import Design, stages_text

OWN = (0.7, 0.2, 0.1)
CLASSES = ("copying", "causal_lm", "prefix_lm")

weights = st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=9)
stages = st.integers(1, 4)
seeds = st.integers(0, 1 << 30)


def design_of(weights, stages, seed):
    names = tuple(f"class_{number}" for number in range(len(weights)))
    return Design(names, tuple(weight / sum(weights) for weight in weights), stages, seed)


@given(weights, stages, seeds, st.integers(2, 20))
def test_every_point_has_shares_of_every_class(weights, stages, seed, count):
    design = design_of(weights, stages, seed)
    points = design.points(count)
    assert points.shape == (count, design.stages, len(design.classes))
    np.testing.assert_allclose(points.sum(axis=-1), 1.0)
    assert (points[2:] >= 0.001).all() and (points > 0).all()


@given(weights, stages, seeds, st.integers(3, 12), st.integers(0, 12))
def test_more_proxies_keep_the_earlier_points(weights, stages, seed, count, more):
    design = design_of(weights, stages, seed)
    np.testing.assert_array_equal(design.points(count + more)[:count], design.points(count))


@given(weights, stages, seeds)
def test_the_first_points_are_own_and_equal_shares(weights, stages, seed):
    design = design_of(weights, stages, seed)
    own, uniform = design.points(2)
    np.testing.assert_array_equal(own, [design.own] * design.stages)
    np.testing.assert_allclose(uniform, 1 / len(design.classes))


def test_different_seeds_and_stages_give_different_points():
    points = Design(CLASSES, OWN, 2, 0).points(8)
    assert not np.isclose(points, Design(CLASSES, OWN, 2, 1).points(8))[2:].any()
    assert not np.isclose(points[2:, 0], points[2:, 1]).any()


def test_points_spread_widely_around_the_mean():
    drawn = Design(CLASSES, OWN, 1, 0).points(4000)[2:, 0]
    np.testing.assert_allclose(drawn.mean(axis=0), (np.array(OWN) + 1 / 3) / 2, atol=0.02)
    assert (drawn.max(axis=0) > 0.9).all() and (drawn.min(axis=0) < 0.01).all()


@pytest.mark.parametrize("stages", [1, 2, 3, 6, 7])
def test_parse_stages_reads_a_schedule_with_equal_parts(stages):
    point = Design(CLASSES, OWN, stages, 0).points(3)[2]
    parsed = parse_stages(stages_text(CLASSES, point))
    found = [[weights[name] for name in CLASSES] for _, weights in parsed]
    np.testing.assert_allclose(found, point, rtol=1e-4)
    decisions = 6 * stages
    assert first_decisions(parsed, decisions) == [6 * stage for stage in range(stages)]
