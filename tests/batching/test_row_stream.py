"""A row stream: its draws, its use of the text, and how full its rows are."""

import dataclasses

import numpy as np
import pytest

from birdie_jax.batching import RowSettings, RowStream, packed_length
from birdie_jax.batching.row_stream import BufferedExample
from birdie_jax.errors import ConfigError, DataError, UnsuitableText
from birdie_jax.objectives import Arm, Mixture, make_mixture, mixture_from_arms
from birdie_jax.objectives.prefix_lm import PrefixLM
from birdie_jax.text import TokenShards
from birdie_jax.vocabulary import END

_CAUSAL = make_mixture("causal_lm", 256)
_TINY = make_mixture("tiny", 256)
_SMALL = RowSettings(seed=3, rows=2, length=256, spacing=3, lookahead=6)


def _stream(text, mixture, settings, row=0, state=None) -> RowStream:
    stream = RowStream(text, mixture.arms, settings, row, state)
    stream.set_mixture(mixture.weights)
    return stream


def _record_draws(stream: RowStream, monkeypatch) -> list[BufferedExample]:
    drawn, draw_next = [], stream._draw_next

    def recorded(*room) -> BufferedExample:
        drawn.append(draw_next(*room))
        return drawn[-1]

    monkeypatch.setattr(stream, "_draw_next", recorded)
    return drawn


def _rows(stream: RowStream) -> list:
    return [
        [(example.arm, example.context.tolist(), example.target.tolist()) for example in stream.next_row()]
        for _ in range(20)
    ]


def test_rows_depend_on_the_seed_and_the_row_and_nothing_else(long_text):
    def rows(row=0, **changes):
        return _rows(_stream(long_text, _TINY, _SMALL._replace(**changes), row))

    def arms(of_rows):
        return [example[0] for row in of_rows for example in row][:16]

    def texts(of_rows):
        return {tuple(example[2]) for row in of_rows for example in row}

    first = rows()
    assert rows() == first
    for other in (rows(seed=4), rows(row=1)):
        assert arms(other) != arms(first)
        assert texts(other).isdisjoint(texts(first))


@pytest.mark.parametrize("lookahead", [0, 1, 2, 6, 12])
def test_every_drawn_example_is_placed_once_and_soon(long_text, monkeypatch, lookahead):
    stream = _stream(long_text, _TINY, _SMALL._replace(lookahead=lookahead))
    drawn = _record_draws(stream, monkeypatch)
    drawn_in, placed_in = {}, {}
    for row_number in range(150):
        known = len(drawn)
        for example in stream.next_row():
            assert id(example) not in placed_in
            placed_in[id(example)] = row_number
        drawn_in |= {id(buffered.example): row_number for buffered in drawn[known:]}
        waiting = [buffered.index for buffered in stream._buffer]
        assert len(waiting) <= lookahead
        assert stream.state()[3::3].tolist() == waiting + [-1] * (lookahead - len(waiting))
    assert [buffered.index for buffered in drawn] == list(range(len(drawn)))
    left = {id(buffered.example) for buffered in stream._buffer}
    assert left | set(placed_in) == set(drawn_in)
    assert left.isdisjoint(placed_in)
    assert max(placed_in[example] - drawn_in[example] for example in placed_in) <= lookahead


def _orders_of_two_epochs(short_log, seed: int) -> list[list[int]]:
    size, rows = len(short_log), 3
    settings = _SMALL._replace(rows=rows, seed=seed)
    epochs = [{}, {}]
    for row in range(rows):
        short_log.read = []
        stream = _stream(short_log, _CAUSAL, settings, row)
        while len(short_log.read) * rows < 2 * size + rows:
            stream.next_row()
        for number, record in enumerate(short_log.read):
            epoch, place = divmod(number * rows + row, size)
            if epoch < 2:
                epochs[epoch][place] = record
    return [[epoch[place] for place in range(size)] for epoch in epochs]


def test_every_record_is_read_once_per_epoch_in_a_new_order(short_log):
    orders = [order for seed in (3, 4) for order in _orders_of_two_epochs(short_log, seed)]
    for order in orders:
        assert sorted(order) == list(range(len(short_log)))
    assert len({tuple(order) for order in [*orders, range(len(short_log))]}) == 5


