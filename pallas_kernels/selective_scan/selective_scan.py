"""The public operation: argument checks, the choice of an implementation, and the derivative."""

import importlib
from functools import partial
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pallas_kernels.rematerialisation import named
from pallas_kernels.selective_scan import tpu, xla
from pallas_kernels.selective_scan.inputs import SelectiveScanInputs

DIRECTIONS = ("forward", "reverse", "both")
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
        kernel: the platform of the kernel, and the name of its module.
        direction: one of `DIRECTIONS`.
        interpret: the argument `interpret` of the kernel; if None, the kernel is compiled.
    """

    kernel: str
    direction: str
    interpret: object = None

    @property
    def passes(self) -> ModuleType:
        """The module of the kernel, with a lazy import because Mosaic GPU takes 0.2 seconds."""
        return importlib.import_module(f"pallas_kernels.selective_scan.{self.kernel}")

    @property
    def options(self) -> dict[str, object]:
        """The keyword arguments of the passes."""
        given = {} if self.interpret is None else {"interpret": self.interpret}
        return {"direction": self.direction} | given


def selective_scan(  # noqa: PLR0917 - the order of the papers' code, in which D may be left out
    u: Float[Array, "batch length channels"],
    dt: Float[Array, "batch length channels"],
    A: Float[Array, "channels N"],
    B: Float[Array, "batch length N"],
    C: Float[Array, "batch length N"],
    D: Float[Array, " channels"] | None = None,
    *,
    z: Float[Array, "batch length channels"] | None = None,
    dt_bias: Float[Array, " channels"] | None = None,
    h0: Float[Array, "batch N channels"] | None = None,
    resets: tuple[Bool[Array, "batch length"], ...] | None = None,
    direction: str = "forward",
    implementation: str | None = None,
) -> tuple[Float[Array, "batch length channels"], Float[Array, "batch N channels"]]:
    """Scan by steps and weights that the input selects (Gu and Dao 2023, algorithm 2), N states a channel:

        s_t = softplus(dt_t + dt_bias)            (without dt_bias: s_t = dt_t)
        h_t[n] = exp(s_t A[n]) h_{t-1}[n] + s_t B_t[n] u_t
        y_t = (sum_n C_t[n] h_t[n] + D u_t) SiLU(z_t)

    All arithmetic is float32 for every dtype of the arguments. No array in memory is N times as wide as the
    input: the derivative recomputes states from those at the borders of chunks. The sums over the channels
    in the derivatives of B and C have a fixed order, so two runs agree bit for bit.

    A token with s_t = 0 leaves the state unchanged; use such tokens as padding.

    Args:
        u: the input.
        dt: the step of each token and channel.
        A: the rates, negative.
        B: the weight of the input in each state, shared by all channels.
        C: the weight of each state in the output, shared by all channels.
        D: the factor of the input in the output; None to omit the term.
        z: the gate of the output; None for no gate.
        dt_bias: the bias of the step; if None, `dt` is the step and must not be negative.
        h0: the state before the first step in reading order; zero if None.
        resets: for each direction, the steps where exp(s_t A) counts as zero for every n.
        direction: "forward", "reverse" (reads the sequence from its end), or "both" (reads the second half
            of the channels in reverse).
        implementation: one of `IMPLEMENTATIONS`, or None for the best one for the target platform. By
            default, a TPU uses its kernel if the length and the channels of a direction are multiples of
            128; the kernel pads other sizes if you name it. "pallas_gpu" is for Hopper and later GPUs,
            runs only if you name it, and supports up to 40 states per channel.

    Returns:
        (y, last state): y in the dtype of `u`; the state after the last step in reading order, in float32.

    Raises:
        ValueError: shapes or counts differ, an axis is empty, or the direction or the implementation is
            unknown.
    """  # noqa: D400, D415
    _check_choices(direction, implementation)
    _check_shapes(u, A, {"dt": dt, "z": z}, {"B": B, "C": C}, {"D": D, "dt_bias": dt_bias, "h0": h0})
    _check_resets(resets, u.shape, direction)
    batch, _, channels = u.shape
    if h0 is None:
        h0 = jnp.zeros((batch, A.shape[1], channels), jnp.float32)
    D = jnp.zeros(channels, jnp.float32) if D is None else D.astype(jnp.float32)
    h0 = h0.astype(jnp.float32)
    inputs = SelectiveScanInputs(u, dt, A.T, B, C, D, z, dt_bias, h0, resets)

    def in_kernel(inputs, kernel="tpu", interpret=None):
        return _in_kernel(_StaticArguments(kernel, direction, interpret), inputs)

    def in_xla(inputs):
        return xla.selective_scan(inputs, direction)

    match implementation:
        case "pallas_tpu":
            return in_kernel(inputs)
        case "pallas_gpu":
            return in_kernel(inputs, "gpu")
        case "pallas_interpret":
            return in_kernel(inputs, interpret=True)
        case None if tpu.suits(u.shape, direction):
            return jax.lax.platform_dependent(inputs, tpu=in_kernel, default=in_xla)
    return in_xla(inputs)


def _check_choices(direction, implementation):
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"selective_scan: implementation {implementation!r} is unknown; allowed: None, "
            + ", ".join(map(repr, IMPLEMENTATIONS))
        )
    if direction not in DIRECTIONS:
        raise ValueError(f"selective_scan: direction {direction!r} is unknown; allowed: {DIRECTIONS}")


def _check_shapes(u, A, sequences, columns, others):
    if u.ndim != 3:
        raise ValueError(f"selective_scan: u must be [batch, length, channels]; found {tuple(u.shape)}")
    if 0 in u.shape:
        raise ValueError(f"selective_scan: found {tuple(u.shape)} for u; allowed: at least 1 of each axis")
    batch, length, channels = u.shape
    if A.ndim != 2 or A.shape[0] != channels:
        raise ValueError(f"selective_scan: A must be ({channels}, N); found {tuple(A.shape)}")
    if not A.shape[1]:
        raise ValueError(f"selective_scan: found {tuple(A.shape)} for A; allowed: at least 1 state")
    states = A.shape[1]
    wanted = [
        *((name, array, (batch, length, channels)) for name, array in sequences.items()),
        *((name, array, (batch, length, states)) for name, array in columns.items()),
        *(
            (name, array, (batch, states, channels) if name == "h0" else (channels,))
            for name, array in others.items()
        ),
    ]
    for name, array, shape in wanted:
        if array is not None and array.shape != shape:
            raise ValueError(f"selective_scan: {name} must be {shape}; found {tuple(array.shape)}")


def _check_resets(resets, shape, direction):
    batch, length, channels = shape
    if direction == "both" and channels % 2:
        raise ValueError(f"selective_scan: the number of channels must be even; found {channels}")
    count = 2 if direction == "both" else 1
    if resets is not None and [reset.shape for reset in resets] != [(batch, length)] * count:
        raise ValueError(
            f"selective_scan: resets must be a tuple of {count} arrays of shape {(batch, length)}; "
            f"found {[tuple(reset.shape) for reset in resets]}"
        )


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _in_kernel(settings: _StaticArguments, inputs: SelectiveScanInputs) -> tuple[jax.Array, jax.Array]:
    return _kernel_forward(settings, inputs)[0]


def _kernel_forward(
    settings: _StaticArguments, inputs: SelectiveScanInputs
) -> tuple[tuple[jax.Array, jax.Array], tuple[SelectiveScanInputs, jax.Array]]:
    y, last, block_h0 = named(settings.passes.forward(inputs, **settings.options))
    return (y, last), (inputs, block_h0)


def _kernel_backward(
    settings: _StaticArguments,
    residuals: tuple[SelectiveScanInputs, jax.Array],
    cotangents: tuple[jax.Array, jax.Array],
) -> tuple[SelectiveScanInputs]:
    inputs, block_h0 = residuals
    found = settings.passes.backward(inputs, block_h0, *cotangents, **settings.options)
    # The cotangents of parameters are summed in float32 and then cast to the parameters' dtypes.
    return (jax.tree.map(lambda given, new: new.astype(given.dtype), inputs._replace(resets=None), found),)


_in_kernel.defvjp(_kernel_forward, _kernel_backward)
