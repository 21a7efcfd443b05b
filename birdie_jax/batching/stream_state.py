"""The state of a row stream in a checkpoint: its position in each corpus, and its buffered examples."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from birdie_jax.objectives import Arm

NOTHING = -1
"""The index of an empty slot for a buffered example."""


class RecordCursor(NamedTuple):
    """The position in a text that a row reads next.

    Attributes:
        record: the number of records of the text that the row has finished.
        offset: the number of tokens of the current record that were read.
        corpus: the number of the text.
    """

    record: int
    offset: int
    corpus: int = 0


class StreamLayout(NamedTuple):
    """The meaning of the numbers in a stream's state.

    A state is an int64 array that contains, in this order:

    - the index of the next example;
    - for each corpus, the cursor (record, offset) of its next text;
    - for each pool and each of its corpora, the number of positions drawn so far;
    - for each of `lookahead` buffered examples, its index, record * corpora + corpus, and offset; -1 if the
      slot is empty.

    Attributes:
        names: the names of the corpora.
        pools: the distinct sets of corpora, as numbers, that arms read by weight.
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
        """Return the number of epochs of each text that a stream has read.

        Args:
            state: the state of the stream.
            rows: the number of rows of the global batch.
            records: the number of records of each text.
        """
        passed = state[1 : 1 + self.num_cursors : 2].tolist()
        return [rows * number / size for number, size in zip(passed, records, strict=True)]

    @property
    def num_cursors(self) -> int:
        """The number of entries for the cursors of the corpora."""
        return 2 * len(self.names)

    @property
    def num_drawn(self) -> int:
        """The number of entries for drawn positions."""
        return sum(map(len, self.pools))

    def initial(self) -> Int64[np.ndarray, " state"]:
        """Return the state of a stream before its first example."""
        begin = 1 + self.num_cursors + self.num_drawn
        state = np.full(begin + 3 * self.lookahead, NOTHING, np.int64)
        state[:begin] = 0
        return state


def carry_over(
    state: Int64[np.ndarray, " before"], before: StreamLayout, after: StreamLayout
) -> Int64[np.ndarray, " after"]:
    """Return the state of a stream that continues with other corpora, matched by name.

    A new corpus starts at its beginning. The counts of drawn positions start at zero. Buffered examples are
    dropped; otherwise the new shares would take effect only after the rows that contain them.
    """
    moved = after.initial()
    moved[0] = state[0]
    for number, name in enumerate(before.names):
        if name in after.names:
            new_number = after.names.index(name)
            moved[1 + 2 * new_number : 3 + 2 * new_number] = state[1 + 2 * number : 3 + 2 * number]
    return moved


def pool_of(arm: Arm, names: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of the corpora that an arm reads."""
    return tuple(number for number, name in enumerate(names) if not arm.corpora or name in arm.corpora)
