"""The reward of one arm: how far its validation loss fell between two decisions."""

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

# exp(1) appears twice in the published formula: once inside the hyperbolic tangent, once outside.
_E = math.e


def reward(old_loss: ArrayLike, new_loss: ArrayLike) -> jax.Array:
    """Return the reward of each arm for one action.

    The formula is the published Birdie code's of November 2024; the paper (section 3.3) gives none.

    With L0 the loss before and L1 the loss after:

        n = e * sqrt(L0 * L1) * ((L1 - L0) / (L0 + 1e-8))^3
        reward = clip(-100 * e * tanh(n), -1, 1)

    A loss that falls earns up to 1, one that rises loses up to 1. The cube makes small changes worth next
    to nothing: at a loss of 2, a fall by 1 % earns 0.0015, by 5 % 0.18, by 9 % and more 1.

    Args:
        old_loss: L0, any shape, cast to float32.
        new_loss: L1, a shape that broadcasts against it.

    Returns:
        float32 of the broadcast shape within [-1, 1]; 0 where the formula has no value (NaN losses, or
        losses of opposite sign).
    """
    old = jnp.asarray(old_loss, jnp.float32)
    new = jnp.asarray(new_loss, jnp.float32)
    relative_change = (new - old) / (old + 1e-8)
    n = _E * jnp.sqrt(old * new) * relative_change**3
    value = jnp.clip(-100.0 * _E * jnp.tanh(n), -1.0, 1.0)
    return jnp.where(jnp.isnan(value), 0.0, value)
