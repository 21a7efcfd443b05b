"""Metrics of answers match SQuAD's official scripts and the harness; see make_answer_scores.py."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.tasks.metrics import (
    ANSWER_METRICS,
    contains,
    contains_verbatim,
    exact_match,
    f1,
    normalize_answer,
)

SCORES = json.loads(Path(__file__).with_name("answer_scores.json").read_text())


def test_recorded_answers_have_a_variety_of_scores():
    assert len(SCORES) > 500
    assert sum(one["v2"]["exact_match"] for one in SCORES) > 20
    assert sum(0 < one["v2"]["f1"] < 1 for one in SCORES) > 50
    assert sum(one["contains"] != one["v2"]["exact_match"] for one in SCORES) > 20
    assert sum(one["contains"] != one["contains_verbatim"] for one in SCORES) > 20


@pytest.mark.parametrize("metric", [exact_match, f1])
def test_scores_match_squad_v2(metric):
    for one in SCORES:
        found = metric(one["answer"], one["references"])
        assert found == pytest.approx(one["v2"][metric.__name__], abs=1e-12), one


def test_scores_match_squad_v1_for_answers_and_references_with_words():
    wordless = 0
    for one in SCORES:
        texts = [normalize_answer(text) for text in (one["answer"], *one["references"])]
        if all(texts):
            assert exact_match(one["answer"], one["references"]) == one["v1"]["exact_match"], one
            assert f1(one["answer"], one["references"]) == pytest.approx(one["v1"]["f1"], abs=1e-12), one
        else:
            wordless += one["v1"] != one["v2"]
    assert wordless > 0


@pytest.mark.parametrize("metric", [contains, contains_verbatim])
def test_contains_matches_the_recorded_scores(metric):
    for one in SCORES:
        assert metric(one["answer"], one["references"]) == one[metric.__name__], one


@given(st.text(), st.lists(st.text(), min_size=1, max_size=3), st.randoms())
def test_scores_are_ordered_and_ignore_the_order_of_references(answer, references, random):
    scores = {name: metric(answer, references) for name, metric in ANSWER_METRICS.items()}
    assert all(0 <= score <= 1 for score in scores.values())
    assert scores["exact_match"] <= min(scores["f1"], scores["contains"])
    shuffled = random.sample(references, len(references))
    assert scores == {name: metric(answer, shuffled) for name, metric in ANSWER_METRICS.items()}


def test_metrics_have_names():
    assert list(ANSWER_METRICS) == ["exact_match", "f1", "contains", "contains_verbatim"]
    assert ANSWER_METRICS["f1"]("in the old house", ["the house"]) == 0.5
