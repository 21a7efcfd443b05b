"""Copying, selective copying and deshuffling by length: questions, passages and training examples."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax import vocabulary
from birdie_jax.errors import DataError
from birdie_jax.tasks.objective_by_length import (
    CopyingByLength,
    DeshufflingByLength,
    Passages,
    SelectiveCopyingByLength,
    TextSource,
)
from birdie_jax.tasks.task import without_stop
from birdie_jax.text.tokenization import split_of
from tests.tasks.tokenizers import word_tokenizer


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    rng = np.random.default_rng(0)
    for number in range(40):
        words = ["".join(rng.choice(list("abcdefgh"), 5)) for _ in range(int(rng.integers(2, 80)))]
        (folder / f"{number}.txt").write_text(" ".join(words))
    return folder


def split_at(tokens, separator):
    places = [-1, *np.flatnonzero(tokens == separator).tolist(), len(tokens)]
    return [tokens[first + 1 : last] for first, last in pairwise(places)]


def test_copying_questions_repeat_the_passage():
    task = CopyingByLength(lengths=(8, 21), questions_per_length=3)
    questions, refused = task.questions(word_tokenizer())
    assert not refused
    assert [question.groups["length"] for question in questions] == [8, 8, 8, 21, 21, 21]
    ordinary = set(word_tokenizer().ordinary_tokens().tolist())
    for question in questions:
        assert question.prompt_tokens[0] == vocabulary.COPYING
        assert question.reference_tokens == (*question.prompt_tokens[1:], vocabulary.END)
        assert len(question.prompt_tokens) == 1 + question.groups["length"]
        assert set(question.prompt_tokens[1:]) <= ordinary
        assert question.prompt.startswith("[COPY]")
    assert len({question.prompt_tokens for question in questions}) == 6


def test_whole_lines_do_not_occur_in_training_documents(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["".join(rng.choice(list("abcdefgh"), 6)) for _ in range(400)]
    for number in range(40):
        own = ["", *lines[10 * number : 10 * number + 10], "shared"]
        (tmp_path / f"{number}.txt").write_text("\n".join(f"    {line}" for line in own))
    written = {
        line.strip(): path.read_text()
        for path in tmp_path.iterdir()
        for line in path.read_text().split("\n")
    }
    text = {"source": str(tmp_path), "validation_fraction": 0.3, "whole_lines": True}
    length = len(word_tokenizer().encode(lines[0]))
    task = CopyingByLength(lengths=(length,), questions_per_length=20, **text)
    requested = {question.references[0] for question in task.questions(word_tokenizer())[0]}
    assert len(requested) > 3
    for line in requested:
        assert line in lines
        assert split_of(written[line], 0.3) == "validation"
    with pytest.raises(DataError, match="found no line of 50 tokens in its validation split alone"):
        CopyingByLength(lengths=(50,), **text).questions(word_tokenizer())
    with pytest.raises(ValueError, match="whole_lines: found True with source ''; allowed: with a source"):
        CopyingByLength(whole_lines=True)


def test_training_lines_have_the_lengths_that_lines_have(tmp_path):
    lines = [" ".join(letter * count) for count in (2, 5, 9) for letter in "abcdefgh"]
    for number, line in enumerate(lines):
        (tmp_path / f"{number}.txt").write_text(line)
    text = {"source": str(tmp_path), "validation_fraction": 0.3, "whole_lines": True}
    sizes = {len(word_tokenizer().encode(line)) for line in lines if split_of(line, 0.3) == "train"}
    task = CopyingByLength(lengths=(2, max(sizes)), **text)
    examples, rng = task.training_examples(word_tokenizer()), np.random.default_rng(0)
    found = [examples.draw(rng, 64) for _ in range(40)]
    assert {len(without_stop(example.target)) for example in found} == sizes
    shortest = task.objective(2, 2).example_length(min(sizes))
    assert len(without_stop(examples.draw(rng, shortest).target)) == min(sizes)
    assert examples.draw(rng, shortest - 1) is None
    with pytest.raises(DataError, match="found no line of 30 to 40 tokens in its train split alone"):
        CopyingByLength(lengths=(30, 40), **text).training_examples(word_tokenizer())


def test_spans_and_delimiters_have_the_configured_lengths():
    one = {"span_length": (4, 4), "start_delimiter_length": (1, 1), "end_delimiter_length": (2, 2)}
    task = SelectiveCopyingByLength(lengths=(12,), questions_per_length=5, **one)
    for question in task.questions(word_tokenizer())[0]:
        assert len(question.reference_tokens) == 5 and question.reference_tokens[-1] == vocabulary.DONE
        # The marker, [START] and [END] with three tokens, [CONTEXT] and the passage.
        assert len(question.prompt_tokens) == 1 + 5 + 1 + 12
        assert question.special_tokens == (vocabulary.DONE,)


def test_settings_within_keeps_the_lengths_that_fit():
    assert CopyingByLength().settings_within(word_tokenizer(), 256) == {"lengths": [32, 64]}
    assert CopyingByLength().settings_within(word_tokenizer(), 32) == {}


def test_questions_do_not_depend_on_their_number():
    few, _ = CopyingByLength(lengths=(8, 16), questions_per_length=2).questions(word_tokenizer())
    many, _ = CopyingByLength(lengths=(4, 8, 16), questions_per_length=5).questions(word_tokenizer())
    by_name = {question.name: question for question in many}
    assert all(by_name[question.name] == question for question in few)
    other, _ = CopyingByLength(lengths=(8, 16), questions_per_length=2, seed=1).questions(word_tokenizer())
    assert not {question.prompt_tokens for question in other} & {
        question.prompt_tokens for question in many
    }


def test_selective_copying_questions_have_spans_with_delimiters():
    task = SelectiveCopyingByLength(lengths=(128,), questions_per_length=5, spans=3)
    for question in task.questions(word_tokenizer())[0]:
        context, target = np.array(question.prompt_tokens), np.array(question.reference_tokens)
        assert context[0] == vocabulary.SELECTIVE_COPYING
        assert target[-1] == vocabulary.DONE
        queries, passage = split_at(context[1:], vocabulary.CONTEXT)
        assert len(passage) == question.groups["length"] == 128
        spans = split_at(target[:-1], vocabulary.SEPARATOR)
        text = passage.tobytes()
        requested = split_at(queries, vocabulary.SPAN_START)[1:]
        assert len(spans) == len(requested) == 3
        for query, span in zip(requested, spans, strict=True):
            start, end = split_at(query, vocabulary.SPAN_END)
            assert np.concatenate([start, span, end]).tobytes() in text


def test_deshuffling_questions_restore_the_passage(texts):
    task = DeshufflingByLength(
        lengths=(16, 40), questions_per_length=4, source=str(texts), validation_fraction=0.5
    )
    documents = [path.read_text() for path in texts.iterdir()]
    held_out = [word_tokenizer().encode(text) for text in documents if split_of(text, 0.5) == "validation"]
    for question in task.questions(word_tokenizer())[0]:
        context, target = question.prompt_tokens, question.reference_tokens
        assert context[0] == vocabulary.DESHUFFLING
        assert Counter(context[1:]) == Counter(target[:-1])
        passage = np.array(target[:-1], np.int32).tobytes()
        assert any(passage in document.tobytes() for document in held_out)


def test_training_uses_the_other_documents(texts):
    task = CopyingByLength(lengths=(16, 40), source=str(texts), validation_fraction=0.5)
    examples = task.training_examples(word_tokenizer())
    rng = np.random.default_rng(0)
    documents = [path.read_text() for path in texts.iterdir()]
    training = [word_tokenizer().encode(text) for text in documents if split_of(text, 0.5) == "train"]
    lengths = set()
    for _ in range(200):
        example = examples.draw(rng, 70)
        assert example is not None
        lengths.add(len(example.target) - 1)
        assert len(example.context) + len(example.target) <= 70
        assert any(example.target[:-1].tobytes() in document.tobytes() for document in training)
    # The marker, END, and the passage twice.
    assert lengths == set(range(16, 35))
    assert examples.draw(rng, 33) is None


@given(st.integers(0, 2**32), st.integers(1, 100))
def test_random_passages_contain_text_pieces(seed, length):
    passages = Passages(word_tokenizer(), None, "train")
    passage = passages.draw(np.random.default_rng(seed), length)
    assert passage.dtype == np.int32
    assert len(passage) == length
    assert set(passage.tolist()) <= set(word_tokenizer().ordinary_tokens().tolist())


def test_all_passages_are_equally_likely(tmp_path):
    (tmp_path / "a.txt").write_text("ab")
    (tmp_path / "b.txt").write_text("cdef")
    tokenizer = word_tokenizer()
    passages = Passages(tokenizer, TextSource(str(tmp_path), "text", 1e-9), "train")
    rng = np.random.default_rng(0)
    tokens = [tokenizer.encode(text) for text in ("ab", "cdef")]
    possible = {
        tuple(document[start : start + 2].tolist())
        for document in tokens
        for start in range(len(document) - 1)
    }
    drawn = Counter(tuple(passages.draw(rng, 2).tolist()) for _ in range(400))
    assert drawn.keys() == possible
    assert min(drawn.values()) > 400 / len(possible) / 2


def test_a_source_of_short_documents_is_refused(texts):
    task = CopyingByLength(lengths=(5000,), source=str(texts), validation_fraction=0.5)
    with pytest.raises(DataError, match=r"no document of 5000 tokens in its validation split.*at most \d+"):
        task.questions(word_tokenizer())
