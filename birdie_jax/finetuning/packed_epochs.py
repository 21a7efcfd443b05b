"""Packing of a fixed number of examples into rows; each epoch is a function of seed and lengths only.

Best fit decreasing (Johnson et al. 1974, "Worst-case performance bounds for simple one-dimensional packing
algorithms") chooses the lengths that share a row once, over the histogram of lengths, as Krell et al.
(2021, "Efficient sequence packing without cross-contamination") do for BERT. Its time depends on the number
of distinct lengths, not on the number of examples. Every epoch has the same number of rows. Each epoch
draws the place of each example among the places of its length, and the order of the rows.
"""

import bisect
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

# Separates the shuffles from other uses of the run's seed.
_SHUFFLE = 0x7061636B


class Places(NamedTuple):
    """The places of examples in packed rows, row after row.

    Attributes:
        lengths: the length of the example at each place.
        row_ends: for each row, the number of the first place after it.
    """

    lengths: Int32[np.ndarray, " examples"]
    row_ends: Int64[np.ndarray, " rows"]


class _Run(NamedTuple):
    """Consecutive examples of one length in a row."""

    length: int
    count: int
    before: "_Run | None"


def pack_lengths(lengths: Int64[np.ndarray, " examples"], row_length: int, spacing: int) -> Places:
    """Pack examples into few rows by best fit decreasing.

    Args:
        lengths: the positions of each example, at least 1 and at most `row_length`.
        row_length: the positions of a row.
        spacing: the padding positions between two examples of a row.
    """
    values, counts = np.unique(lengths, return_counts=True)
    open_rows = _OpenRows()
    for length, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        needed, left = length + spacing, count
        # Add one spacing to the room of a row, because none follows the last example.
        for room, rows, run in open_rows.take(needed, left):
            each = max(1, min(room // needed, left // rows))
            open_rows.add(room - each * needed, rows, _Run(length, each, run))
            left -= each * rows
        each = (row_length + spacing) // needed
        full, rest = divmod(left, each)
        for rows, number in ((full, each), (min(rest, 1), rest)):
            if rows:
                open_rows.add(row_length + spacing - number * needed, rows, _Run(length, number, None))
    return _places(open_rows)


class _OpenRows:
    """Open rows by their remaining room; equal rows are counted together."""

    def __init__(self):
        self._rooms: list[int] = []
        self._by_room: dict[int, list[tuple[int, _Run]]] = {}

    def add(self, room: int, rows: int, run: _Run) -> None:
        if room not in self._by_room:
            bisect.insort(self._rooms, room)
            self._by_room[room] = []
        self._by_room[room].append((rows, run))

    def take(self, needed: int, count: int) -> Iterator[tuple[int, int, _Run]]:
        """Yield (room, rows, run) of the rows that `count` examples fill, those with the least room first.

        The caller adds the filled rows before it takes the next ones. Each row takes as many examples as
        fit.
        """
        while count:
            place = bisect.bisect_left(self._rooms, needed)
            if place == len(self._rooms):
                return
            room = self._rooms[place]
            rows, run = self._by_room[room].pop()
            taken = min(rows, count)
            if rows > taken:
                self._by_room[room].append((rows - taken, run))
            elif not self._by_room[room]:
                del self._by_room[room]
                del self._rooms[place]
            count -= taken * max(1, min(room // needed, count // taken))
            yield room, taken, run

    def all(self) -> Iterator[tuple[int, _Run]]:
        for room in self._rooms:
            yield from self._by_room[room]


def _places(open_rows: _OpenRows) -> Places:
    lengths, sizes = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    for rows, last in open_rows.all():
        of_row: list[int] = []
        run: _Run | None = last
        while run is not None:
            of_row += [run.length] * run.count
            run = run.before
        lengths.append(np.tile(np.array(of_row, np.int32), rows))
        sizes.append(np.full(rows, len(of_row), np.int64))
    return Places(np.concatenate(lengths), np.cumsum(np.concatenate(sizes)))


class PackedEpochs:
    """Endless rows of example numbers; each example occurs once per epoch.

    Row n is a function of (seed, key, lengths, row length, spacing, n) only. The most recent epoch stays in
    memory and takes, with the lengths, 28 bytes per example. Read rows in order.

    Attributes:
        rows_per_epoch: the number of rows that hold every example once.
        padding_share: the share of an epoch's positions that hold padding.
    """

    def __init__(
        self,
        lengths: Int64[np.ndarray, " examples"],
        row_length: int,
        spacing: int,
        *,
        seed: int,
        key: int,
    ):
        """Pack examples of these lengths; at least one is required.

        Args:
            lengths: the positions of each example, at most `row_length`.
            row_length: the positions of a row.
            spacing: the padding positions between two examples of a row.
            seed: the seed of the run.
            key: distinguishes these epochs from others of the run.
        """
        self._lengths = lengths
        self._seed = (seed, _SHUFFLE, key)
        self._places = pack_lengths(lengths, row_length, spacing)
        self._by_length = np.argsort(self._places.lengths, kind="stable")
        self._epoch = -1
        self.rows_per_epoch = len(self._places.row_ends)
        self.padding_share = 1 - float(lengths.sum()) / (self.rows_per_epoch * row_length)

    def row(self, number: int) -> Int64[np.ndarray, " examples"]:
        """Return the numbers of the examples of a row."""
        epoch, place = divmod(number, self.rows_per_epoch)
        if epoch != self._epoch:
            self._shuffle(epoch)
        row = self._order[place]
        begin = self._places.row_ends[row - 1] if row else 0
        return self._examples[begin : self._places.row_ends[row]]

    def _shuffle(self, epoch: int) -> None:
        random = np.random.default_rng((*self._seed, epoch))
        shuffled = random.permutation(len(self._lengths))
        examples = np.empty(len(shuffled), np.int64)
        # Assign the examples of each length to the places of that length, in order.
        examples[self._by_length] = shuffled[np.argsort(self._lengths[shuffled], kind="stable")]
        self._examples = examples
        self._order = random.permutation(self.rows_per_epoch)
        self._epoch = epoch
