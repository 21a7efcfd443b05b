"""The positions of rows that bear loss, gathered, so the head is computed on them alone.

In masked language modelling some 15 % of the positions bear loss, and with a large vocabulary the head is
most of a small model's cost. Shapes are static: every row gives as many positions as a row can have at the
most, which the objective knows.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from birdie_jax.array_types import Activations, TokenIds, TokenMask
from birdie_jax.models.axes import constrained, mesh_size


class GatheredShape(NamedTuple):
    """How many positions of a row are gathered, and how their logits are computed.

    Attributes:
        capacity: the positions of a row that are gathered.
        chunk: the positions whose logits are held at a time, of each device where the length is divided.
    """

    capacity: int
    chunk: int


class LossPositions(NamedTuple):
    """The positions of each row that bear loss, from left to right, then others up to the same number.

    Attributes:
        index: int32 [rows, capacity], the positions.
        given: bool [rows, capacity], whether a position bears loss.
        overflow: bool [rows], whether a row has more positions with loss than there is room for.
    """

    index: Int[Array, "rows capacity"]
    given: Bool[Array, "rows capacity"]
    overflow: Bool[Array, " rows"]

    def of_tokens(self, values: Shaped[Array, "rows length"]) -> Shaped[Array, "rows capacity"]:
        """Return the values in these positions."""
        return constrained(jnp.take_along_axis(values, self.index, axis=1), "rows", "length")

    def of_activations(self, x: Activations) -> Float[Array, "rows capacity features"]:
        """Return the features of these positions."""
        return constrained(jnp.take_along_axis(x, self.index[..., None], axis=1), "rows", "length", None)


def gathered_shape(max_loss_positions: int | None, length: int, loss_chunk: int) -> GatheredShape | None:
    """Return the room for the positions of a row that can bear loss; None where gathering saves nothing.

    Args:
        max_loss_positions: the most positions of a row that can bear loss; None: all of them.
        length: the positions of a row.
        loss_chunk: the most positions whose logits may be held at a time, of each device.
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
    """Return where the loss is, `capacity` positions of each row."""
    order: TokenIds = jnp.argsort(~loss_mask, axis=1, stable=True)
    index = order[:, :capacity].astype(jnp.int32)
    given = jnp.take_along_axis(loss_mask, index, axis=1)
    return LossPositions(index, given, jnp.sum(loss_mask, axis=1) > capacity)