@pytest.mark.parametrize("lookahead", [0, 6])
def test_no_token_of_the_text_is_lost_or_read_twice(short_log, monkeypatch, lookahead):
    stream = _stream(short_log, _CAUSAL, _SMALL._replace(lookahead=lookahead))
    drawn = _record_draws(stream, monkeypatch)
    for _ in range(40):
        stream.next_row()
    expected = np.concatenate([np.append(short_log[record].tokens, END) for record in list(short_log.read)])
    found = np.concatenate([buffered.example.target for buffered in drawn])
    np.testing.assert_array_equal(found, expected[: len(found)])
    assert len(found) > 2000


@pytest.mark.slow
def test_arms_are_drawn_with_the_probabilities_of_the_mixture(long_text):
    probabilities = np.array([0.3, 0.0, 0.1, 0.05, 0.05, 0.25, 0.05, 0.2])
    stream = RowStream(long_text, _TINY.arms, _SMALL, 0)
    stream.set_mixture(probabilities)
    counts = np.zeros(len(probabilities))
    while counts.sum() < 4000:
        for example in stream.next_row():
            counts[example.arm] += 1

    def chi_square(chances):
        drawn, expected = counts[chances > 0], counts.sum() * chances[chances > 0]
        return float(((drawn - expected) ** 2 / expected).sum())

    # 6 degrees of freedom: above 22.5 with a probability of 0.001.
    assert counts[1] == 0
    assert chi_square(probabilities) < 22.5
    assert chi_square(np.roll(probabilities, 1)) > 100


@pytest.mark.parametrize(
    ("name", "length", "max_waste"), [("birdie", 2048, 0.05), ("tiny", 256, 0.05), ("ul2", 2048, 0.05)]
)
def test_rows_are_full(long_text, name, length, max_waste):
    settings = RowSettings(seed=0, rows=2, length=length, spacing=3, lookahead=12)
    stream = _stream(long_text, make_mixture(name, length), settings)
    rows = [stream.next_row() for _ in range(300)]
    sizes = [[packed_length(example) for example in row] for row in rows]
    assert max(sum(row) + 3 * (len(row) - 1) for row in sizes) <= length
    assert 1 - sum(map(sum, sizes)) / (len(rows) * length) < max_waste


def test_rows_are_full_even_if_most_examples_cover_three_quarters(long_text):
    probabilities = np.full(len(_TINY.arms), 0.02)
    probabilities[_TINY.names.index("prefix_lm")] = 0.86
    stream = _stream(long_text, _TINY, _SMALL._replace(lookahead=12))
    stream.set_mixture(probabilities)
    rows = [stream.next_row() for _ in range(300)]
    tokens = sum(packed_length(example) for row in rows for example in row)
    assert 1 - tokens / (len(rows) * 256) < 0.05


def test_a_cut_example_keeps_a_quarter_of_its_text_and_the_arms_minimum(long_text, monkeypatch):
    def text_tokens(example) -> int:
        return packed_length(example) - 1 - int(example.target[-1] == END)

    arms = {
        "whole": {"objective": "prefix_lm", "min_length": 192, "max_length": 192},
        "quarter": {"objective": "prefix_lm", "min_length": 20, "max_length": 200},
    }
    stream = _stream(long_text, mixture_from_arms(arms), _SMALL)
    drawn = _record_draws(stream, monkeypatch)
    for _ in range(200):
        stream.next_row()
        for buffered in stream._buffer:
            whole, _after = stream._draw(stream._begin(buffered.index), buffered.cursor)
            assert text_tokens(whole) == text_tokens(buffered.example)
    kept = {0: [], 1: []}
    for buffered in drawn:
        whole, _after = stream._draw(stream._begin(buffered.index), buffered.cursor)
        assert whole.arm == buffered.example.arm
        kept[whole.arm].append(text_tokens(buffered.example) / text_tokens(whole))
    assert set(kept[0]) == {1.0}
    assert 0.25 <= min(kept[1]) < 0.35
    assert 0.2 < np.mean(np.array(kept[1]) < 1) < 0.8


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Picky(PrefixLM):
    """Rejects half of the texts, as selective copying rejects texts without unique delimiters."""

    draws_length = True

    def assemble(self, tokens, rng, ends_document):
        if tokens.sum() % 2:
            raise UnsuitableText("picky: the sum is odd")
        return super().assemble(tokens, rng, ends_document)


