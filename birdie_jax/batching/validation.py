"""The fixed validation batches of each arm, made by the same path as training batches."""

import itertools
from collections.abc import Sequence

import numpy as np

from birdie_jax.batch import Batch
from birdie_jax.batching.packing import pack_rows
from birdie_jax.batching.row_stream import RowSettings, RowStream
from birdie_jax.objectives import Arm
from birdie_jax.text import TokenShards


def validation_batches(
    text: TokenShards, arms: tuple[Arm, ...], settings: RowSettings, batches_per_arm: int
) -> list[list[Batch]]:
    """Return for each arm its batches, every row filled with examples of that arm alone.

    All arms read the same rows of text. `settings.rows` is the number of rows of a validation batch.

    Raises:
        DataError: the validation text cannot make an example of an arm; the message names it.
    """
    return [
        _batches_of(text, arms, settings, np.eye(len(arms))[number], batches_per_arm)
        for number in range(len(arms))
    ]


def in_chunks(batches: Sequence[Sequence[Batch]], rows: int) -> list[Batch]:
    """Put the rows of all arms' batches under one another, and cut them into batches of `rows` rows.

    The last one is filled up with rows of padding. Sums by arm over all chunks are those over all batches.
    """
    fields = [np.concatenate(parts) for parts in zip(*itertools.chain(*batches), strict=True)]
    missing = -len(fields[0]) % rows
    padding = Batch(0, 0, False, 0, 0, False, -1)
    filled = [
        np.concatenate([field, np.full((missing, field.shape[1]), value, field.dtype)])
        for field, value in zip(fields, padding, strict=True)
    ]
    return [
        Batch(*(field[begin : begin + rows] for field in filled))
        for begin in range(0, len(filled[0]), rows)
    ]


def _batches_of(text, arms, settings, probabilities, count) -> list[Batch]:
    streams = [RowStream(text, arms, settings, row) for row in range(settings.rows)]
    for stream in streams:
        stream.set_mixture(probabilities)
    return [
        pack_rows([stream.next_row() for stream in streams], settings.length, settings.spacing)
        for _ in range(count)
    ]
