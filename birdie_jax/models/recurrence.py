"""What every recurrent mixer shares: the scan in the directions that a layout allows, and its cache."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from birdie_jax.array_types import RowState, StateSequence
from birdie_jax.models.layout import Layout
from birdie_jax.models.over_devices import over_devices
from pallas_kernels.linear_scan import bidirectional_scan, linear_scan


class RecurrentCache(NamedTuple):
    """What decoding carries from token to token, of constant size.

    Attributes:
        state: float32, the forward channels after the last token (all N of them in a causal model).
        conv_tail: the last conv_width - 1 inputs of the convolution; no time steps where there is none.
    """

    state: RowState
    conv_tail: Float[Array, "rows tail channels"]

    def after(self, h: StateSequence, conv_tail: Float[Array, "rows tail channels"]) -> "RecurrentCache":
        """Return the cache that continues after the last token of `h`."""
        return RecurrentCache(h[:, -1, : self.state.shape[-1]].astype(jnp.float32), conv_tail)


def empty_recurrent_cache(
    rows: int, channels: int, tail: tuple[int, int], dtype: jnp.dtype
) -> RecurrentCache:
    """Return the cache of `rows` new samples: `channels` run forward, `tail` is steps and channels."""
    return RecurrentCache(
        state=jnp.zeros((rows, channels), jnp.float32), conv_tail=jnp.zeros((rows, *tail), dtype)
    )


def scan_states(
    a: StateSequence,
    x: StateSequence,
    layout: Layout,
    initial: Float[Array, "rows forward"] | None,
    *,
    bidirectional: bool,
    implementation: str | None,
) -> StateSequence:
    """Return h_t = a_t * h_{t-1} + x_t, cut where `layout` has its resets.

    Where `bidirectional`, the second half of the channels runs in reverse (Birdie paper, section 3.1):
    h_t = a_t * h_{t+1} + x_t, with a_t taken as zero at a reverse reset.

    Args:
        a: decay of the state at each token.
        x: what is added to the state at each token.
        layout: where information may flow.
        initial: state of the forward channels before the first token; zero if None.
        bidirectional: whether the second half of the channels runs in reverse.
        implementation: of `pallas_kernels.linear_scan`; None = the best one for the platform.
    """
    if not bidirectional:

        def scan(a, x, initial, reset):
            return linear_scan(a, x, h0=initial, reset=reset, implementation=implementation)

        return over_devices(scan, a, x, initial, layout.forward_reset)

    if initial is not None:
        # What comes after the last token is not there yet: the channels in reverse start from nothing.
        initial = jnp.concatenate([initial, jnp.zeros_like(initial)], axis=-1)

    def scan_both_ways(a, x, initial, forward_reset, reverse_reset):
        return bidirectional_scan(
            a,
            x,
            h0=initial,
            forward_reset=forward_reset,
            reverse_reset=reverse_reset,
            implementation=implementation,
        )

    return over_devices(scan_both_ways, a, x, initial, layout.forward_reset, layout.reverse_reset)
