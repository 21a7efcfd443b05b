"""Errors for unusable parameters name the objective, the field and the allowed values."""

import re

import numpy as np
import pytest

from birdie_jax.objectives import OBJECTIVES, make_objective

NAMES = ", ".join(sorted(OBJECTIVES))
PAIR = "a pair (low, high) of integers with 1 <= low <= high"


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("clm", {}, f"objective: found 'clm'; allowed: {NAMES}"),
        ("copying", {"marker": 256}, "copying: marker: found 256; allowed: None or a special id, 1..255"),
        ("copying", {"marker": 0}, "copying: marker: found 0; allowed: None or a special id, 1..255"),
        ("copying", {"marker": "[C]"}, "copying: marker: found '[C]' (str); allowed: int or None"),
        (
            "causal_lm",
            {"marker": 24},
            "causal_lm: marker: found 24; allowed: None, because its context is empty",
        ),
        ("copying", {"min_length": 0}, "copying: min_length: found 0; allowed: an integer of at least 1"),
        ("copying", {"min_length": True}, "copying: min_length: found True (bool); allowed: int"),
        ("copying", {"max_length": 9.5}, "copying: max_length: found 9.5 (float); allowed: int or None"),
        (
            "copying",
            {"min_length": 9, "max_length": 8},
            "copying: max_length: found 8; allowed: None or at least 9, the fewest tokens it can use",
        ),
        (
            "span_corruption",
            {"rate": 1.5},
            "span_corruption: rate: found 1.5; allowed: a number above 0 and below 1",
        ),
        (
            "full_span_corruption",
            {"rate": float("nan")},
            "full_span_corruption: rate: found nan; allowed: a finite number",
        ),
        (
            "full_span_corruption_deshuffling",
            {"mean_span": 0.5},
            "full_span_corruption_deshuffling: mean_span: found 0.5; allowed: a number of at least 1 and "
            "at most 1,073,741,824",
        ),
        (
            "deshuffling",
            {"rate": 1.01},
            "deshuffling: rate: found 1.01; allowed: a number above 0 and at most 1",
        ),
        ("selective_copying", {"spans": 0}, f"selective_copying: spans: found (0, 0); allowed: {PAIR}"),
        (
            "selective_copying",
            {"spans": [3, 2]},
            f"selective_copying: spans: found (3, 2); allowed: {PAIR}",
        ),
        (
            "selective_copying",
            {"span_length": 8},
            "selective_copying: span_length: found 8 (int); allowed: [int, int]",
        ),
        (
            "prefix_lm",
            {"prefix_fraction": [0.5, 1.5]},
            "prefix_lm: prefix_fraction: found (0.5, 1.5); allowed: a pair (low, high) of numbers with "
            "0 <= low <= high <= 1",
        ),
        (
            "fill_in_the_middle",
            {"suffix_first_rate": -0.1},
            "fill_in_the_middle: suffix_first_rate: found -0.1; allowed: a number from 0 to 1",
        ),
    ],
)
def test_an_unusable_parameter_is_named(name, parameters, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make_objective(name, **parameters)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_defaults_are_usable_and_equal_objectives_are_equal(name):
    assert make_objective(name) == make_objective(name)
    assert make_objective(name).name == name


def test_integers_and_lists_are_accepted_for_fractions_and_pairs():
    assert make_objective("deshuffling", rate=1) == make_objective("deshuffling", rate=1.0)
    lists = make_objective("selective_copying", spans=[2, 2])
    assert lists == make_objective("selective_copying", spans=2)
    assert lists(np.arange(300, 500), np.random.default_rng(0)).target.size > 16
