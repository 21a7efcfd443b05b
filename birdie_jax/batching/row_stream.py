"""One endless stream of packed rows: a pure function of (seed, row, mixture history)."""

from typing import NamedTuple

import numpy as np
from grain.experimental import index_shuffle
from jaxtyping import Float64, Int64

from birdie_jax.batching.packing import packed_length
from birdie_jax.objectives import Arm, Example, Objective, UnsuitableText
from birdie_jax.text import DataError, TokenRecord, TokenShards

_SHUFFLE_ROUNDS = 4
_NOTHING = -1
# An example may be cut to the room left in a row, but not below this share of the text that it asked for,
# and only where no more than this share of the places for held examples is free.
_LEAST_TEXT = 0.25
_CUT_WHEN_FREE = 0.25


class Cursor(NamedTuple):
    """A place in the text that a row reads.

    Attributes:
        record: how many records the row has gone through.
        offset: tokens of the current record that were read.
    """

    record: int
    offset: int


class Held(NamedTuple):
    """An example that was drawn and waits for a row that it fits.

    Attributes:
        index: number of the example within the row's stream.
        cursor: where its text begins.
        example: the example itself.
    """

    index: int
    cursor: Cursor
    example: Example

    @property
    def length(self) -> int:
        """Positions that the example covers."""
        return packed_length(self.example)


class RowSettings(NamedTuple):
    """What all rows of a run share.

    Attributes:
        seed: of the run.
        rows: rows of the global batch; row r reads every rows-th record of the shuffled text.
        length: positions of a row.
        spacing: padding positions between two samples.
        lookahead: most examples that may be held back.
    """

    seed: int
    rows: int
    length: int
    spacing: int
    lookahead: int


def position_size(lookahead: int) -> int:
    """Integers in the saved position of one row."""
    return 3 + 3 * lookahead


def first_position(lookahead: int) -> Int64[np.ndarray, " position"]:
    """Return the position of a row from which nothing was drawn."""
    position = np.full(position_size(lookahead), _NOTHING, np.int64)
    position[:3] = 0
    return position


