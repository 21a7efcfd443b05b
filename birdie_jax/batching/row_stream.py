"""One endless stream of packed rows: a pure function of (seed, row, mixture history)."""

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from grain.experimental import index_shuffle
from jaxtyping import Float64, Int64

from birdie_jax.batching.packing import packed_length
from birdie_jax.batching.stream_state import NOTHING, RecordCursor, StreamLayout, pool_of
from birdie_jax.errors import ConfigError, DataError, UnsuitableText
from birdie_jax.objectives import Arm, Example, Objective
from birdie_jax.text import TokenRecord
from birdie_jax.text.corpora import Corpora, RowText

_SHUFFLE_ROUNDS = 4
# For text in a bucket, request records for at most this many rows ahead.
_ROWS_AHEAD = 2
_MAX_RECORDS_AHEAD = 32
# An example may be cut to the room left in a row, but not below _MIN_TEXT_SHARE of the text that it
# requested, and only if at most _MAX_FREE_SHARE of the buffer is free.
_MIN_TEXT_SHARE = 0.25
_MAX_FREE_SHARE = 0.25


class BufferedExample(NamedTuple):
    """A drawn example that waits for a row with enough room.

    Attributes:
        index: the number of the example within the row's stream.
        cursor: the start of its text.
        example: the example itself.
    """

    index: int
    cursor: RecordCursor
    example: Example

    @property
    def length(self) -> int:
        """The number of positions of the example."""
        return packed_length(self.example)


class _BegunExample(NamedTuple):
    """An example with only its arm drawn.

    Attributes:
        index: the number of the example within the row's stream.
        arm: the number of its arm.
        rng: the generator for the rest of the example.
    """

    index: int
    arm: int
    rng: np.random.Generator


class RowSettings(NamedTuple):
    """The settings that all rows of a run share.

    Attributes:
        seed: the seed of the run.
        rows: the number of rows of the global batch; row r reads every rows-th record of the shuffled text.
        length: the number of positions in a row.
        spacing: the number of padding positions between two samples.
        lookahead: the maximum number of buffered examples.
    """

    seed: int
    rows: int
    length: int
    spacing: int
    lookahead: int


