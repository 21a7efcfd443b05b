"""The fixed validation batches of each arm, made by the same path as training batches."""

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


def _batches_of(text, arms, settings, probabilities, count) -> list[Batch]:
    streams = [RowStream(text, arms, settings, row) for row in range(settings.rows)]
    for stream in streams:
        stream.set_mixture(probabilities)
    return [
        pack_rows([stream.next_row() for stream in streams], settings.length, settings.spacing)
        for _ in range(count)
    ]