class RowStream:
    """Draws examples from the text under the mixture in force, and fills rows with them.

    Example i of row r is a function of (seed, r, i, the place where its text begins, the mixture, the room
    it must fit), and the text is read record by record in an order that is shuffled anew every epoch. An
    example that does not fit the row at hand is held back, and only the number and the place of it are
    saved: it was drawn for a whole row, and when the mixture changes, what is held is drawn again under the
    new one. So the first row after a decision already holds nothing of the old mixture, and a restored
    stream goes on exactly where the saved one was.

    An example's arm depends on neither the text nor the room, and every example that is drawn comes into a
    row once, so the arms' shares of the examples are the mixture's.
    """

    def __init__(
        self,
        text: TokenShards,
        arms: tuple[Arm, ...],
        settings: RowSettings,
        row: int,
        position: Int64[np.ndarray, " position"] | None = None,
    ):
        """Start row `row` at its beginning, or at a saved `position`."""
        self._text = text
        self._arms = arms
        self._settings = settings
        self._row = row
        self._cumulative: Float64[np.ndarray, " arms"] | None = None
        self._record_number = _NOTHING
        self._record = TokenRecord(np.zeros(0, np.int32), False)
        self._held: list[Held] = []
        self._waiting: list[tuple[int, Cursor]] = []
        if position is None:
            position = first_position(settings.lookahead)
        self._next_index = int(position[0])
        self._cursor = Cursor(int(position[1]), int(position[2]))
        for index, record, offset in position[3:].reshape(-1, 3).tolist():
            if index != _NOTHING:
                self._waiting.append((index, Cursor(record, offset)))

    def position(self) -> Int64[np.ndarray, " position"]:
        """Return where the stream stands, for a checkpoint."""
        position = first_position(self._settings.lookahead)
        position[:3] = (self._next_index, *self._cursor)
        waiting = self._waiting or [(held.index, held.cursor) for held in self._held]
        for slot, (index, cursor) in enumerate(waiting):
            position[3 + 3 * slot : 6 + 3 * slot] = (index, *cursor)
        return position

    def set_mixture(self, probabilities: Float64[np.ndarray, " arms"]) -> None:
        """Put a mixture in force, and draw what is held back again under it."""
        self._cumulative = np.cumsum(probabilities)
        waiting = self._waiting or [(held.index, held.cursor) for held in self._held]
        self._held = [Held(index, cursor, self._draw(index, cursor)[0]) for index, cursor in waiting]
        self._waiting = []

    def next_row(self) -> list[Example]:
        """Return the examples of the next row; the one held longest comes first, so that none starves.

        Then comes the longest held example that fits the room left, and so on. Where none fits, a new one
        is drawn, and held if it does not fit. Where most that may be held already are, a new one is cut to
        the room if enough of it remains, and placed at once; no text is lost, for the next example goes on
        from the cut.

        Raises:
            DataError: the text cannot be read, or cannot make an example of the arm that was drawn.
        """
        settings = self._settings
        chosen = [self._held.pop(0) if self._held else self._draw_next()]
        room = settings.length - chosen[0].length - settings.spacing
        cut_from = settings.lookahead - max(1, int(settings.lookahead * _CUT_WHEN_FREE))
        while room > 0:
            fitting = [held for held in self._held if held.length <= room]
            if fitting:
                best = max(fitting, key=lambda held: held.length)
                self._held.remove(best)
            elif len(self._held) < settings.lookahead:
                best = self._draw_next(room if len(self._held) >= cut_from else None)
                if best.length > room:
                    self._held.append(best)
                    continue
            else:
                break
            chosen.append(best)
            room -= best.length + settings.spacing
        return [held.example for held in chosen]

    def _draw_next(self, room: int | None = None) -> Held:
        index, begin = self._next_index, self._cursor
        example, self._cursor = self._draw(index, begin, room)
        self._next_index = index + 1
        return Held(index, begin, example)

    def _draw(self, index: int, begin: Cursor, room: int | None = None) -> tuple[Example, Cursor]:
        """Make example `index` of text from `begin` on; return it and where the text after it begins.

        If it is longer than `room`, it is the example that would be made for a whole row.
        """
        if self._cumulative is None:
            raise ValueError("row stream: no mixture is in force yet; call set_mixture first")
        settings = self._settings
        rng = np.random.Generator(
            np.random.Philox(key=[settings.seed, 0], counter=[0, 0, self._row, index])
        )
        share = rng.random() * self._cumulative[-1]
        number = min(int(np.searchsorted(self._cumulative, share, side="right")), len(self._arms) - 1)
        objective = self._arms[number].objective
        cursor = begin
        last_record = cursor.record + 1 + len(self._text)
        refusal: UnsuitableText | None = None
        while cursor.record <= last_record:
            record = self._read(cursor.record)
            available = len(record.tokens) - cursor.offset
            try:
                count = objective.take(available, rng, settings.length)
            except UnsuitableText as error:
                refusal = error
                cursor = Cursor(cursor.record + 1, 0)
                continue
            whole = count
            if room is not None:
                count = _cut(objective, whole, room)
            end = cursor.offset + count
            piece = record.tokens[cursor.offset : end]
            after = Cursor(cursor.record, end) if end < len(record.tokens) else Cursor(cursor.record + 1, 0)
            try:
                example = objective.build(piece, rng, record.ends_document and end == len(record.tokens))
            except UnsuitableText as error:
                if count < whole:
                    # What may come to be held must be what would be drawn for a whole row.
                    return self._draw(index, begin)
                refusal = error
                cursor = after
                continue
            return Example(example.context, example.target, number), after
        raise DataError(
            f"{self._text.directory}: no {self._text.split} record makes an example of arm "
            f"{self._arms[number].name!r} (tried {len(self._text)}): {refusal}"
        )

    def _read(self, number: int) -> TokenRecord:
        if number != self._record_number:
            settings, size = self._settings, len(self._text)
            epoch, place = divmod(number * settings.rows + self._row, size)
            seed = int(np.random.SeedSequence((settings.seed, epoch)).generate_state(1)[0])
            shuffled = index_shuffle(place, size - 1, seed, _SHUFFLE_ROUNDS)
            self._record = self._text[shuffled]
            self._record_number = number
        return self._record


def _cut(objective: Objective, count: int, room: int) -> int:
    """Return how much of `count` tokens of text to read for an example in `room` positions."""
    limit = objective.text_limit(room)
    return limit if max(objective.minimum_tokens, count * _LEAST_TEXT) <= limit < count else count
