"""The public operations: argument checks, the choice of an implementation, and the derivative."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pallas_kernels.linear_scan import tpu, xla
from pallas_kernels.rematerialisation import named

IMPLEMENTATIONS: dict[str, tuple[str, ...]] = {
    "xla": ("cpu", "gpu", "tpu"),
    "pallas_tpu": ("tpu",),
    "pallas_gpu": ("attached gpu",),
    "pallas_interpret": ("cpu", "gpu", "tpu"),
}
"""The implementations and the platforms that they compile for; Mosaic GPU needs the GPU itself."""


class _StaticArguments(NamedTuple):
    """The static arguments of a compiled program.

    Attributes:
        direction: "forward", "reverse", or "both" (the second half of the channels in reverse).
        implementation: one of `IMPLEMENTATIONS`, or None.
    """

    direction: str
    implementation: str | None


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

    The carry is float32 for every input dtype; the result has the dtype of `x`. With `reverse`, the
    sequence is read from its end: h[:, t] = a[:, t] * h[:, t+1] + x[:, t].

    The derivative is the same recurrence in the other direction (Martin and Cundy 2018, section 2.2): with
    g[t] = dh[t] + a[t+1] * g[t+1], dx = g and da[t] = g[t] * h[t-1].

    Args:
        a: the decay of the state at each step.
        x: the addend of the state at each step.
        h0: the state before the first step in reading order; zero if None.
        reverse: whether to read the sequence from its end.
        reset: the steps where a[:, t] counts as zero, so the previous step does not affect step t.
        implementation: one of `IMPLEMENTATIONS`, or None for the best one for the target platform.

    Raises:
        ValueError: shapes differ or have an empty axis, or the implementation is unknown.
    """
    settings = _StaticArguments("reverse" if reverse else "forward", implementation)
    return _checked("linear_scan", settings, a, x, h0=h0, resets={"reset": reset})


def bidirectional_scan(
    a: Float[Array, "batch length channels"],
    x: Float[Array, "batch length channels"],
    *,
    h0: Float[Array, "batch channels"] | None = None,
    forward_reset: Bool[Array, "batch length"] | None = None,
    reverse_reset: Bool[Array, "batch length"] | None = None,
    implementation: str | None = None,
) -> Float[Array, "batch length channels"]:
    """Run `linear_scan` forward on the first half of the channels and in reverse on the second half.

    Args:
        a: the decay of the state at each step.
        x: the addend of the state at each step.
        h0: the state before the first step in each half's reading order; zero if None.
        forward_reset: the resets of the first half. Give both resets or neither.
        reverse_reset: the resets of the second half.
        implementation: one of `IMPLEMENTATIONS`, or None for the best one for the target platform.

    Raises:
        ValueError: shapes differ or have an empty axis, the number of channels is odd, only one reset is
            given, or the implementation is unknown.
    """
    if a.shape[-1] % 2:
        raise ValueError(f"bidirectional_scan: the number of channels must be even; found {a.shape[-1]}")
    resets = {"forward_reset": forward_reset, "reverse_reset": reverse_reset}
    if (forward_reset is None) != (reverse_reset is None):
        raise ValueError("bidirectional_scan: give both resets or neither")
    return _checked(
        "bidirectional_scan", _StaticArguments("both", implementation), a, x, h0=h0, resets=resets
    )


def _checked(name, settings, a, x, *, h0, resets):
    implementation = settings.implementation
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"{name}: implementation {implementation!r} is unknown; allowed: None, "
            + ", ".join(map(repr, IMPLEMENTATIONS))
        )
    if a.shape != x.shape or a.ndim != 3:
        raise ValueError(
            f"{name}: a and x must both be [batch, length, channels]; "
            f"found a {tuple(a.shape)} and x {tuple(x.shape)}"
        )
    if 0 in a.shape:
        raise ValueError(f"{name}: found {tuple(a.shape)} for a and x; allowed: at least 1 of each axis")
    if h0 is not None and h0.shape != (a.shape[0], a.shape[2]):
        raise ValueError(
            f"{name}: h0 must be [batch, channels] = {(a.shape[0], a.shape[2])}; found {tuple(h0.shape)}"
        )
    for field, reset in resets.items():
        if reset is not None and reset.shape != a.shape[:2]:
            raise ValueError(
                f"{name}: {field} must be [batch, length] = {a.shape[:2]}; found {tuple(reset.shape)}"
            )
    if h0 is None:
        h0 = jnp.zeros((a.shape[0], a.shape[2]), jnp.float32)
    given = tuple(reset for reset in resets.values() if reset is not None) or None
    return _scan(settings, a, x, h0, given)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scan(settings, a, x, h0, resets):
    return _run("forward", settings, a, x, h0, resets=resets)


def _scan_forward(settings, a, x, h0, resets):
    h = named(_run("forward", settings, a, x, h0, resets=resets))
    return h, (a, h, h0, resets)


def _scan_backward(settings, residuals, dh):
    a, h, h0, resets = residuals
    da, dx, dh0 = _run("backward", settings, a, h, h0, dh, resets=resets)
    return da, dx, dh0.astype(h0.dtype), None


_scan.defvjp(_scan_forward, _scan_backward)


def _run(pass_name, settings, a, *arrays, resets):
    """Call the pass of an implementation; None chooses the best one for the target platform."""
    direction = settings.direction

    def with_xla(a, *arrays):
        return getattr(xla, pass_name)(a, *arrays, resets=resets, direction=direction)

    def with_tpu(a, *arrays, interpret=False):
        return getattr(tpu, pass_name)(a, *arrays, resets=resets, direction=direction, interpret=interpret)

    match settings.implementation:
        case "xla":
            return with_xla(a, *arrays)
        case "pallas_tpu":
            return with_tpu(a, *arrays)
        case "pallas_gpu":
            # The import of Mosaic GPU takes 0.2 seconds.
            from pallas_kernels.linear_scan import gpu

            return getattr(gpu, pass_name)(a, *arrays, resets=resets, direction=direction)
        case "pallas_interpret":
            return with_tpu(a, *arrays, interpret=True)
    # Not every GPU can run the GPU kernel, so it runs only if the caller names it.
    if not tpu.suits(a.shape, direction):
        return with_xla(a, *arrays)
    return jax.lax.platform_dependent(a, *arrays, tpu=with_tpu, default=with_xla)
