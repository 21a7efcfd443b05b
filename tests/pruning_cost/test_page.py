"""Plots of the page of `prune`: their scale and intervals."""

import re

import pytest

from birdie_jax.evaluation_record import Interval
from birdie_jax.pruning_cost.page import Curve, draw_curves
from birdie_jax.reporting.svg import class_colour, default_style


def heights(least_span, intervals=()):
    """Return the labels of the y axis."""
    curve = Curve("random", [1.0, 2.0], [3.0, 3.006], class_colour(0), intervals=intervals)
    with default_style():
        svg = draw_curves([curve], "x", "y", "plot", least_span)
    return [float(each) for each in re.findall(r">(\d\.\d+)</text>", svg) if float(each) > 2.5]


def test_small_differences_look_small_on_the_axis():
    assert max(heights(0.1)) - min(heights(0.1)) == pytest.approx(0.1, abs=0.03)
    assert max(heights(0.0)) - min(heights(0.0)) < 0.01


def test_the_axis_covers_the_intervals():
    named = heights(0.1, [Interval(3.0, 2.8, 3.2), Interval(3.006, 2.9, 3.1)])
    assert min(named) <= 2.85 and max(named) >= 3.15
