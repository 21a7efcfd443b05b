"""Properties of every objective for any document."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from birdie_jax import vocabulary as v
from birdie_jax.errors import UnsuitableText
from birdie_jax.objectives import NO_LABEL, OBJECTIVES, make_objective

VARIANTS = [
    make_objective(name, **parameters)
    for name, parameters in (
        ("causal_lm", {}),
        ("causal_lm", {"max_length": 50}),
        ("prefix_lm", {}),
        ("prefix_lm", {"prefix_fraction": (0.0, 0.3), "marker": None}),
        ("span_corruption", {}),
        ("span_corruption", {"rate": 0.5, "mean_span": 1, "marker": v.UL2_EXTREME}),
        ("span_corruption", {"rate": 0.9, "mean_span": 1}),
        ("span_corruption", {"rate": 0.05, "mean_span": 64.0, "marker": None}),
        ("full_span_corruption", {}),
        ("full_span_corruption", {"rate": 0.5, "mean_span": 3, "min_length": 20, "max_length": 100}),
        ("full_span_corruption_deshuffling", {}),
        ("full_span_corruption_deshuffling", {"rate": 0.5, "mean_span": 2, "marker": None}),
        ("deshuffling", {"rate": 0.5}),
        ("deshuffling", {"rate": 1.0, "min_length": 10}),
        ("copying", {}),
        ("copying", {"min_length": 16, "max_length": 64, "marker": None}),
        ("selective_copying", {"spans": 1}),
        ("selective_copying", {"spans": [1, 4], "query_first": False}),
        ("selective_copying", {"spans": 2, "span_length": [1, 3], "marker": None}),
        ("fill_in_the_middle", {}),
        ("fill_in_the_middle", {"suffix_first_rate": 0}),
        ("masked_lm", {}),
        ("masked_lm", {"rate": 1.0, "num_pieces": 9, "min_length": 1, "marker": None}),
    )
]


def test_this_file_covers_every_objective():
    assert {objective.name for objective in VARIANTS} == set(OBJECTIVES)


@st.composite
def documents(draw):
    """Any ids from 256: random over small and large alphabets, constant, or periodic."""
    size = draw(st.integers(0, 400))
    alphabet = draw(st.sampled_from([1, 2, 5, 50, 5000, 60000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ids = rng.integers(0, alphabet, size)
    if draw(st.booleans()):
        ids = np.resize(ids[: draw(st.integers(1, 20))], size) if size else ids
    return (ids + v.NUM_SPECIAL_TOKENS).astype(draw(st.sampled_from([np.int32, np.int64, np.uint16])))


def specials(tokens):
    return [token for token in tokens.tolist() if token < v.NUM_SPECIAL_TOKENS]


def texts(tokens):
    return [token for token in tokens.tolist() if token >= v.NUM_SPECIAL_TOKENS]


def segments(tokens):
    """Split at special tokens: [(special token before the text, or None for the first, text)]."""
    parts = [(None, [])]
    for token in tokens.tolist():
        if token < v.NUM_SPECIAL_TOKENS:
            parts.append((token, []))
        else:
            parts[-1][1].append(token)
    return parts


def recovered(objective, made, ends_document, text):
    """Undo the format from the tokens alone. Check the places of the special tokens."""
    name, context, target = objective.name, made.context, made.target
    marker = [] if objective.marker is None else [objective.marker]
    end = [v.END] if ends_document else []
    context_specials, target_specials = specials(context), specials(target)
    assert (made.labels is not None) == (name == "masked_lm")
    if made.labels is not None:
        assert not target_specials
        assert context_specials == [
            *marker,
            *[v.MASK] * (len(context_specials) - len(marker) - 1),
            v.SEPARATOR,
        ]
        return texts(np.where(made.labels == NO_LABEL, context, made.labels))
    if marker:
        assert context[0] == marker[0]
    if name in ("causal_lm", "prefix_lm"):
        assert (context_specials, target_specials) == (marker, end)
        assert not ends_document or target[-1] == v.END
        return texts(context) + texts(target)
    if name == "fill_in_the_middle":
        assert len(context) == 0
        parts = dict(segments(target)[1:])
        assert target_specials[2:] == [v.MIDDLE, v.END]
        assert sorted(target_specials[:2]) == [v.MIDDLE_PREFIX, v.MIDDLE_SUFFIX]
        assert parts[v.END] == []
        return parts[v.MIDDLE_PREFIX] + parts[v.MIDDLE] + parts[v.MIDDLE_SUFFIX]
    if name == "selective_copying":
        # test_selective_copying.py parses the queries and answers.
        queries = (len(context_specials) - len(marker) - 1) // 2
        query_tokens = [v.SPAN_START, v.SPAN_END] * queries
        if objective.query_first:
            assert context_specials == [*marker, *query_tokens, v.CONTEXT]
        else:
            assert context_specials == [*marker, v.CONTEXT, *query_tokens]
        assert target_specials == [v.SEPARATOR] * (queries - 1) + [v.DONE]
        assert target[-1] == v.DONE
        return dict(segments(context))[v.CONTEXT]
    assert target[-1] == v.END
    if name == "span_corruption":
        sentinels = context_specials[len(marker) :]
        assert sentinels == list(range(v.FIRST_SENTINEL, v.FIRST_SENTINEL + len(sentinels)))
        assert target_specials == [*sentinels, v.END]
        cut = dict(segments(target))
        kept = segments(context)
        return [token for special, part in kept for token in cut.get(special, []) + part]
    assert target_specials == [v.END]
    inside = context_specials[len(marker) :]
    if name == "full_span_corruption":
        assert inside == list(range(v.FIRST_SENTINEL, v.FIRST_SENTINEL + len(inside)))
        kept = [part for _, part in segments(context) if part]
        assert len(kept) == len(inside)
    elif name == "full_span_corruption_deshuffling":
        assert sorted(inside) == list(range(v.FIRST_SENTINEL, v.FIRST_SENTINEL + len(inside)))
        assert not set(texts(context)) - set(text)
    else:
        assert inside == []
        assert sorted(texts(context)) == sorted(texts(target))
    return texts(target)


@pytest.mark.parametrize("objective", VARIANTS, ids=repr)
@given(
    document=documents(),
    seed=st.integers(0, 2**32 - 1),
    length=st.sampled_from([8, 40, 64, 200, 512, 2048, None]),
    ends_document=st.booleans(),
)
@example(document=np.full(400, 256, np.int32), seed=0, length=512, ends_document=True)
@example(document=np.arange(300, 700, dtype=np.int32), seed=0, length=512, ends_document=True)
@example(document=np.arange(300, 700, dtype=np.int32), seed=1, length=None, ends_document=False)
def test_an_example_follows_its_format_and_fits(objective, document, seed, length, ends_document):
    before = document.copy()
    limit = objective.text_limit(10**6 if length is None else length)
    possible = min(len(document), limit) >= objective.minimum_tokens
    try:
        made = objective(document, np.random.default_rng(seed), ends_document, length)
    except UnsuitableText:
        assert not possible or objective.name == "selective_copying"
        return
    assert possible
    np.testing.assert_array_equal(document, before)
    assert made.context.dtype == made.target.dtype == np.int32
    assert len(made.target) > 0 or (made.labels != NO_LABEL).any()
    assert length is None or len(made.context) + len(made.target) <= length

    again = objective(document, np.random.default_rng(seed), ends_document, length)
    np.testing.assert_array_equal(made.context, again.context)
    np.testing.assert_array_equal(made.target, again.target)
    np.testing.assert_array_equal(made.labels, again.labels)

    count = objective.draw_length(len(document), np.random.default_rng(seed), length)
    assert objective.minimum_tokens <= count <= min(len(document), limit, objective.max_length or limit)
    text = document[:count].tolist()
    ended = ends_document and count == len(document)
    assert recovered(objective, made, ended, text) == text
    if objective.has_context:
        written = set(specials(made.target)) | ({v.END} if objective.name == "prefix_lm" else set())
        assert objective.in_place or set(objective.answer_special_tokens(made.context)) == written


@pytest.mark.parametrize("objective", VARIANTS, ids=repr)
@pytest.mark.parametrize("length", [0, 3, 30, 128, 256, 777, 2048])
def test_every_count_up_to_text_limit_fits(objective, length):
    limit = objective.text_limit(length)
    rng = np.random.default_rng(length)
    text = np.arange(256, 256 + limit, dtype=np.int32)
    for count in {objective.minimum_tokens, limit // 2, limit - 1, limit}:
        if objective.minimum_tokens <= count <= limit:
            made = objective.build(text[:count], rng, ends_document=True)
            assert len(made.context) + len(made.target) <= length


@pytest.mark.parametrize("objective", VARIANTS, ids=repr)
@pytest.mark.parametrize("length", [40, 256, 777])
def test_text_limit_is_the_maximum(objective, length):
    count = objective.text_limit(length) + 1
    if objective.name == "selective_copying":
        spans, piece = objective.spans[1], objective.span_length[1] + 12
        assert objective.marker_length + 1 + count + spans * (piece + 3) > length
        return
    if count < objective.minimum_tokens:
        return
    text = np.arange(256, 256 + count, dtype=np.int32)
    try:
        made = objective.build(text, np.random.default_rng(0), ends_document=True)
    except UnsuitableText as error:
        assert str(error).endswith("there are 192 sentinels")
    else:
        assert len(made.context) + len(made.target) > length


@pytest.mark.parametrize("name", ["deshuffling", "copying", "selective_copying"])
def test_lengths_are_drawn_from_the_whole_range(name):
    objective = make_objective(name, min_length=120, max_length=130)
    rng = np.random.default_rng(0)
    assert {objective.draw_length(500, rng, 2048) for _ in range(300)} == set(range(120, 131))
    assert {objective.draw_length(125, rng, 2048) for _ in range(300)} == set(range(120, 126))


@pytest.mark.parametrize("name", ["causal_lm", "prefix_lm", "span_corruption", "fill_in_the_middle"])
def test_draw_length_returns_the_maximum(name):
    objective = make_objective(name, min_length=20, max_length=130)
    rng = np.random.default_rng(0)
    assert objective.draw_length(500, rng, 2048) == 130
    assert objective.draw_length(77, rng, 2048) == 77
    assert objective.draw_length(500, rng, 100) == objective.text_limit(100) < 100


def test_end_follows_only_a_whole_document():
    objective = make_objective("causal_lm")
    text = np.arange(256, 356)
    rng = np.random.default_rng(0)
    assert objective(text, rng, ends_document=True, length=101).target[-1] == v.END
    assert objective(text, rng, ends_document=True, length=100).target[-1] == 354
    assert objective(text, rng, ends_document=False, length=101).target[-1] == 355


def test_short_texts_and_rows_are_refused():
    objective = make_objective("copying", min_length=16)
    rng = np.random.default_rng(0)
    text = np.arange(256, 271)
    short = "copying: the text has 15 tokens; it needs at least 16"
    for refused in (lambda: objective(text, rng), lambda: objective.build(text, rng)):
        with pytest.raises(UnsuitableText) as error:
            refused()
        assert str(error.value) == short
    with pytest.raises(UnsuitableText) as error:
        objective(np.arange(256, 300), rng, length=32)
    assert str(error.value) == "copying: rows of 32 hold 15 tokens of its text; it needs at least 16"
