"""Labels at the ends of lines are in order, separate, inside the panel and near their lines."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.reporting.plots import spread

HEIGHT, APART = 100.0, 10.0


@given(st.lists(st.floats(-20, 120), min_size=1, max_size=14).map(sorted))
def test_places(wanted):
    places = np.array(spread(wanted, APART, HEIGHT))
    distance = min(APART, HEIGHT / max(len(wanted) - 1, 1))
    assert places.min() >= -1e-6 and places.max() <= HEIGHT + 1e-6
    assert (np.diff(places) >= distance - 1e-6).all()


def test_distant_labels_keep_their_places():
    assert spread([5.0, 30.0, 95.0], APART, HEIGHT) == [5.0, 30.0, 95.0]


def test_close_labels_are_spread_evenly():
    assert spread([50.0, 50.0], APART, HEIGHT) == pytest.approx([45.0, 55.0])
    assert spread([1.0, 2.0, 99.0], APART, HEIGHT) == pytest.approx([0.0, 10.0, 99.0])
