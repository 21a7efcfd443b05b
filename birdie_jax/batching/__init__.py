"""Packs examples into rows and rows into global batches: packing, row streams, the resumable pipeline."""

from birdie_jax.batching.mixture_history import DecisionSchedule, MixtureHistory
from birdie_jax.batching.packing import layout_example, pack_rows, packed_length
from birdie_jax.batching.pipeline import (
    BatchWithState,
    RowStreams,
    StreamStates,
    close_prefetched,
    initial_stream_states,
    prefetch_batches,
    split_into_chunks,
    validation_batches,
)
from birdie_jax.batching.row_stream import RowSettings, RowStream
from birdie_jax.batching.stream_state import StreamLayout

__all__ = [
    "BatchWithState",
    "DecisionSchedule",
    "MixtureHistory",
    "RowSettings",
    "RowStream",
    "RowStreams",
    "StreamLayout",
    "StreamStates",
    "close_prefetched",
    "initial_stream_states",
    "layout_example",
    "pack_rows",
    "packed_length",
    "prefetch_batches",
    "split_into_chunks",
    "validation_batches",
]
