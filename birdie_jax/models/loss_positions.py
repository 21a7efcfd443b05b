"""Gathers the positions of rows that have a loss, so the head is computed only for them.

In masked language modelling about 15 % of the positions have a loss, and with a large vocabulary the head
is most of a small model's cost. Shapes are static: every row has the same number of gathered positions, the
maximum that the objective allows.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from birdie_jax.array_types import Activations, TokenIds, TokenMask
from birdie_jax.models.axes import constrained, mesh_size


class GatheredShape(NamedTuple):
    """The number of gathered positions of a row, and the chunks of their logits.

    Attributes:
        capacity: the number of gathered positions of a row.
        chunk: the number of positions whose logits are in memory at a time, per device if the length is
            divided.
    """

    capacity: int
    chunk: int


class LossPositions(NamedTuple):
    """The positions of each row that have a loss, from left to right, then others up to the capacity.

    Attributes:
        index: int32 [rows, capacity], the positions.
        given: bool [rows, capacity], whether a position has a loss.
        overflow: bool [rows], whether a row has more positions with a loss than the capacity.
    """

    index: Int[Array, "rows capacity"]
    given: Bool[Array, "rows capacity"]
    overflow: Bool[Array, " rows"]

    def of_tokens(self, values: Shaped[Array, "rows length"]) -> Shaped[Array, "rows capacity"]:
        """Return the values at these positions."""
        return constrained(jnp.take_along_axis(values, self.index, axis=1), "rows", "length")

    def of_activations(self, x: Activations) -> Float[Array, "rows capacity features"]:
        """Return the features at these positions."""
        return constrained(jnp.take_along_axis(x, self.index[..., None], axis=1), "rows", "length", None)


def gathered_shape(max_loss_positions: int | None, length: int, loss_chunk: int) -> GatheredShape | None:
    """Return the shape for the positions of a row that can have a loss; None if gathering saves nothing.

    Args:
        max_loss_positions: the maximum number of positions of a row with a loss; None = all of them.
        length: the number of positions of a row.
        loss_chunk: the maximum number of positions per device whose logits are in memory at a time.
    """
    if max_loss_positions is None:
        return None
    devices = mesh_size("sequence")
    own = max(1, -(-max_loss_positions // devices))
    parts = -(-own // loss_chunk)
    chunk = -(-own // parts)
    capacity = devices * parts * chunk
    return GatheredShape(capacity, chunk) if capacity < length else None


def find_loss_positions(loss_mask: TokenMask, capacity: int) -> LossPositions:
    """Return `capacity` positions of each row, those with a loss first."""
    order: TokenIds = jnp.argsort(~loss_mask, axis=1, stable=True)
    index = order[:, :capacity].astype(jnp.int32)
    given = jnp.take_along_axis(loss_mask, index, axis=1)
    return LossPositions(index, given, jnp.sum(loss_mask, axis=1) > capacity)
