"""Noisy recall: sequences, questions and training examples, without a query, with it first or last."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax import vocabulary
from birdie_jax.errors import ConfigError
from birdie_jax.tasks.noisy_recall import NoisyRecall
from tests.tasks.tokenizers import word_tokenizer

SMALL = {"sequence_length": 20, "items": 3, "noise": 30, "keys": 12, "values": 10, "num_sequences": 5}


@given(
    seed=st.integers(0, 2**32),
    query=st.sampled_from(["none", "first", "last"]),
    items=st.integers(1, 6),
    more=st.integers(0, 10),
)
def test_items_do_not_overlap_and_the_rest_is_noise(seed, query, items, more):
    size = 1 if query == "none" else 2
    task = NoisyRecall(
        query=query, sequence_length=max(2, items * size + more), items=items, noise=9, keys=7, values=8
    )
    drawn = task.draw_sequence(np.random.default_rng(seed))
    assert len(drawn.sequence) == task.sequence_length
    is_value, is_key = drawn.sequence >= 16, (drawn.sequence >= 9) & (drawn.sequence < 16)
    assert is_value.sum() == items == len(set(drawn.values.tolist()))
    np.testing.assert_array_equal(drawn.sequence[is_value], drawn.values)
    np.testing.assert_array_equal(np.flatnonzero(is_value), drawn.places)
    assert is_key.sum() == len(set(drawn.keys.tolist())) == (0 if query == "none" else items)
    np.testing.assert_array_equal(np.flatnonzero(is_key), drawn.places[: is_key.sum()] - 1)
    np.testing.assert_array_equal(drawn.sequence[is_key], drawn.keys)
    assert sorted(drawn.asked.tolist()) == list(range(items))


def test_positions_of_items_are_uniform():
    task = NoisyRecall(query="last", sequence_length=5, items=1)
    rng = np.random.default_rng(0)
    places = np.bincount([task.draw_sequence(rng).places[0] for _ in range(4000)], minlength=5)
    assert places[0] == 0
    np.testing.assert_allclose(places[1:] / 4000, 0.25, atol=0.03)


@pytest.mark.parametrize("query", ["none", "first", "last"])
def test_the_prompt_contains_the_answer(query):
    task = NoisyRecall(query=query, **SMALL)
    tokens = word_tokenizer().ordinary_tokens()
    keys, values = set(tokens[30:42].tolist()), set(tokens[42:52].tolist())
    questions, refused = task.questions(word_tokenizer())
    assert not refused
    assert len(questions) == 5
    for question in questions:
        marker, *context = question.prompt_tokens
        assert marker == vocabulary.PREFIX_LM
        if query == "none":
            values_in_order = [token for token in context if token in values]
            assert question.reference_tokens == (*values_in_order, vocabulary.END)
            wanted, sequence = values_in_order[0], context
        else:
            key = context[0] if query == "first" else question.target_prefix[0]
            assert key in keys
            sequence = context[1:] if query == "first" else context
            wanted = sequence[sequence.index(key) + 1]
            end = (vocabulary.END,) if query == "first" else ()
            assert question.reference_tokens == (wanted, *end)
        assert len(sequence) == 20
        assert question.groups["distance"] == 20 - sequence.index(wanted)
    fewer, _ = NoisyRecall(query=query, **{**SMALL, "num_sequences": 2}).questions(word_tokenizer())
    assert list(questions[:2]) == list(fewer)


@pytest.mark.parametrize(("query", "positions"), [("none", 25), ("first", 24), ("last", 28)])
def test_training_examples_match_the_questions(query, positions):
    task = NoisyRecall(query=query, **SMALL)
    examples = task.training_examples(word_tokenizer())
    questions, _ = task.questions(word_tokenizer())
    for number, question in enumerate(questions):
        example = examples.draw(np.random.default_rng([task.seed, number]), positions)
        assert example is not None
        assert len(example.context) + len(example.target) == positions
        assert tuple(example.context.tolist()) == question.prompt_tokens
        target = (*question.target_prefix, *question.reference_tokens)
        assert tuple(example.target[: len(target)].tolist()) == target
        assert example.target[-1] == vocabulary.END
    assert examples.draw(np.random.default_rng(0), positions - 1) is None


def test_a_tokenizer_with_too_few_pieces_is_refused():
    with pytest.raises(ConfigError, match="found 5064 together; allowed: at most 143, the pieces of"):
        NoisyRecall(values=5000, keys=32, noise=32).questions(word_tokenizer())
