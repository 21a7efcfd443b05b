"""Examples to packed rows to the global batch: packing, row streams, the resumable pipeline."""

from birdie_jax.batching.mixture_board import MixtureBoard
from birdie_jax.batching.packing import layout_example, pack_rows, packed_length
from birdie_jax.batching.pipeline import MadeBatch, RowStreams, first_positions, prefetched
from birdie_jax.batching.row_stream import RowSettings, RowStream
from birdie_jax.batching.validation import in_chunks, validation_batches

__all__ = [
    "MadeBatch",
    "MixtureBoard",
    "RowSettings",
    "RowStream",
    "RowStreams",
    "first_positions",
    "in_chunks",
    "layout_example",
    "pack_rows",
    "packed_length",
    "prefetched",
    "validation_batches",
]