class RowStream:
    """Draws examples from the text under the current mixture, and fills rows with them.

    Example i of row r is a function of (seed, r, i, the start of its text, the mixture, the room it must
    fit). The text is read record by record, in an order that is reshuffled every epoch. An example that
    does not fit the current row is buffered. A buffered example was drawn for a whole row, so a checkpoint
    saves only its index and its cursor. When the mixture changes, buffered examples are drawn again under
    the new mixture. So the first row after a decision contains nothing of the old mixture, and a restored
    stream continues exactly where it was saved.

    An example's arm depends neither on the text nor on the room, and every drawn example is placed in a row
    once. So the arms' shares of the examples equal the mixture.

    If an arm reads several corpora, an example reads the one with the fewest positions relative to its
    weight. So in each row, the shares of the corpora differ from their weights by at most the lengths of a
    few examples. An example that is drawn again is not counted again.

    Attributes:
        tokens_read: the number of tokens of each corpus that this object has read.
    """

    def __init__(
        self,
        text: RowText,
        arms: tuple[Arm, ...],
        settings: RowSettings,
        row: int,
        state: Int64[np.ndarray, " state"] | None = None,
    ):
        """Start the stream of row `row`, or restore it from a saved `state`.

        Raises:
            ConfigError: an arm cannot use the tokenizer of the text.
        """
        corpora = Corpora.of(text)
        self._texts = corpora.texts
        self._weights = corpora.weights
        self._salts = [(zlib.crc32(name.encode()),) if name else () for name in corpora.names]
        self._objectives = [_objective_for(arm, self._texts[0].num_pieces) for arm in arms]
        self._pools = [pool_of(arm, corpora.names) for arm in arms]
        self._layout = StreamLayout.of(corpora.names, arms, settings.lookahead)
        self._nothing = self._layout.initial()
        # Positions that count as drawn, so different rows begin with different corpora.
        phases = np.random.Generator(np.random.Philox(key=[settings.seed, 1], counter=[0, 0, row, 0]))
        self._phases = settings.length * phases.random(len(corpora.names))
        self.tokens_read = [0] * len(corpora.names)
        self._arms = arms
        self._settings = settings
        self._row = row
        self._cumulative: Float64[np.ndarray, " arms"] | None = None
        self._record_read: tuple[int, int] | None = None
        self._record = TokenRecord(np.zeros(0, np.int32), False)
        self._buffer: list[BufferedExample] = []
        # Buffered examples of a restored state, which are drawn once a mixture is set.
        self._undrawn: list[tuple[int, RecordCursor]] = []
        # For text in a bucket: the requested records that may still be read.
        self._requests: dict[tuple[int, int], Callable[[], TokenRecord]] = {}
        self._restore(self._nothing if state is None else state)
        # Request the first records now, so the requests of all rows run in parallel.
        for cursor in [*self._cursors, *(cursor for _, cursor in self._undrawn)]:
            self._request(cursor.corpus, cursor.record)

    def _restore(self, state: Int64[np.ndarray, " state"]) -> None:
        layout, corpora = self._layout, len(self._texts)
        self._next_index = int(state[0])
        cursors, drawn, buffered = np.split(
            state[1:], [layout.num_cursors, layout.num_cursors + layout.num_drawn]
        )
        self._cursors = [
            RecordCursor(record, offset, corpus)
            for corpus, (record, offset) in enumerate(cursors.reshape(-1, 2).tolist())
        ]
        counts = iter(drawn.tolist())
        self._drawn = {pool: {corpus: next(counts) for corpus in pool} for pool in layout.pools}
        for index, number, offset in buffered.reshape(-1, 3).tolist():
            if index != NOTHING:
                record, corpus = divmod(number, corpora)
                self._undrawn.append((index, RecordCursor(record, offset, corpus)))

    def state(self) -> Int64[np.ndarray, " state"]:
        """Return the state of the stream for a checkpoint (see `StreamLayout`)."""
        layout, corpora = self._layout, len(self._texts)
        state = self._nothing.copy()
        known = [self._next_index]
        for cursor in self._cursors:
            known += cursor[:2]
        for pool in layout.pools:
            known += self._drawn[pool].values()
        for index, cursor in self._buffered_indices():
            known += index, cursor.record * corpora + cursor.corpus, cursor.offset
        state[: len(known)] = known
        return state

    def set_mixture(self, probabilities: Float64[np.ndarray, " arms"]) -> None:
        """Set the mixture, and draw buffered examples again under it."""
        self._cumulative = np.cumsum(probabilities)
        self._buffer = [self._draw_again(index, cursor) for index, cursor in self._buffered_indices()]
        self._undrawn = []

    def _draw_again(self, index: int, begin: RecordCursor) -> BufferedExample:
        """Draw a buffered example again, from the same text if its new arm reads that corpus."""
        begun = self._begin(index)
        if begin.corpus in self._pools[begun.arm]:
            return BufferedExample(index, begin, self._draw(begun, begin)[0])
        return self._draw_new(begun)

    def _buffered_indices(self) -> list[tuple[int, RecordCursor]]:
        return self._undrawn or [(buffered.index, buffered.cursor) for buffered in self._buffer]

    def next_row(self) -> list[Example]:
        """Return the examples of the next row.

        The oldest buffered example comes first, so none starves. Then the longest buffered example that
        fits the remaining room is added, repeatedly. If none fits, a new example is drawn, and buffered if
        it does not fit either. If the buffer is nearly full, a new example is cut to the room, provided
        that enough of it remains, and placed at once. No text is lost: the next example continues at the
        cut.

        Raises:
            DataError: the text cannot be read, or no example of the drawn arm can be made from it.
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
        drawn = self._draw_new(self._begin(self._next_index), room)
        self._next_index += 1
        return drawn

    def _draw_new(self, begun: _BegunExample, room: int | None = None) -> BufferedExample:
        """Make an example from the next text of the corpus whose turn it is."""
        pool = self._pools[begun.arm]
        drawn = self._drawn.get(pool)
        corpus = pool[0]
        if drawn:
            corpus = min(pool, key=lambda each: (drawn[each] + self._phases[each]) / self._weights[each])
        begin = self._cursors[corpus]
        example, self._cursors[corpus] = self._draw(begun, begin, room)
        buffered = BufferedExample(begun.index, begin, example)
        if drawn:
            drawn[corpus] += buffered.length
        return buffered

    def _begin(self, index: int) -> _BegunExample:
        """Draw the arm of example `index`."""
        if self._cumulative is None:
            raise ValueError("row stream: no mixture is in force yet; call set_mixture first")
        rng = np.random.Generator(
            np.random.Philox(key=[self._settings.seed, 0], counter=[0, 0, self._row, index])
        )
        share = rng.random() * self._cumulative[-1]
        arm = min(int(np.searchsorted(self._cumulative, share, side="right")), len(self._arms) - 1)
        return _BegunExample(index, arm, rng)

    def _draw(
        self, begun: _BegunExample, begin: RecordCursor, room: int | None = None
    ) -> tuple[Example, RecordCursor]:
        """Make an example of the text at `begin`; return it and the cursor after its text.

        If the example is longer than `room`, it is the one that would be made for a whole row.
        """
        settings, corpus = self._settings, begin.corpus
        _, number, rng = begun
        objective, text = self._objectives[number], self._texts[corpus]
        cursor = begin
        last_record = cursor.record + 1 + len(text)
        refusal: UnsuitableText | None = None
        while True:
            if cursor.record > last_record:
                # Every epoch has a new order, so these records may not include all records of the text.
                if not self._suits_any_record(begun, corpus):
                    break
                last_record += len(text)
            record = self._read(corpus, cursor.record)
            available = len(record.tokens) - cursor.offset
            try:
                count = objective.draw_length(available, rng, settings.length)
            except UnsuitableText as error:
                refusal = error
                cursor = RecordCursor(cursor.record + 1, 0, corpus)
                self.tokens_read[corpus] += available
                continue
            whole = count
            if room is not None:
                count = _cut_to_room(objective, whole, room)
            end = cursor.offset + count
            piece = record.tokens[cursor.offset : end]
            is_last = end == len(record.tokens)
            after = RecordCursor(*((cursor.record + 1, 0) if is_last else (cursor.record, end)), corpus)
            self.tokens_read[corpus] += count
            try:
                example = objective.build(piece, rng, record.ends_document and is_last)
            except UnsuitableText as error:
                if count < whole:
                    # The example may be buffered, so it must equal the one drawn for a whole row.
                    return self._draw(self._begin(begun.index), begin)
                refusal = error
                cursor = after
                continue
            return replace(example, arm=number, corpus=corpus), after
        raise DataError(
            f"{text.directory}: no {text.split} record makes an example of arm "
            f"{self._arms[number].name!r} (tried {len(text)}): {refusal}"
        )

    def _suits_any_record(self, begun: _BegunExample, corpus: int) -> bool:
        """Return whether the drawn arm can make an example from the beginning of any record of a text."""
        rng = self._begin(begun.index).rng
        for record in self._texts[corpus]:
            try:
                self._objectives[begun.arm](record.tokens, rng, record.ends_document, self._settings.length)
            except UnsuitableText:
                continue
            return True
        return False

    def _read(self, corpus: int, number: int) -> TokenRecord:
        if (corpus, number) != self._record_read:
            text = self._texts[corpus]
            if text.is_remote:
                self._request_around(corpus, number)
            requested = self._requests.get((corpus, number))
            self._record = requested() if requested else text[self._place(corpus, number)]
            self._record_read = corpus, number
        return self._record

    def _place(self, corpus: int, number: int) -> int:
        """Return the index within a text of the `number`-th record that this row reads."""
        settings, size = self._settings, len(self._texts[corpus])
        epoch, place = divmod(number * settings.rows + self._row, size)
        entropy = (settings.seed, epoch, *self._salts[corpus])
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        return index_shuffle(place, size - 1, seed, _SHUFFLE_ROUNDS)

    def _request_around(self, corpus: int, number: int) -> None:
        """Request record `number` of a text and the next ones; drop requests that are no longer needed."""
        text = self._texts[corpus]
        tokens_a_record = max(1, text.num_tokens // len(text))
        records = min(_MAX_RECORDS_AHEAD, 1 + _ROWS_AHEAD * self._settings.length // tokens_a_record)
        for ahead in range(number, number + 1 + records):
            self._request(corpus, ahead)
        # A new mixture draws buffered examples again, so their records are still needed.
        cursors = [self._cursors[corpus], *(cursor for _, cursor in self._buffered_indices())]
        oldest = min(number, *(cursor.record for cursor in cursors if cursor.corpus == corpus))
        for past in [each for each in self._requests if each[0] == corpus and each[1] < oldest]:
            del self._requests[past]

    def _request(self, corpus: int, number: int) -> None:
        text = self._texts[corpus]
        if text.is_remote and (corpus, number) not in self._requests:
            request = text.request(self._place(corpus, number))
            if request:
                self._requests[corpus, number] = request


def _objective_for(arm: Arm, num_pieces: int) -> Objective:
    """Return the objective of an arm for the vocabulary of the text's tokenizer."""
    try:
        return arm.objective.with_vocabulary(num_pieces)
    except ValueError as error:
        raise ConfigError(f"config.objectives: arm {arm.name!r}: {error}") from error


def _cut_to_room(objective: Objective, count: int, room: int) -> int:
    """Return how many of `count` tokens of text to read for an example in `room` positions."""
    limit = objective.text_limit(room)
    return limit if max(objective.minimum_tokens, count * _MIN_TEXT_SHARE) <= limit < count else count
