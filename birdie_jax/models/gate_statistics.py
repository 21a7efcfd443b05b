"""Statistics of the gates and the state of a recurrent layer, recorded on request."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from birdie_jax.models.layout import Layout

COLLECTION = "gate_statistics"
"""The collection of variables with the statistics. To request them, make it mutable."""
SATURATED = 0.01
"""A decay this close to 0 or 1 is saturated: its gradient is small."""


class GateStatistics(NamedTuple):
    """The statistics of a layer: float32 scalars, or [layers] for scanned layers.

    Attributes:
        open_share: the share of decays below `SATURATED`, with which the state forgets everything.
        closed_share: the share of decays above 1 - `SATURATED`, with which the state forgets nothing.
        state_rms: the root mean square of the state after the last token that each channel read.
    """

    open_share: Float[Array, "..."]
    closed_share: Float[Array, "..."]
    state_rms: Float[Array, "..."]


def is_requested(module: nn.Module) -> bool:
    """Return whether the caller requests the statistics of a layer."""
    return module.is_mutable_collection(COLLECTION) and not module.is_initializing()


def sow_gate_statistics(
    module: nn.Module,
    decay: Float[Array, "rows length ..."],
    last: Float[Array, "rows ..."],
    layout: Layout,
) -> None:
    """Store the statistics of a layer in `COLLECTION`.

    Args:
        module: the module of the layer.
        decay: the factor of the state at each token, between 0 and 1.
        last: the state after the last token.
        layout: which positions have a token; padding does not count.
    """
    token = layout.segment_ids > 0
    count = jnp.maximum(jnp.sum(token), 1)

    def share(holds: Array) -> Array:
        # Average each token first: int32 cannot count all decays of a large batch.
        of_token = jnp.mean(holds, axis=tuple(range(2, holds.ndim)))
        return jnp.sum(jnp.where(token, of_token, 0.0)) / count

    decay = jax.lax.stop_gradient(decay)
    found = GateStatistics(
        share(decay < SATURATED), share(decay > 1 - SATURATED), jnp.sqrt(jnp.mean(jnp.square(last)))
    )
    for name, value in found._asdict().items():
        module.sow(COLLECTION, name, value, init_fn=lambda value=value: value, reduce_fn=lambda _, new: new)
