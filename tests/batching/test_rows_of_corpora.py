"""Rows of several corpora: exact shares, arms that read some corpora, and the saved state."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from birdie_jax.batching import RowSettings, RowStream, StreamLayout, packed_length
from birdie_jax.batching.stream_state import carry_over
from birdie_jax.objectives import make_mixture, mixture_from_arms
from birdie_jax.text import TokenShards
from birdie_jax.text.corpora import Corpora

_TINY = make_mixture("tiny", 256)
_SETTINGS = RowSettings(seed=3, rows=2, length=256, spacing=3, lookahead=6)
_OWN = mixture_from_arms(
    {
        "all": {"objective": "causal_lm"},
        "first": {"objective": "copying", "corpora": "a"},
        "outer": {"objective": "prefix_lm", "corpora": ["a", "c"]},
    }
)


@pytest.fixture(scope="module")
def texts(long_folder, short_folder):
    return [
        TokenShards(folder, split)
        for folder in (long_folder, short_folder)
        for split in ("train", "validation")
    ]


@pytest.fixture(scope="module")
def corpora(texts):
    return Corpora(("a", "b", "c"), tuple(texts[:3]), (5.0, 3.0, 2.0))


def make_stream(text, mixture=_TINY, row=0, state=None, weights=None):
    stream = RowStream(text, mixture.arms, _SETTINGS, row, state)
    stream.set_mixture(mixture.weights if weights is None else weights)
    return stream


def draw(stream, rows=20):
    return [
        [
            (example.corpus, example.arm, example.context.tolist(), example.target.tolist())
            for example in stream.next_row()
        ]
        for _ in range(rows)
    ]


def positions_by_corpus(stream, rows, arms=None):
    counts = np.zeros(3)
    for _ in range(rows):
        for example in stream.next_row():
            if arms is None or example.arm in arms:
                counts[example.corpus] += packed_length(example)
    return counts


def test_a_single_text_is_the_only_corpus(texts):
    stream = make_stream(texts[0])
    assert draw(stream) == draw(make_stream(Corpora.of(texts[0])))
    # The state of a run without corpora keeps its format.
    assert stream.state().shape == (3 + 3 * _SETTINGS.lookahead,)
    assert Corpora.of(texts[0]).sha256 == texts[0].manifest.sha256


@settings(max_examples=8, deadline=None)
@given(weights=st.lists(st.floats(0.05, 2000), min_size=3, max_size=3), row=st.integers(0, 1))
def test_each_row_has_the_shares_given_by_the_weights(texts, weights, row):
    rows = 150
    counts = positions_by_corpus(
        make_stream(Corpora(("a", "b", "c"), tuple(texts[:3]), tuple(weights)), row=row), rows
    )
    # A row begins with a random corpus, and some drawn examples are still in the buffer.
    slack = (2 + _SETTINGS.lookahead) * _SETTINGS.length
    np.testing.assert_allclose(counts, counts.sum() * np.array(weights) / sum(weights), atol=slack)


@pytest.mark.parametrize("factor", [1 / 64, 64])
def test_only_ratios_of_weights_count(corpora, factor):
    scaled = corpora._replace(weights=tuple(factor * weight for weight in corpora.weights))
    for row in range(2):
        assert draw(make_stream(scaled, row=row)) == draw(make_stream(corpora, row=row))


def test_an_arm_reads_only_its_own_corpora(corpora):
    stream = make_stream(corpora, _OWN)
    counts = np.zeros((3, 3))
    for _ in range(300):
        for example in stream.next_row():
            counts[example.arm, example.corpus] += packed_length(example)
    shares = counts / counts.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shares[0], [0.5, 0.3, 0.2], atol=0.05)
    np.testing.assert_array_equal(shares[1], [1, 0, 0])
    np.testing.assert_allclose(shares[2], [5 / 7, 0, 2 / 7], atol=0.05)


@pytest.mark.parametrize("weights", [None, np.array([0.1, 0.8, 0.1])])
def test_a_restored_stream_continues_exactly(corpora, weights):
    """With the earlier mixture, and with a new one whose arms draw the buffered examples again."""
    stream = make_stream(corpora, _OWN)
    draw(stream, 7)
    restored = RowStream(corpora, _OWN.arms, _SETTINGS, 0, stream.state())
    restored.set_mixture(_OWN.weights if weights is None else weights)
    if weights is not None:
        stream.set_mixture(weights)
    np.testing.assert_array_equal(restored.state(), stream.state())
    assert draw(restored) == draw(stream)
    np.testing.assert_array_equal(restored.state(), stream.state())


def test_rows_do_not_all_begin_with_the_same_corpus(corpora):
    first = {make_stream(corpora, row=row).next_row()[0].corpus for row in range(12)}
    assert first == {0, 1, 2}


def test_the_order_of_a_corpus_depends_only_on_its_name(texts):
    def order(names):
        stream = make_stream(Corpora(names, tuple(texts[:1] * 2), (1.0, 1.0)))
        return {
            name: [stream._place(corpus, record) for record in range(9)]
            for corpus, name in enumerate(names)
        }

    one, other = order(("x", "y")), order(("u", "x"))
    assert one["x"] == other["x"] != one["y"]


def test_a_branch_with_another_corpus_continues_at_its_positions(corpora, texts):
    before = StreamLayout.of(corpora.names, _TINY.arms, _SETTINGS.lookahead)
    stream = make_stream(corpora)
    draw(stream, 30)
    more = Corpora(("a", "aa", "b", "c"), (texts[0], texts[3], *texts[1:3]), (1.0, 1.0, 1.0, 1.0))
    after = StreamLayout.of(more.names, _TINY.arms, _SETTINGS.lookahead)
    moved = RowStream(more, _TINY.arms, _SETTINGS, 0, carry_over(stream.state(), before, after))
    assert [cursor[:2] for cursor in moved._cursors] == [
        *(cursor[:2] for cursor in stream._cursors[:1]),
        (0, 0),
        *(cursor[:2] for cursor in stream._cursors[1:]),
    ]
    assert moved._buffered_indices() == []
    moved.set_mixture(_TINY.weights)
    counts = np.zeros(4)
    for _ in range(150):
        for example in moved.next_row():
            counts[example.corpus] += packed_length(example)
    np.testing.assert_allclose(counts / counts.sum(), 0.25, atol=0.05)


def test_epochs_are_counted_for_each_text(corpora):
    stream = make_stream(corpora)
    draw(stream, 60)
    layout = StreamLayout.of(corpora.names, _TINY.arms, _SETTINGS.lookahead)
    epochs = layout.epochs(stream.state(), _SETTINGS.rows, [len(text) for text in corpora.texts])
    read = np.array(stream.tokens_read) * _SETTINGS.rows / [text.num_tokens for text in corpora.texts]
    np.testing.assert_allclose(epochs, read, rtol=0.35, atol=0.15)
