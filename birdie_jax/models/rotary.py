"""Rotary position embedding: the angle between a query and a key tells their distance."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from birdie_jax.array_types import TokenIds


def rotate(
    x: Float[Array, "rows length heads width"], positions: TokenIds, base: float, share: float = 1.0
) -> Float[Array, "rows length heads width"]:
    """Turn channel pair i of each head by position * base^(-2 i / width), in float32 (Su et al. 2021).

    A pair is channel i and channel i + width / 2, as in Llama, so that Llama's weights fit. With a `share`
    of less than 1 the width is that share of a head's channels, its first ones, and the others stay.
    """
    width = round(share * x.shape[-1])
    if width < x.shape[-1]:
        turned, rest = jnp.split(x, [width], axis=-1)
        return jnp.concatenate([rotate(turned, positions, base), rest], axis=-1)
    half = x.shape[-1] // 2
    frequencies = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(x.dtype)