def test_a_stream_restores_exactly_after_refused_cut_text(long_text):
    picky = Mixture((Arm("picky", _Picky(min_length=8, max_length=190), "picky"),))
    stream = _stream(long_text, picky, _SMALL)
    for _ in range(60):
        restored = _stream(long_text, picky, _SMALL, state=stream.state())
        expected = [(example.context.tolist(), example.target.tolist()) for example in stream.next_row()]
        found = [(example.context.tolist(), example.target.tolist()) for example in restored.next_row()]
        assert found == expected
        np.testing.assert_array_equal(restored.state(), stream.state())


def test_the_error_of_too_short_text_names_arm_split_and_minimum(short_folder):
    text = TokenShards(short_folder, "train")
    mixture = mixture_from_arms({"long_copies": {"objective": "copying", "min_length": 500}})
    stream = _stream(text, mixture, _SMALL._replace(length=2048))
    with pytest.raises(DataError) as raised:
        stream.next_row()
    message = str(raised.value)
    assert message.startswith(f"{short_folder}: no train record makes an example of arm 'long_copies'")
    assert f"(tried {len(text)})" in message
    assert message.endswith("it needs at least 500")


def test_every_row_finds_the_only_record_that_suits_an_arm(short_folder):
    """With as many rows as records, a row reads one record per epoch, drawn anew in each."""
    text = TokenShards(short_folder, "train")
    longest = text.max_record_tokens
    mixture = mixture_from_arms({"long_copies": {"objective": "copying", "min_length": longest}})
    settings = _SMALL._replace(rows=len(text), length=1024, lookahead=0)
    for row in range(8):
        (example,) = _stream(text, mixture, settings, row).next_row()
        assert len(example.target) == longest + 1


def test_the_error_of_too_short_rows_differs_from_that_of_text(long_text):
    mixture = mixture_from_arms({"long_copies": {"objective": "copying", "min_length": 500}})
    with pytest.raises(DataError, match="rows of 256 hold 127 tokens of its text; it needs at least 500"):
        _stream(long_text, mixture, _SMALL).next_row()


def test_a_stream_without_a_mixture_draws_nothing(long_text):
    with pytest.raises(ValueError, match="no mixture is in force yet"):
        RowStream(long_text, _TINY.arms, _SMALL, 0).next_row()


def test_an_arm_that_draws_unknown_pieces_is_refused(long_text):
    pieces = long_text.num_pieces
    arms = {"hide": {"objective": "masked_lm", "num_pieces": pieces + 1}}
    with pytest.raises(ConfigError) as error:
        RowStream(long_text, mixture_from_arms(arms).arms, _SMALL, 0)
    assert str(error.value) == (
        f"config.objectives: arm 'hide': masked_lm: num_pieces: found {pieces + 1}; allowed: None or at "
        f"most {pieces}, the pieces of the text's tokenizer"
    )


def _masked(examples):
    return [
        (one.arm, one.context.tolist(), None if one.labels is None else one.labels.tolist())
        for one in examples
    ]


def test_masked_lm_draws_from_the_stream_of_its_row(long_text):
    """The mixture has another arm; a restored stream continues with the same masks."""
    mixture = mixture_from_arms({"hide": {"objective": "masked_lm"}, "prefix": {"objective": "prefix_lm"}})
    stream = _stream(long_text, mixture, _SMALL)
    for _ in range(5):
        stream.next_row()
    state = stream.state()
    expected = [_masked(stream.next_row()) for _ in range(20)]
    restored = _stream(long_text, mixture, _SMALL, state=state)
    assert [_masked(restored.next_row()) for _ in range(20)] == expected
    arms = {arm: labels for row in expected for arm, _, labels in row}
    assert arms[0] is not None
    assert arms[1] is None
    # Random tokens come from the tokenizer's vocabulary, not from the text.
    assert stream._objectives[0].num_pieces == long_text.num_pieces


def test_every_epoch_masks_other_tokens(long_text):
    text = TokenShards(long_text.directory, "validation")
    mixture = make_mixture("masked_lm", 256)
    stream = _stream(text, mixture, _SMALL._replace(rows=1, lookahead=0))
    hidden: dict[tuple, set[tuple]] = {}
    for _ in range(3 * text.num_tokens // 500):
        for example in stream.next_row():
            whole = np.where(example.labels == 0, example.context, example.labels)
            hidden.setdefault(tuple(whole.tolist()), set()).add(
                tuple(np.flatnonzero(example.labels).tolist())
            )
    again = [len(places) for places in hidden.values() if len(places) > 1]
    assert len(again) > 10
    assert max(again) <= 2
