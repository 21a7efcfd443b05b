"""The published reward of an arm for the fall of its validation loss between two decisions."""

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

# exp(1) appears twice in the published formula: inside and outside the hyperbolic tangent.
_E = math.e


def reward(old_loss: ArrayLike, new_loss: ArrayLike) -> jax.Array:
    """Return the reward of each arm for one action.

    The formula is from the published Birdie code of November 2024. The paper (section 3.3) gives none.

    With L0 the loss before and L1 the loss after:

        n = e * sqrt(L0 * L1) * ((L1 - L0) / (L0 + 1e-8))^3
        reward = clip(-100 * e * tanh(n), -1, 1)

    A falling loss earns up to 1, and a rising loss costs up to 1. Because of the cube,
    small changes earn almost nothing: at a loss of 2, a fall of 1 % earns 0.0015, 5 % earns 0.18, and 9 %
    or more earns 1.

    Args:
        old_loss: L0, any shape, cast to float32.
        new_loss: L1, any shape that broadcasts with L0.

    Returns:
        float32 of the broadcast shape within [-1, 1]; 0 where the formula is undefined (NaN losses, or
        losses of opposite sign).
    """
    old = jnp.asarray(old_loss, jnp.float32)
    new = jnp.asarray(new_loss, jnp.float32)
    relative_change = (new - old) / (old + 1e-8)
    n = _E * jnp.sqrt(old * new) * relative_change**3
    value = jnp.clip(-100.0 * _E * jnp.tanh(n), -1.0, 1.0)
    return jnp.where(jnp.isnan(value), 0.0, value)
