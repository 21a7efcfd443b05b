"""`Batch`: the arrays that the host passes to the devices, with all inputs of a model."""

from typing import NamedTuple

from birdie_jax.array_types import PackedIds, PackedMask


class Batch(NamedTuple):
    """Packed samples as arrays of shape [rows, length] (or [length] for a single unpadded row).

    A sample of context c and target t covers len(c) + len(t) positions: the context, the start token, then
    the target without its last token (Birdie paper, appendix E.1). A sample with labels in place covers
    only its context. A NamedTuple is a pytree, so a Batch of NumPy arrays passes through `jax.jit`
    unchanged.

    The fields are not checked at runtime, because JAX and the planner also fill the same tuple with shapes
    or shardings.

    Attributes:
        tokens: int32, the model's inputs.
        targets: int32, labels; ignored where `loss_mask` is false.
        loss_mask: bool, true on positions with a label: the next token is in the target, or the label is in
            place.
        segment_ids: int32, 0 on padding and on the spacing between samples, 1.. = sample within the row.
        positions: int32, index within the sample, 0 on padding.
        bidirectional: bool, true on the context (the paper's attn_mask = 1), false from the start token on;
            with labels in place, true on the whole sample.
        arm_ids: int32, the objective arm of the sample, -1 on padding; with several corpora, the arm plus
            the number of arms times the number of the corpus.
    """

    tokens: PackedIds
    targets: PackedIds
    loss_mask: PackedMask
    segment_ids: PackedIds
    positions: PackedIds
    bidirectional: PackedMask
    arm_ids: PackedIds
