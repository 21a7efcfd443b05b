"""The public operation: argument checks, the choice of an implementation, and the derivative."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pallas_kernels.linear_scan import xla

IMPLEMENTATIONS = ("xla",)


def linear_scan(
    a: Float[Array, "batch length channels"],
    x: Float[Array, "batch length channels"],
    *,
    h0: Float[Array, "batch channels"] | None = None,
    reverse: bool = False,
    reset: Bool[Array, "batch length"] | None = None,
    implementation: str | None = None,
) -> Float[Array, "batch length channels"]:
    """Diagonal linear recurrence h[:, t] = a[:, t] * h[:, t-1] + x[:, t].

    The carry is float32 for every input type; the result has the type of `x`. With `reverse` the sequence
    is read from its end: h[:, t] = a[:, t] * h[:, t+1] + x[:, t].

    The derivative is the same recurrence run the other way (Martin and Cundy 2018, section 2.2): with
    g[t] = dh[t] + a[t+1] * g[t+1], dx = g and da[t] = g[t] * h[t-1].

    Args:
        a: decay of the state at each step.
        x: what is added to the state at each step.
        h0: state before the first step read (before the last token where `reverse`); zero if None.
        reverse: read the sequence from its end.
        reset: where true, a[:, t] counts as zero: nothing enters t from the step before.
        implementation: one of `IMPLEMENTATIONS`, or None for the best one on the platform compiled for.

    Raises:
        ValueError: shapes differ, or the implementation is unknown.
    """
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"linear_scan: implementation {implementation!r} is unknown; allowed: None, "
            + ", ".join(map(repr, IMPLEMENTATIONS))
        )
    if a.shape != x.shape or a.ndim != 3:
        raise ValueError(
            "linear_scan: a and x must both be [batch, length, channels]; "
            f"found a {tuple(a.shape)} and x {tuple(x.shape)}"
        )
    if h0 is not None and h0.shape != (a.shape[0], a.shape[2]):
        raise ValueError(
            f"linear_scan: h0 must be [batch, channels] = {(a.shape[0], a.shape[2])}; "
            f"found {tuple(h0.shape)}"
        )
    if reset is not None:
        if reset.shape != a.shape[:2]:
            raise ValueError(
                f"linear_scan: reset must be [batch, length] = {a.shape[:2]}; found {tuple(reset.shape)}"
            )
        a = jnp.where(reset[..., None], jnp.zeros_like(a), a)
    if h0 is None:
        h0 = jnp.zeros((a.shape[0], a.shape[2]), jnp.float32)
    return _scan(reverse, a, x, h0)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scan(reverse, a, x, h0):
    return xla.forward(a, x, h0, reverse=reverse)


def _scan_forward(reverse, a, x, h0):
    h = xla.forward(a, x, h0, reverse=reverse)
    return h, (a, h, h0)


def _scan_backward(reverse, residuals, dh):
    a, h, h0 = residuals
    da, dx, dh0 = xla.backward(a, h, h0, dh, reverse=reverse)
    return da, dx.astype(h.dtype), dh0.astype(h0.dtype)


_scan.defvjp(_scan_forward, _scan_backward)
