"""Samples for heads: format, truncation and training examples."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.tasks import RecordedExamples
from birdie_jax.tasks.head_task import SampleExamples, cut_longest, sample_tokens
from birdie_jax.vocabulary import MASKED_LM, SEPARATOR


def tokens(count, first=300):
    return np.arange(first, first + count, dtype=np.int32)


def test_a_sample_has_marker_and_separators():
    assert sample_tokens([tokens(2)]).tolist() == [MASKED_LM, 300, 301, SEPARATOR]
    pair = [tokens(2), tokens(3, 400)]
    whole = [MASKED_LM, 300, 301, SEPARATOR, 400, 401, 402, SEPARATOR]
    assert sample_tokens(pair).tolist() == whole == sample_tokens(pair, 8).tolist()
    assert sample_tokens([tokens(9), tokens(3, 400)], 8).tolist() == [
        *(MASKED_LM, 300, 301, 302, SEPARATOR),
        *(400, 401, SEPARATOR),
    ]


@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=3), max_tokens=st.integers(0, 40))
def test_the_longest_text_is_truncated_first(lengths, max_tokens):
    """The result equals removing one token at a time from the longest text."""
    texts = [tokens(length) for length in lengths]
    cut = cut_longest(texts, max_tokens)
    wanted = list(lengths)
    while sum(wanted) > max_tokens:
        wanted[wanted.index(max(wanted))] -= 1
    assert sorted(map(len, cut)) == sorted(wanted)
    for text, part in zip(texts, cut, strict=True):
        np.testing.assert_array_equal(part, text[: len(part)])


def test_examples_keep_their_order_and_have_a_hash():
    contexts, labels = [tokens(3), tokens(5, 400), tokens(1, 500)], [1, 7, 2]
    examples = SampleExamples(["a", "b", "c"], contexts, labels)
    assert isinstance(examples, RecordedExamples)
    assert len(examples) == 3 and examples.lengths.tolist() == [3, 5, 1]
    for number, (context, label) in enumerate(zip(contexts, labels, strict=True)):
        example = examples[number]
        np.testing.assert_array_equal(example.context, context)
        assert example.labels is not None and example.labels.tolist() == [label] + [0] * (len(context) - 1)
        assert len(example.target) == 0
    assert examples.name_of(1) == "b"
    assert examples.sha256 != SampleExamples(["a", "b", "c"], contexts, [1, 7, 3]).sha256
