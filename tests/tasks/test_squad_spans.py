"""SQuAD with spans: windows cover a context, labels mark answers, and scores match the official script."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.errors import ConfigError
from birdie_jax.models.span_head import MAX_SPAN_POSITIONS
from birdie_jax.tasks import task_of_flag
from birdie_jax.tasks.squad_spans import SquadSpans, Window, best_span, cut_windows
from birdie_jax.tasks.summary import mean_scores
from birdie_jax.tasks.task_model import TaskModel
from birdie_jax.vocabulary import MASKED_LM, SEPARATOR
from tests.tasks.tiny_task_model import tiny_task_model
from tests.trained_workdirs import small_tokenizer

CONTEXT = "abc def ghi jkl mno abc den fég hij klm noa bcd efg hij"


def entry(name, answer=None, context=CONTEXT):
    answers = [{"text": answer, "answer_start": context.index(answer)}] if answer else []
    return {"id": name, "question": f"abc {name}", "answers": answers, "is_impossible": not answer}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "dev-v2.0.json"
    questions = [entry("q1", "ghi jkl"), entry("q2", "fég"), entry("q3"), entry("q4", "hij klm noa")]
    paragraphs = [{"context": CONTEXT, "qas": questions}]
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "x", "paragraphs": paragraphs}]}))
    return path


def task(path, **settings):
    defaults = {"max_positions": 40, "stride": 10, "max_question_tokens": 6, "no_answer": True}
    return SquadSpans(path=str(path), **(defaults | settings))


def place_of(label):
    return divmod(label - 1, MAX_SPAN_POSITIONS)


@given(text=st.text(st.sampled_from("ab é日▁\n"), max_size=30))
def test_offsets_of_tokens_cover_the_text(text):
    tokenizer = small_tokenizer()
    tokens, offsets = tokenizer.encode_with_offsets(text)
    np.testing.assert_array_equal(tokens, tokenizer.encode(text))
    assert "".join(text[begin:end] for begin, end in offsets) == text


@given(count=st.integers(0, 60), room=st.integers(1, 20), data=st.data())
def test_windows_cover_a_context(count, room, data):
    stride = data.draw(st.integers(1, room))
    context = np.arange(300, 300 + count, dtype=np.int32)
    offsets = np.stack([np.arange(count), np.arange(1, count + 1)], axis=1)
    question = np.array([290, 291], np.int32)
    windows = cut_windows(question, context, offsets, max_positions=room + 5, stride=stride)
    seen = set()
    for window in windows:
        assert len(window.tokens) <= room + 5
        assert window.tokens[:4].tolist() == [MASKED_LM, 290, 291, SEPARATOR]
        assert window.tokens[-1] == SEPARATOR
        for token, (begin, end) in zip(window.tokens.tolist(), window.offsets.tolist(), strict=True):
            assert (begin, end) == ((token - 300, token - 299) if token >= 300 else (-1, -1))
            seen.add(begin)
    assert seen - {-1} == set(range(count))
    # Every window has tokens that no earlier window has.
    assert len(windows) == 1 or (len(windows) - 2) * stride + room < count


def test_labels_mark_the_tokens_of_the_answer(path):
    tokenizer, spans = small_tokenizer(), {"q1": "ghi jkl", "q2": "fég", "q4": "hij klm noa"}
    questions, _ = task(path).read()
    whole = 0
    for question in questions:
        answer = spans.get(question.name)
        span = span_of(answer)
        for window in task(path).windows(question, tokenizer):
            begin, end = place_of(window.label(span))
            if begin == 0:
                assert end == 0
                shown = [tuple(one) for one in window.offsets.tolist() if one[1] > one[0]]
                assert span is None or shown[0][0] > span[0] or shown[-1][1] < span[1]
                continue
            whole += 1
            found = CONTEXT[window.offsets[begin, 0] : window.offsets[end, 1]]
            assert answer in found
            assert window.offsets[begin, 1] > span[0] and window.offsets[end, 0] < span[1]
    assert whole >= 3
    examples = task(path).training_examples(tokenizer)
    assert len(examples) == sum(len(task(path).windows(one, tokenizer)) for one in questions)
    assert examples.name_of(0) == f"{path}: data[0].paragraphs[0].qas[0]"


def test_the_best_span_is_within_the_context_and_short_enough():
    offsets = np.array([[-1, -1], [-1, -1], [0, 1], [1, 3], [3, 4], [-1, -1]])
    window = Window(np.arange(6, dtype=np.int32), offsets)
    scores = np.zeros((6, 2), np.float32)
    scores[0] = 1.0, 2.0
    scores[1] = scores[5] = 50.0
    scores[2, 0], scores[4, 1], scores[3] = 9.0, 8.0, (1.0, 7.0)
    found = best_span([window], [scores], 3)
    assert (found.span, found.score, found.null_score) == ((0, 4), 17.0, 3.0)
    found = best_span([window], [scores], 2)
    assert (found.span, found.score) == ((0, 3), 16.0)
    second = scores.copy()
    second[0], second[3, 0] = (0.0, 0.5), 30.0
    found = best_span([window, window], [scores, second], 2)
    assert (found.span, found.score, found.null_score) == ((1, 4), 38.0, 0.5)
    nothing = Window(np.arange(2, dtype=np.int32), np.full((2, 2), -1))
    assert best_span([nothing], [scores[:2]], 2).span is None


def span_of(text):
    return (CONTEXT.index(text), CONTEXT.index(text) + len(text)) if text else None


def measure_with_scores(monkeypatch, squad, set_scores):
    """Return the answers by name. `set_scores(name, window, number, scores)` sets the scores in place."""
    tokenizer = small_tokenizer()
    windows = [(one.name, window) for one in squad.read()[0] for window in squad.windows(one, tokenizer)]

    def head_scores(model, examples, progress):
        del model, progress
        found = []
        for number, ((name, window), example) in enumerate(zip(windows, examples, strict=True)):
            np.testing.assert_array_equal(example.context, window.tokens)
            found.append(np.zeros((len(window.tokens), 2), np.float32))
            set_scores(name, window, number, found[-1])
        return found

    monkeypatch.setattr(TaskModel, "head_scores", head_scores)
    assert len(windows) > 8
    return {answer.question.name: answer for answer in squad.measure(tiny_task_model()).answers}


def test_scores_match_the_official_script(path, monkeypatch):
    """The head predicts a part of an answer, an answer, no answer and a wrong answer."""
    predicted = {"q1": "ghi", "q2": "fég", "q3": None, "q4": "mno"}

    def set_scores(name, window, number, scores):
        del number
        begin, end = place_of(window.label(span_of(predicted[name])))
        # A window without the answer predicts no answer, with a lower score than a span.
        scores[begin, 0] = scores[end, 1] = 5.0 if begin or predicted[name] is None else 1.0

    by_name = measure_with_scores(monkeypatch, task(path), set_scores)
    assert {name: answer.answer or None for name, answer in by_name.items()} == predicted
    assert [by_name[name].metrics["exact_match"] for name in predicted] == [0, 1, 1, 0]
    assert [by_name[name].metrics["f1"] for name in predicted] == [pytest.approx(2 / 3), 1, 1, 0]
    assert [by_name[name].question.groups["answerable"] for name in predicted] == [1, 1, 0, 1]
    assert mean_scores(task(path), list(by_name.values()))["f1"].mean == pytest.approx((2 / 3 + 2) / 4)


@pytest.mark.parametrize(
    ("threshold", "given"), [(-0.5, ""), (0.0, ""), (1.9, ""), (2.1, "fég"), (9.0, "fég")]
)
def test_no_answer_must_exceed_the_best_span_by_the_threshold(path, monkeypatch, threshold, given):
    """The smallest score of no answer over all windows is 2 above the best span."""

    def set_scores(name, window, number, scores):
        del name
        begin, end = place_of(window.label(span_of("fég")))
        scores[begin, 0] = scores[end, 1] = 1.5
        # No answer scores 5 or 6.
        scores[0] = (2.0, 3.0 + number % 2)

    answers = measure_with_scores(monkeypatch, task(path, no_answer_threshold=threshold), set_scores)
    assert {answer.answer for answer in answers.values()} == {given}
    assert [answers[name].metrics["exact_match"] for name in ("q2", "q3")] == [bool(given), not given]
    assert answers["q2"].details["no_answer_score"] - answers["q2"].details["score"] == pytest.approx(2.0)


def test_questions_without_an_answer_are_skipped_for_version_1(path):
    questions, refused = task(path, no_answer=False).read()
    assert [question.name for question in questions] == ["q1", "q2", "q4"]
    where = f"{path}: data[0].paragraphs[0].qas[2]"
    assert refused == [f"{where}: has no answer; no_answer=True asks such questions"]


def test_windows_longer_than_training_rows_are_refused(path):
    assert task_of_flag(f"squad_spans:path={path},max_positions=68,stride=1")
    with pytest.raises(ConfigError, match="max_positions: found 384; allowed: at most 128, the"):
        SquadSpans(path=str(path)).check_length(None, 128)
