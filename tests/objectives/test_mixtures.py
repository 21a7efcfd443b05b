"""The mixtures of the papers, and mixtures from a user's arms."""

import re
from collections import Counter

import numpy as np
import pytest

from birdie_jax import vocabulary as v
from birdie_jax.objectives import (
    MIXTURES,
    OBJECTIVES,
    Arm,
    Mixture,
    make_mixture,
    make_objective,
    mixture_from_arms,
)


def test_birdie_has_the_104_arms_of_the_published_code():
    mixture = make_mixture("birdie", 2048)
    assert Counter(mixture.groups) == {
        "span_corruption": 26,
        "full_span_corruption": 54,
        "copying": 2,
        "deshuffling": 4,
        "selective_copying": 16,
        "prefix_lm": 1,
        "causal_lm": 1,
    }
    groups = np.array(mixture.groups)
    for group in set(mixture.groups):
        weights = mixture.weights[groups == group]
        np.testing.assert_allclose(weights, 1 / 7 / len(weights))
    objectives = {arm.objective for arm in mixture.arms}
    assert len(objectives) == 104
    assert make_objective("deshuffling", rate=0.5, min_length=512, max_length=1024) in objectives


@pytest.mark.parametrize("length", [64, 256, 512, 2048, 4096])
@pytest.mark.parametrize("name", MIXTURES)
def test_every_arm_fits_its_row(name, length):
    mixture = make_mixture(name, length)
    assert mixture.weights.dtype == np.float64
    np.testing.assert_allclose(mixture.weights.sum(), 1.0)
    assert len(set(mixture.names)) == len(mixture.arms)
    text = np.arange(256, 256 + 5000)
    rng = np.random.default_rng(length)
    for arm in mixture.arms:
        assert re.fullmatch(r"[A-Za-z0-9_]+", arm.name)
        made = arm.objective(text, rng, length=length)
        assert 0 < len(made.context) + len(made.target) <= length


@pytest.mark.parametrize(
    ("name", "groups", "arms"),
    [
        ("causal_lm", 1, 1),
        ("masked_lm", 1, 1),
        ("ul2", 3, 7),
        ("bfr", 8, 104),
        ("pt5", 5, 34),
        ("tiny", 8, 8),
        ("quickstart", 5, 6),
    ],
)
def test_other_mixtures_have_their_classes_and_arms(name, groups, arms):
    mixture = make_mixture(name, 2048)
    assert (len(set(mixture.groups)), len(mixture.arms)) == (groups, arms)


def test_ul2_has_seven_equal_denoisers_with_their_markers():
    mixture = make_mixture("ul2", 512)
    np.testing.assert_allclose(mixture.weights, 1 / 7)
    markers = Counter((arm.group, arm.objective.marker) for arm in mixture.arms)
    assert markers == {
        ("regular", v.UL2_REGULAR): 2,
        ("sequential", v.UL2_SEQUENTIAL): 1,
        ("extreme", v.UL2_EXTREME): 4,
    }


def test_a_class_keeps_its_weight_without_arms_that_do_not_fit():
    mixture = make_mixture("birdie", 256)
    assert "selective_copying_s1_first_l48_96" in mixture.names
    assert "selective_copying_s4_first_l48_96" not in mixture.names
    weights = mixture.weights[np.array(mixture.groups) == "selective_copying"]
    np.testing.assert_allclose(weights.sum(), 1 / 7)


def test_tiny_has_all_classes_at_256():
    mixture = make_mixture("tiny", 256)
    assert set(mixture.groups) == set(make_mixture("bfr", 256).groups)
    assert dict(zip(mixture.names, mixture.weights, strict=True))["causal_lm"] == pytest.approx(0.3)


def test_mixture_from_arms_makes_arms_and_weights():
    mixture = mixture_from_arms(
        {
            "short_copies": {"objective": "copying", "group": "copies", "weight": 3, "max_length": 64},
            "causal_lm": {"objective": "causal_lm"},
        }
    )
    assert mixture.arms == (
        Arm("short_copies", make_objective("copying", max_length=64), "copies", 3.0),
        Arm("causal_lm", make_objective("causal_lm"), "causal_lm", 1.0),
    )
    assert mixture.weights.tolist() == [0.75, 0.25]
    assert mixture.names == ("short_copies", "causal_lm")
    assert mixture.groups == ("copies", "causal_lm")


def test_an_arm_with_corpora_is_its_own_class():
    mixture = mixture_from_arms(
        {
            "web_lm": {"objective": "causal_lm", "corpora": "web"},
            "code_lm": {"objective": "causal_lm", "corpora": ["code", "web"]},
            "lm": {"objective": "causal_lm"},
            "named": {"objective": "causal_lm", "corpora": "web", "group": "lms"},
        }
    )
    assert mixture.groups == ("web_lm", "code_lm", "causal_lm", "lms")


COPYING = {"objective": "copying"}
OBJECTIVE_NAMES = ", ".join(sorted(OBJECTIVES))


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ({}, "mixture: it has no arms; allowed: at least one"),
        ({"a": {}}, f"arm 'a': objective: found None; allowed: {OBJECTIVE_NAMES}"),
        ({"a": 3}, "arm 'a': 3; allowed: a mapping with the field objective"),
        (
            {"a": {"objective": "span_corruption", "rate": 1.2}},
            "arm 'a': span_corruption: rate: found 1.2; allowed: a number above 0 and below 1",
        ),
        *(
            (
                {"a": {**COPYING, "corpora": corpora}},
                f"arm 'a': corpora: found {corpora!r}; allowed: the name of a corpus, or a list of "
                "different names; without the field: all corpora",
            )
            for corpora in ([], ["web", "web"], 3, [3])
        ),
        (
            {"a/b": COPYING},
            "arm 'a/b': name: found 'a/b'; allowed: letters, digits, underscores, at most 100",
        ),
        (
            {"a": {**COPYING, "group": "x y"}},
            "arm 'a': group: found 'x y'; allowed: letters, digits, underscores, at most 100",
        ),
        (
            {"a": {**COPYING, "weight": -1}},
            "arm 'a': weight: found -1; allowed: a finite number of at least 0 and at most 1,000,000,000",
        ),
        (
            {"a": {**COPYING, "weight": float("inf")}},
            "arm 'a': weight: found inf; allowed: a finite number of at least 0 and at most 1,000,000,000",
        ),
        (
            {"a": {**COPYING, "weight": 0}},
            "mixture: the weights add up to 0.0; allowed: a positive, finite sum",
        ),
    ],
)
def test_an_unusable_arm_is_named(arms, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        mixture_from_arms(arms)


def test_invalid_mixtures_are_refused():
    arm = Arm("a", make_objective("copying"), "g")
    with pytest.raises(
        ValueError, match=r"^mixture: more than one arm is called 'a'; allowed: unique names$"
    ):
        Mixture((arm, arm))
    with pytest.raises(
        ValueError, match=r"^mixture: found 'bird'; allowed: birdie, causal_lm, masked_lm, ul2, bfr, "
    ):
        make_mixture("bird", 2048)
    message = r"^mixture 'ul2': length: found 3; allowed: a length that at least one of its arms fits$"
    with pytest.raises(ValueError, match=message):
        make_mixture("ul2", 3)
