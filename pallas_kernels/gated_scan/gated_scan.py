"""The public operation: argument checks, the choice of an implementation, and the derivative."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, PyTree

from pallas_kernels.gated_scan import tpu
from pallas_kernels.gated_scan.cell import Cell, GatedScanInputs
from pallas_kernels.linear_scan import IMPLEMENTATIONS, bidirectional_scan, linear_scan
from pallas_kernels.rematerialisation import named

DIRECTIONS = ("forward", "reverse", "both")


class _StaticArguments(NamedTuple):
    """The static arguments of a compiled program."""

    cell: Cell
    direction: str
    interpret: bool = False


def gated_scan(
    cell: Cell,
    operands: tuple[Float[Array, "batch length channels"], ...],
    gate: Float[Array, "batch length channels"] | None = None,
    parameters: tuple[Float[Array, " channels"], ...] = (),
    *,
    direction: str = "forward",
    h0: Float[Array, "batch channels"] | None = None,
    resets: tuple[Bool[Array, "batch length"], ...] | None = None,
    scan_dtype: DTypeLike = jnp.float32,
    implementation: str | None = None,
) -> tuple[Float[Array, "batch length channels"], Float[Array, "batch channels"]]:
    """Compute a gated recurrent layer between its projections.

        a, x = cell.recurrence_inputs(parameters, operands, not_reset)
        h[:, t] = a[:, t] * h[:, t-1] + x[:, t]
        y = cell.readout(gate) * h

    On a TPU, one kernel reads the projections and writes y. a, x and h stay on the chip; the derivative
    recomputes them from a state every 32 steps. With n operands and a gate, this takes n + 2 memory
    accesses per element forward and 2 n + 3 backward. On other platforms, the three lines run one after
    another, the second with `linear_scan`, and the arrays that XLA does not fuse go through memory.
    All arithmetic is float32.

    Args:
        cell: the functions of the layer.
        operands: the operands of `cell.recurrence_inputs`.
        gate: the operand of `cell.readout`; if None, y is h.
        parameters: the parameters of the cell, one number for each channel.
        direction: "forward", "reverse" (reads the sequence from its end), or "both" (reads the second half
            of the channels in reverse).
        h0: the state before the first step in reading order; zero if None.
        resets: for each direction, the steps where a[:, t] counts as zero.
        scan_dtype: the dtype of a, x and h in memory, on platforms where they go through memory. The h of
            a single token stays float32, so decoding loses no small steps.
        implementation: one of `linear_scan.IMPLEMENTATIONS`, or None for the best one for the target
            platform. By default, a TPU uses its kernel if the length and the channels of a direction are
            multiples of 128; the kernel pads other sizes if you name it. "pallas_gpu" has a kernel only
            for the recurrence.

    Returns:
        (y, last state): y in the dtype of the gate, or of the last operand without a gate; the state after
        the last step in reading order, in float32.

    Raises:
        ValueError: shapes or counts differ, an axis is empty, or the direction or the implementation is
            unknown.
    """
    inputs = GatedScanInputs(tuple(operands), gate, tuple(parameters), h0, resets)
    _check(cell, inputs, direction, implementation)
    batch, _, channels = shape = inputs.operands[0].shape
    if h0 is None:
        h0 = jnp.zeros((batch, channels), jnp.float32)
    inputs = inputs._replace(h0=h0.astype(jnp.float32))

    def fused(inputs, interpret=False):
        return _fused(_StaticArguments(cell, direction, interpret), inputs)

    def unfused(inputs):
        return _unfused(_StaticArguments(cell, direction), inputs, scan_dtype, implementation)

    match implementation:
        case "pallas_tpu":
            return fused(inputs)
        case "pallas_interpret":
            return fused(inputs, interpret=True)
        case None if tpu.suits(shape, direction):
            return jax.lax.platform_dependent(inputs, tpu=fused, default=unfused)
    return unfused(inputs)


def _check(cell: Cell, inputs: GatedScanInputs, direction: str, implementation: str | None) -> None:
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"gated_scan: implementation {implementation!r} is unknown; allowed: None, "
            + ", ".join(map(repr, IMPLEMENTATIONS))
        )
    if direction not in DIRECTIONS:
        raise ValueError(f"gated_scan: direction {direction!r} is unknown; allowed: {DIRECTIONS}")
    if len(inputs.operands) != len(cell.operands):
        raise ValueError(
            f"gated_scan: operands of {cell.name} are {cell.operands}; found {len(inputs.operands)}"
        )
    shape = inputs.operands[0].shape
    if len(shape) != 3:
        raise ValueError(f"gated_scan: operands must be [batch, length, channels]; found {tuple(shape)}")
    if 0 in shape:
        raise ValueError(f"gated_scan: found {tuple(shape)} for operands; allowed: at least 1 of each axis")
    batch, length, channels = shape
    if direction == "both" and channels % 2:
        raise ValueError(f"gated_scan: the number of channels must be even; found {channels}")
    if len(inputs.parameters) != len(cell.parameters):
        raise ValueError(
            f"gated_scan: parameters of {cell.name} are {cell.parameters}; found {len(inputs.parameters)}"
        )
    wanted = [
        *zip(cell.operands, inputs.operands, [shape] * len(cell.operands), strict=True),
        *zip(cell.parameters, inputs.parameters, [(channels,)] * len(cell.parameters), strict=True),
        ("gate", inputs.gate, shape),
        ("h0", inputs.h0, (batch, channels)),
    ]
    for name, array, needed in wanted:
        if array is not None and array.shape != needed:
            raise ValueError(f"gated_scan: {name} must be {needed}; found {tuple(array.shape)}")
    if inputs.resets is None:
        return
    count = 2 if direction == "both" else 1
    found = [tuple(reset.shape) for reset in inputs.resets]
    if found != [(batch, length)] * count:
        raise ValueError(
            f"gated_scan: resets must be a tuple of {count} arrays of shape {(batch, length)}; "
            f"found {found}"
        )


def _unfused(
    settings: _StaticArguments,
    inputs: GatedScanInputs,
    scan_dtype: DTypeLike,
    implementation: str | None,
) -> tuple[jax.Array, jax.Array]:
    cell, direction, resets = settings.cell, settings.direction, inputs.resets
    parameters, operands, gate = _as_float32((inputs.parameters, inputs.operands, inputs.gate))
    a, x = cell.recurrence_inputs(parameters, operands, _not_reset(resets, operands[0].shape))
    a, x = a.astype(scan_dtype), x.astype(scan_dtype)
    if x.shape[1] == 1:
        # In decoding, the state of a single token is the carry, which `linear_scan` returns in x's dtype.
        x = x.astype(jnp.float32)
    options = {"h0": inputs.h0, "implementation": implementation}
    if direction == "both":
        forward, reverse = resets or (None, None)
        h = bidirectional_scan(a, x, forward_reset=forward, reverse_reset=reverse, **options)
        half = h.shape[2] // 2
        last = jnp.concatenate([h[:, -1, :half], h[:, 0, half:]], axis=-1)
    else:
        reset = resets[0] if resets else None
        h = linear_scan(a, x, reset=reset, reverse=direction == "reverse", **options)
        last = h[:, 0] if direction == "reverse" else h[:, -1]
    h, last = _as_float32((h, last))
    y = h if gate is None else cell.readout(gate) * h
    return y.astype(jax.tree.leaves((inputs.operands, inputs.gate))[-1].dtype), last


def _not_reset(
    resets: tuple[jax.Array, ...] | None, shape: tuple[int, ...]
) -> Bool[Array, "batch length channels"] | None:
    """Return a mask that is false at resets; the channels of both directions are side by side."""
    if resets is None:
        return None
    part = (*shape[:2], shape[2] // len(resets))
    # Concatenation avoids a select for each element.
    return jnp.concatenate([jnp.broadcast_to(~reset[..., None], part) for reset in resets], axis=-1)


def _as_float32(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda array: array.astype(jnp.float32), tree)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fused(settings: _StaticArguments, inputs: GatedScanInputs) -> tuple[jax.Array, jax.Array]:
    return _fused_forward(settings, inputs)[0]


def _fused_forward(
    settings: _StaticArguments, inputs: GatedScanInputs
) -> tuple[tuple[jax.Array, jax.Array], tuple[GatedScanInputs, jax.Array]]:
    y, last, chunk_h0 = named(
        tpu.forward(settings.cell, inputs, direction=settings.direction, interpret=settings.interpret)
    )
    return (y, last), (inputs._replace(h0=None), chunk_h0)


def _fused_backward(
    settings: _StaticArguments,
    residuals: tuple[GatedScanInputs, jax.Array],
    cotangents: tuple[jax.Array, jax.Array],
) -> tuple[GatedScanInputs]:
    inputs, chunk_h0 = residuals
    found = tpu.backward(
        settings.cell,
        inputs,
        chunk_h0,
        *cotangents,
        direction=settings.direction,
        interpret=settings.interpret,
    )
    parameters = tuple(d.astype(p.dtype) for d, p in zip(found.parameters, inputs.parameters, strict=True))
    return (found._replace(parameters=parameters),)


_fused.defvjp(_fused_forward, _fused_backward)
