"""Every query of selective copying has exactly one answer in the context."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax import vocabulary as v
from birdie_jax.errors import UnsuitableText
from birdie_jax.objectives import make_objective


def split(tokens, separator):
    parts = [[]]
    for token in tokens:
        if token == separator:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def parse(made, query_first):
    """Return (text, [(start delimiter, end delimiter)], [span]) of an example with its marker."""
    context, target = made.context.tolist(), made.target.tolist()
    assert context[0] == v.SELECTIVE_COPYING
    border = context.index(v.CONTEXT)
    if query_first:
        query_tokens, text = context[1:border], context[border + 1 :]
    else:
        assert border == 1
        border = context.index(v.SPAN_START)
        text, query_tokens = context[2:border], context[border:]
    before, *queries = split(query_tokens, v.SPAN_START)
    assert before == []
    pairs = [tuple(split(query, v.SPAN_END)) for query in queries]
    assert all(len(pair) == 2 for pair in pairs)
    assert target[-1] == v.DONE
    return text, pairs, split(target[:-1], v.SEPARATOR)


def occurrences(text, run):
    return [place for place in range(len(text) - len(run) + 1) if text[place : place + len(run)] == run]


def check(objective, made, document):
    text, pairs, spans = parse(made, objective.query_first)
    assert text == document
    assert objective.spans[0] <= len(pairs) == len(spans) <= objective.spans[1]
    covered = []
    for (start, end), span in zip(pairs, spans, strict=True):
        starts, ends = occurrences(text, start), occurrences(text, end)
        assert len(starts) == len(ends) == 1
        answers = [text[i + len(start) : j] for i in starts for j in ends if i + len(start) <= j]
        assert answers == [span]
        for run, field in ((start, "start_delimiter"), (span, "span"), (end, "end_delimiter")):
            low, high = getattr(objective, f"{field}_length")
            assert low <= len(run) <= high
        covered += range(starts[0], ends[0] + len(end))
    assert len(covered) == len(set(covered)), "pieces overlap"


@given(
    seed=st.integers(0, 2**32 - 1),
    alphabet=st.sampled_from([1, 2, 3, 6, 12, 40, 200, 5000]),
    size=st.integers(112, 260),
    query_first=st.booleans(),
    repeats=st.booleans(),
)
def test_every_query_has_exactly_one_answer(seed, alphabet, size, query_first, repeats):
    rng = np.random.default_rng(seed)
    document = 256 + rng.integers(0, alphabet, size)
    if repeats:
        document[size // 2 :] = document[: size - size // 2]
    objective = make_objective("selective_copying", query_first=query_first)
    try:
        made = objective.build(document, rng)
    except UnsuitableText:
        # Random text over such large alphabets has unique runs of four tokens.
        assert alphabet < 40 or repeats
        return
    check(objective, made, document.tolist())


@pytest.mark.parametrize("query_first", [True, False])
@pytest.mark.parametrize("spans", [1, 2, 3, 4])
def test_natural_text_is_suitable(natural_text, spans, query_first):
    objective = make_objective("selective_copying", spans=spans, query_first=query_first)
    for seed in range(10):
        made = objective.build(natural_text[seed:], np.random.default_rng(seed))
        check(objective, made, natural_text[seed:].tolist())


def test_an_example_matches_table_1():
    """[start] C D [end] H [context] A B C D E F G H I -> E F G [done]."""
    objective = make_objective(
        "selective_copying",
        spans=1,
        span_length=[3, 3],
        start_delimiter_length=[2, 2],
        end_delimiter_length=[1, 1],
        marker=None,
    )
    letters = np.arange(300, 309)
    rng = np.random.default_rng(0)
    made = [objective.build(letters, rng) for _ in range(60)]
    contexts = [one.context.tolist() for one in made]
    expected = [v.SPAN_START, 302, 303, v.SPAN_END, 307, v.CONTEXT, *letters.tolist()]
    assert expected in contexts
    assert made[contexts.index(expected)].target.tolist() == [304, 305, 306, v.DONE]
    assert len({tuple(context) for context in contexts}) == 4


def test_lengths_are_uniform_if_all_delimiters_are_unique(distinct_text):
    objective = make_objective("selective_copying", spans=4)
    rng = np.random.default_rng(0)
    lengths = {"start": Counter(), "end": Counter(), "span": Counter()}
    in_order = 0
    for _ in range(300):
        _, pairs, spans = parse(objective.build(distinct_text, rng), True)
        lengths["start"].update(len(start) for start, _ in pairs)
        lengths["end"].update(len(end) for _, end in pairs)
        lengths["span"].update(len(span) for span in spans)
        in_order += spans == sorted(spans)
    for name, allowed in (("start", range(1, 9)), ("end", range(1, 5)), ("span", range(8, 17))):
        assert set(lengths[name]) == set(allowed)
        expected = 1200 / len(allowed)
        assert all(abs(count - expected) < 5 * np.sqrt(expected) for count in lengths[name].values())
    # One order in 24 is the order of the text: 12.5 of 300, with a standard deviation of 3.5.
    assert 1 <= in_order <= 30


def test_the_number_of_spans_is_drawn_from_its_range(distinct_text):
    objective = make_objective("selective_copying", spans=[2, 4])
    rng = np.random.default_rng(0)
    counts = Counter(len(parse(objective.build(distinct_text, rng), True)[1]) for _ in range(150))
    assert set(counts) == {2, 3, 4}
    assert min(counts.values()) > 25


def test_delimiters_are_extended_only_as_needed():
    """Pairs of tokens are unique here but single tokens are not, so a delimiter needs at least two."""
    rng = np.random.default_rng(0)
    order = [(i, j) for i in range(30) for j in range(30) if i < j]
    document = np.array([256 + token for pair in rng.permutation(order) for token in pair])
    objective = make_objective("selective_copying", spans=4, start_delimiter_length=[1, 1])
    with pytest.raises(UnsuitableText):
        objective.build(document, rng)
    made = make_objective("selective_copying", spans=4).build(document, rng)
    _, pairs, _ = parse(made, True)
    assert all(len(start) > 1 and len(end) > 1 for start, end in pairs)


@pytest.mark.parametrize("period", [1, 2, 7])
def test_repetitive_text_is_unsuitable(period):
    objective = make_objective("selective_copying", spans=2)
    with pytest.raises(UnsuitableText) as error:
        objective.build(np.resize(np.arange(300, 300 + period), 300), np.random.default_rng(0))
    message = (
        "selective_copying: 8 placements in the text of 300 tokens found no 2 spans with delimiters that "
        "occur there once"
    )
    assert str(error.value) == message
