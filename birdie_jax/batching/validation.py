"""The fixed validation batches of each arm, made by the same path as training batches."""

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from birdie_jax.batch import Batch
from birdie_jax.batching.packing import empty_rows, pack_rows
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
        _make_batches(text, arms, settings, np.eye(len(arms))[number], batches_per_arm)
        for number in range(len(arms))
    ]


def split_into_chunks(batches: Sequence[Sequence[Batch]], rows: int) -> list[Batch]:
    """Concatenate the rows of all arms' batches, and split them into batches of `rows` rows.

    The last batch is filled up with padding rows. Sums by arm over all chunks are those over all batches.
    """
    fields = [np.concatenate(parts) for parts in zip(*itertools.chain(*batches), strict=True)]
    padding = empty_rows(-len(fields[0]) % rows, fields[0].shape[1])
    filled = [np.concatenate([field, rest]) for field, rest in zip(fields, padding, strict=True)]
    return [
        Batch(*(field[begin : begin + rows] for field in filled))
        for begin in range(0, len(filled[0]), rows)
    ]


def _make_batches(
    text: TokenShards,
    arms: tuple[Arm, ...],
    settings: RowSettings,
    probabilities: Float64[np.ndarray, " arms"],
    count: int,
) -> list[Batch]:
    streams = [RowStream(text, arms, settings, row) for row in range(settings.rows)]
    for stream in streams:
        stream.set_mixture(probabilities)
    return [
        pack_rows([stream.next_row() for stream in streams], settings.length, settings.spacing)
        for _ in range(count)
    ]
