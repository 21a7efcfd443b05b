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
"""Each implementation, and the platforms that JAX can compile it for. Mosaic GPU needs an attached GPU."""


class _StaticArguments(NamedTuple):
    """The static arguments of a kernel.

    Attributes:
        kernel: the platform of the kernel, which is also the name of its module.
        direction: one of `DIRECTIONS`.
        interpret: the argument `interpret` of the passes; None to compile the kernel.
    """

    kernel: str
    direction: str
    interpret: object = None

    @property
    def passes(self) -> ModuleType:
        """The module of the kernel. The import is lazy: Mosaic GPU takes a fifth of a second."""
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
    """Scan with step sizes and weights that depend on the input (Gu and Dao 2023, algorithm 2):

        s_t = softplus(dt_t + dt_bias)            (s_t = dt_t without a bias)
        h_t[n] = exp(s_t A[n]) h_{t-1}[n] + s_t B_t[n] u_t
        y_t = (sum_n C_t[n] h_t[n] + D u_t) SiLU(z_t)

    Each channel has N states. All arithmetic is in float32, whatever the dtypes of the arguments. No array
    in memory is N times as wide as the input: the gradient recomputes states from those at the borders of
    chunks. In the gradients of B and C, the sums over the channels have a fixed order, so two runs agree
    bit for bit.

    A token with s_t = 0, such as padding, leaves the state unchanged.

    Args:
        u: the input.
        dt: the step size of each token and channel.
        A: the rates, negative.
        B: the input's weight in each state, the same for all channels.
        C: each state's weight in the output, the same for all channels.
        D: the factor of the input in the output; None for zero.
        z: the gate; None for no gate.
        dt_bias: the bias of the step size. If None, `dt` is the step size and must not be negative.
        h0: the state before the first step read; None for zero.
        resets: one mask per direction; where it is True, exp(s_t A) counts as zero for every n.
        direction: "forward"; "reverse" to read the sequence from its end; "both" to read it in reverse for
            the second half of the channels.
        implementation: one of `IMPLEMENTATIONS`, or None for the default of the platform compiled for. By
            default, a TPU uses its kernel if length and the channels of a direction are multiples of 128,
            and a channel has up to 64 states, or 128 if u, dt and z are bfloat16; chosen by name, the
            kernel pads other sizes. "pallas_gpu" requires a Hopper GPU or a later one, runs only when
            chosen by name, and takes up to 40 states per channel.

    Returns:
        y in the dtype of `u`, and in float32 the state after the last step read.

    Raises:
        ValueError: shapes or counts differ, an axis is empty, the direction or the implementation is
            unknown, or a kernel chosen by name does not take so many states.
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
        case None if tpu.suits(inputs, direction):
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
    # The passes sum the cotangents of parameters in float32, whatever the dtypes of the parameters.
    return (jax.tree.map(lambda given, new: new.astype(given.dtype), inputs._replace(resets=None), found),)


_in_kernel.defvjp(_kernel_forward, _kernel_backward)
