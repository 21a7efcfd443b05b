"""Multi-query associative recall: sequences, questions and training examples."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax import vocabulary
from birdie_jax.errors import ConfigError
from birdie_jax.tasks.associative_recall import AssociativeRecall
from tests.tasks.tokenizers import word_tokenizer

TASK = AssociativeRecall(vocab_size=80, sequence_length=32, key_value_pairs=5, num_sequences=3)


@given(
    seed=st.integers(0, 2**32),
    pairs=st.integers(1, 12),
    more=st.integers(0, 20),
    power=st.sampled_from([0.01, 1.0, 2.0]),
    random_fillers=st.booleans(),
)
def test_a_sequence_has_the_published_structure(seed, pairs, more, power, random_fillers):
    length = 4 * pairs + 2 * more
    sizes = {"vocab_size": 100, "sequence_length": length, "key_value_pairs": pairs}
    task = AssociativeRecall(**sizes, power_a=power, random_fillers=random_fillers)
    sequence = task.draw_sequence(np.random.default_rng(seed))
    keys, values = sequence.pairs[::2], sequence.pairs[1::2]
    assert (
        len(set(keys.tolist())) == len(set(values.tolist())) == len(set(sequence.slots.tolist())) == pairs
    )
    assert keys.min() >= 1
    assert keys.max() < 50 <= values.min()
    assert values.max() < 100
    assert len(sequence.pairs) + len(sequence.queries) == length
    np.testing.assert_array_equal(sequence.queries[2 * sequence.slots], keys)
    np.testing.assert_array_equal(sequence.queries[2 * sequence.slots + 1], values)
    fillers = np.delete(sequence.queries.reshape(-1, 2), sequence.slots, axis=0)
    assert fillers.shape == (more, 2)
    assert random_fillers or not fillers.any()


def test_slots_follow_the_power_law():
    task = AssociativeRecall(vocab_size=100, sequence_length=32, key_value_pairs=2)
    rng = np.random.default_rng(0)
    slots = np.array([task.draw_sequence(rng).slots for _ in range(4000)])
    weights = np.array([1 / slot**0.99 for slot in range(1, 15)])
    first = weights / weights.sum()
    found = np.bincount(slots[:, 0], minlength=14) / len(slots)
    np.testing.assert_allclose(found, first, atol=4 * np.sqrt(0.25 / len(slots)) * 2 * np.sqrt(first.max()))
    # The second slot is drawn without replacement.
    second = sum(
        first[taken] * np.where(np.arange(14) == taken, 0, first) / (1 - first[taken])
        for taken in range(14)
    )
    np.testing.assert_allclose(np.bincount(slots[:, 1], minlength=14) / len(slots), second, atol=0.03)


def test_a_question_includes_all_earlier_queries():
    questions, refused = TASK.questions(word_tokenizer())
    assert not refused
    assert len(questions) == 3 * 5
    for question in questions:
        assert question.prompt_tokens[0] == vocabulary.PREFIX_LM
        pairs = dict(zip(question.prompt_tokens[1::2], question.prompt_tokens[2::2], strict=True))
        assert len(pairs) == question.groups["pairs"] == 5
        key = question.target_prefix[-1]
        assert question.reference_tokens == (pairs[key],)
        place = question.prompt_tokens[1:].index(key)
        behind = len(question.prompt_tokens[1:]) + len(question.target_prefix) - 1
        assert question.groups["distance"] == behind - place
        earlier = question.target_prefix[:-1]
        for earlier_key, value in zip(earlier[::2], earlier[1::2], strict=True):
            assert pairs.get(earlier_key, earlier_key) == value
        assert word_tokenizer().decode(list(question.target_prefix)) in question.prompt
    fewer, _ = replace(TASK, num_sequences=2).questions(word_tokenizer())
    assert list(questions[:10]) == list(fewer)


def test_training_examples_match_the_questions():
    examples = TASK.training_examples(word_tokenizer())
    example = examples.draw(np.random.default_rng([0, 1]), 34)
    assert example is not None
    assert len(example.context) + len(example.target) == 34
    assert example.target[-1] == vocabulary.END
    questions, _ = TASK.questions(word_tokenizer())
    for question in questions[5:10]:
        target = (*question.target_prefix, *question.reference_tokens)
        assert question.prompt_tokens == tuple(example.context.tolist())
        assert target == tuple(example.target[: len(target)].tolist())
    assert examples.draw(np.random.default_rng(0), 33) is None


def test_a_tokenizer_with_too_few_pieces_is_refused():
    with pytest.raises(ConfigError, match="vocab_size: found 8192; allowed: at most 143, the pieces of"):
        AssociativeRecall().questions(word_tokenizer())
