"""Padding to the sizes of a kernel's tiles; it copies every operand."""

import jax.numpy as jnp
from jaxtyping import Array


def round_up(size: int, unit: int) -> int:
    """Return the smallest multiple of `unit` that is at least `size`."""
    return -(-size // unit) * unit


def pad_channels(values: Array, halves: int, unit: int) -> Array:
    """Pad each of the `halves` parts of the last axis with zeros to a multiple of `unit`."""
    part = values.shape[-1] // halves
    padding = round_up(part, unit) - part
    if not padding:
        return values
    parts = values.reshape(*values.shape[:-1], halves, part)
    parts = jnp.pad(parts, [(0, 0)] * (parts.ndim - 1) + [(0, padding)])
    return parts.reshape(*values.shape[:-1], -1)


def crop_channels(values: Array, halves: int, channels: int) -> Array:
    """Undo `pad_channels`: return `channels` channels without the padding."""
    if values.shape[-1] == channels:
        return values
    parts = values.reshape(*values.shape[:-1], halves, -1)[..., : channels // halves]
    return parts.reshape(*values.shape[:-1], channels)


def pad_length(values: Array, unit: int, fill: Array | float | bool) -> Array:
    """Pad the end of axis 1 to a multiple of `unit` with `fill`, which broadcasts against one time step."""
    batch, length, *rest = values.shape
    padding = round_up(length, unit) - length
    if not padding:
        return values
    fill = jnp.broadcast_to(jnp.asarray(fill, values.dtype), (batch, padding, *rest))
    return jnp.concatenate([values, fill], axis=1)
