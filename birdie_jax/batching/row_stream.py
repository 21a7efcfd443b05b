"""One endless stream of packed rows: a pure function of (seed, row, mixture history)."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from grain.experimental import index_shuffle
from jaxtyping import Float64, Int64

from birdie_jax.batching.packing import packed_length
from birdie_jax.errors import ConfigError, DataError, UnsuitableText
from birdie_jax.objectives import Arm, Example, Objective
from birdie_jax.text import TokenRecord, TokenShards

_SHUFFLE_ROUNDS = 4
_NOTHING = -1
# Of text in a bucket, enough records are requested ahead for this many rows; no more records than that.
_ROWS_AHEAD = 2
_MAX_RECORDS_AHEAD = 32
# An example may be cut to the room left in a row, but not below this share of the text that it asked for,
# and only where no more than this share of the buffer is free.
_MIN_TEXT_SHARE = 0.25
_MAX_FREE_SHARE = 0.25


class RecordCursor(NamedTuple):
    """Where in the text a row goes on reading.

    Attributes:
        record: the number of records that the row has gone through.
        offset: the number of tokens of the current record that were read.
    """

    record: int
    offset: int


class BufferedExample(NamedTuple):
    """An example that was drawn and waits for a row that it fits.

    Attributes:
        index: the number of the example within the row's stream.
        cursor: where its text begins.
        example: the example itself.
    """

    index: int
    cursor: RecordCursor
    example: Example

    @property
    def length(self) -> int:
        """Positions that the example covers."""
        return packed_length(self.example)


class RowSettings(NamedTuple):
    """What all rows of a run share.

    Attributes:
        seed: the seed of the run.
        rows: the rows of the global batch; row r reads every rows-th record of the shuffled text.
        length: the positions of a row.
        spacing: the padding positions between two samples.
        lookahead: the maximum number of buffered examples.
    """

    seed: int
    rows: int
    length: int
    spacing: int
    lookahead: int


def initial_stream_state(lookahead: int) -> Int64[np.ndarray, " state"]:
    """Return the state of a stream from which nothing was drawn.

    A state is int64 [3 + 3 * lookahead]: the index of the next example and the cursor (record, offset) of
    its text, then as much for each buffered example, -1 where there is none.
    """
    state = np.full(3 + 3 * lookahead, _NOTHING, np.int64)
    state[:3] = 0
    return state


class RowStream:
    """Draws examples from the text under the mixture in force, and fills rows with them.

    Example i of row r is a function of (seed, r, i, the place where its text begins, the mixture, the room
    it must fit), and the text is read record by record in an order that is shuffled anew every epoch. An
    example that does not fit the row at hand is buffered, and only its index and its cursor are saved: it
    was drawn for a whole row, and when the mixture changes, what is buffered is drawn again under the new
    one. So the first row after a decision already has nothing of the old mixture, and a restored stream
    goes on exactly where the saved one was.

    An example's arm depends on neither the text nor the room, and every example that is drawn comes into a
    row once, so the arms' shares of the examples are the mixture's.
    """

    def __init__(
        self,
        text: TokenShards,
        arms: tuple[Arm, ...],
        settings: RowSettings,
        row: int,
        state: Int64[np.ndarray, " state"] | None = None,
    ):
        """Start row `row` at its beginning, or from a saved `state`.

        Raises:
            ConfigError: an arm does not fit the tokenizer of the text.
        """
        self._text = text
        self._objectives = [_objective_for(arm, text.num_pieces) for arm in arms]
        self._arms = arms
        self._settings = settings
        self._row = row
        self._cumulative: Float64[np.ndarray, " arms"] | None = None
        self._record_number = _NOTHING
        self._record = TokenRecord(np.zeros(0, np.int32), False)
        self._buffer: list[BufferedExample] = []
        # What a restored state had buffered, until a mixture is there to draw it under.
        self._undrawn: list[tuple[int, RecordCursor]] = []
        # Of text in a bucket: the records requested, from the first that may be read again on.
        self._requests: dict[int, Callable[[], TokenRecord]] = {}
        tokens_a_record = max(1, text.num_tokens // len(text)) if text.is_remote else 1
        self._records_ahead = min(_MAX_RECORDS_AHEAD, 1 + _ROWS_AHEAD * settings.length // tokens_a_record)
        if state is None:
            state = initial_stream_state(settings.lookahead)
        self._next_index = int(state[0])
        self._cursor = RecordCursor(int(state[1]), int(state[2]))
        for index, record, offset in state[3:].reshape(-1, 3).tolist():
            if index != _NOTHING:
                self._undrawn.append((index, RecordCursor(record, offset)))
        if text.is_remote:
            # Other rows' streams are made, and request what they begin with, before this one waits for it.
            for record in {self._cursor.record, *(cursor.record for _, cursor in self._undrawn)}:
                self._request(record)

    def state(self) -> Int64[np.ndarray, " state"]:
        """Return what a checkpoint saves of the stream (see `initial_stream_state`)."""
        state = initial_stream_state(self._settings.lookahead)
        state[:3] = (self._next_index, *self._cursor)
        for slot, (index, cursor) in enumerate(self._buffered_indices()):
            state[3 + 3 * slot : 6 + 3 * slot] = (index, *cursor)
        return state

    def set_mixture(self, probabilities: Float64[np.ndarray, " arms"]) -> None:
        """Put a mixture in force, and draw what is buffered again under it."""
        self._cumulative = np.cumsum(probabilities)
        self._buffer = [
            BufferedExample(index, cursor, self._draw(index, cursor)[0])
            for index, cursor in self._buffered_indices()
        ]
        self._undrawn = []

    def _buffered_indices(self) -> list[tuple[int, RecordCursor]]:
        return self._undrawn or [(buffered.index, buffered.cursor) for buffered in self._buffer]

    def next_row(self) -> list[Example]:
        """Return the examples of the next row; the one buffered longest comes first, so that none starves.

        Then comes the longest buffered example that fits the room left, and so on. Where none fits, a new
        one is drawn, and buffered if it does not fit. Where the buffer is nearly full, a new one is cut to
        the room if enough of it remains, and placed at once; no text is lost, for the next example goes on
        from the cut.

        Raises:
            DataError: the text cannot be read, or cannot make an example of the arm that was drawn.
        """
        settings = self._settings
        chosen = [self._buffer.pop(0) if self._buffer else self._draw_next()]
        room = settings.length - chosen[0].length - settings.spacing
        cut_from = settings.lookahead - max(1, int(settings.lookahead * _MAX_FREE_SHARE))
        while room > 0:
            fitting = [buffered for buffered in self._buffer if buffered.length <= room]
            if fitting:
                best = max(fitting, key=lambda buffered: buffered.length)
                self._buffer.remove(best)
            elif len(self._buffer) < settings.lookahead:
                best = self._draw_next(room if len(self._buffer) >= cut_from else None)
                if best.length > room:
                    self._buffer.append(best)
                    continue
            else:
                break
            chosen.append(best)
            room -= best.length + settings.spacing
        return [drawn.example for drawn in chosen]

    def _draw_next(self, room: int | None = None) -> BufferedExample:
        index, begin = self._next_index, self._cursor
        example, self._cursor = self._draw(index, begin, room)
        self._next_index = index + 1
        return BufferedExample(index, begin, example)

    def _draw(
        self, index: int, begin: RecordCursor, room: int | None = None
    ) -> tuple[Example, RecordCursor]:
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
        objective = self._objectives[number]
        cursor = begin
        last_record = cursor.record + 1 + len(self._text)
        refusal: UnsuitableText | None = None
        while cursor.record <= last_record:
            record = self._read(cursor.record)
            available = len(record.tokens) - cursor.offset
            try:
                count = objective.draw_length(available, rng, settings.length)
            except UnsuitableText as error:
                refusal = error
                cursor = RecordCursor(cursor.record + 1, 0)
                continue
            whole = count
            if room is not None:
                count = _cut_to_room(objective, whole, room)
            end = cursor.offset + count
            piece = record.tokens[cursor.offset : end]
            is_last = end == len(record.tokens)
            after = RecordCursor(cursor.record + 1, 0) if is_last else RecordCursor(cursor.record, end)
            try:
                example = objective.build(piece, rng, record.ends_document and is_last)
            except UnsuitableText as error:
                if count < whole:
                    # What may come to be buffered must be what would be drawn for a whole row.
                    return self._draw(index, begin)
                refusal = error
                cursor = after
                continue
            return replace(example, arm=number), after
        raise DataError(
            f"{self._text.directory}: no {self._text.split} record makes an example of arm "
            f"{self._arms[number].name!r} (tried {len(self._text)}): {refusal}"
        )

    def _read(self, number: int) -> TokenRecord:
        if number != self._record_number:
            if self._text.is_remote:
                self._request_around(number)
            requested = self._requests.get(number)
            self._record = requested() if requested else self._text[self._place(number)]
            self._record_number = number
        return self._record

    def _place(self, number: int) -> int:
        """Return the number within the text of the record that the row goes through as its `number`-th."""
        settings, size = self._settings, len(self._text)
        epoch, place = divmod(number * settings.rows + self._row, size)
        seed = int(np.random.SeedSequence((settings.seed, epoch)).generate_state(1)[0])
        return index_shuffle(place, size - 1, seed, _SHUFFLE_ROUNDS)

    def _request_around(self, number: int) -> None:
        """Request record `number` and the next ones; forget those that are never read again."""
        for ahead in range(number, number + 1 + self._records_ahead):
            self._request(ahead)
        # A new mixture has what is buffered drawn again, and an example that was cut short is drawn again.
        cursors = [self._cursor, *(cursor for _, cursor in self._buffered_indices())]
        oldest = min(number, *(cursor.record for cursor in cursors))
        for past in [record for record in self._requests if record < oldest]:
            del self._requests[past]

    def _request(self, number: int) -> None:
        if number not in self._requests and (request := self._text.request(self._place(number))):
            self._requests[number] = request


def _objective_for(arm: Arm, num_pieces: int) -> Objective:
    """Return an arm's objective for the tokenizer of the text."""
    try:
        return arm.objective.with_vocabulary(num_pieces)
    except ValueError as error:
        raise ConfigError(f"config.objectives: arm {arm.name!r}: {error}") from error


def _cut_to_room(objective: Objective, count: int, room: int) -> int:
    """Return how much of `count` tokens of text to read for an example in `room` positions."""
    limit = objective.text_limit(room)
    return limit if max(objective.minimum_tokens, count * _MIN_TEXT_SHARE) <= limit < count else count
