"""The state of a stream of rows in a checkpoint: its place in each corpus, and its buffered examples."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from birdie_jax.objectives import Arm

NOTHING = -1
"""The index of a buffered example that is not there."""


class RecordCursor(NamedTuple):
    """The place in a text that a row reads next.

    Attributes:
        record: the number of records of the text that the row has gone through.
        offset: the number of tokens of the current record that were read.
        corpus: the number of the text.
    """

    record: int
    offset: int
    corpus: int = 0


class StreamLayout(NamedTuple):
    """The names behind the numbers of a stream's state.

    A state is int64: the index of the next example; for each corpus the cursor (record, offset) of its next
    text; for each pool and each corpus of it the positions drawn so far; and for each buffered example its
    index and cursor, -1 where there is none, with record * corpora + corpus in place of the record.

    Attributes:
        names: the names of the corpora.
        pools: the different sets of corpora, by their numbers, that arms read by weight.
        lookahead: the maximum number of buffered examples.
    """

    names: tuple[str, ...]
    pools: tuple[tuple[int, ...], ...]
    lookahead: int

    @classmethod
    def of(cls, names: Sequence[str], arms: Sequence[Arm], lookahead: int) -> "StreamLayout":
        """Return the layout of the streams of some arms."""
        sets = {pool_of(arm, names) for arm in arms}
        return cls(tuple(names), tuple(sorted(pool for pool in sets if len(pool) > 1)), lookahead)

    def epochs(self, state: Int64[np.ndarray, " state"], rows: int, records: Sequence[int]) -> list[float]:
        """Return how often a stream has gone through each text.

        Args:
            state: the state of the stream.
            rows: the rows of the global batch.
            records: the number of records of each text.
        """
        passed = state[1 : 1 + self.num_cursors : 2].tolist()
        return [rows * number / size for number, size in zip(passed, records, strict=True)]

    @property
    def num_cursors(self) -> int:
        """The numbers of the corpora's cursors."""
        return 2 * len(self.names)

    @property
    def num_drawn(self) -> int:
        """The numbers of positions drawn."""
        return sum(map(len, self.pools))

    def initial(self) -> Int64[np.ndarray, " state"]:
        """Return the state of a stream from which nothing was drawn."""
        begin = 1 + self.num_cursors + self.num_drawn
        state = np.full(begin + 3 * self.lookahead, NOTHING, np.int64)
        state[:begin] = 0
        return state


def carry_over(
    state: Int64[np.ndarray, " before"], before: StreamLayout, after: StreamLayout
) -> Int64[np.ndarray, " after"]:
    """Return the state of a stream that continues with other corpora, matched by their names.

    A new corpus starts at its beginning, and the positions of all are counted from zero. Buffered examples
    are dropped; otherwise the new shares would wait for rows that hold them.
    """
    moved = after.initial()
    moved[0] = state[0]
    for number, name in enumerate(before.names):
        if name in after.names:
            its_new = after.names.index(name)
            moved[1 + 2 * its_new : 3 + 2 * its_new] = state[1 + 2 * number : 3 + 2 * number]
    return moved


def pool_of(arm: Arm, names: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of the corpora that an arm reads."""
    return tuple(number for number, name in enumerate(names) if not arm.corpora or name in arm.corpora)
