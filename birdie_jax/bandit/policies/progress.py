"""Policy progress: the share of a class follows its recent progress, until the class is learned.

With f the mean of a class's recent falls (half-life 4 decisions) and p its accuracy,

    shares = 1/5 own shares + 4/5 max(f, 0) (1 - p), normalised

This is learning progress as in Oudeyer et al. 2007 and Graves et al. 2017. The factor 1 - p ends the
training on a learned class. The own shares keep training a class whose loss does not fall yet.
"""

from typing import cast

import jax.numpy as jnp
from jaxtyping import Array

from birdie_jax.array_types import ArmVector
from birdie_jax.bandit.classes import class_falls, class_means, over_arms, own_shares, trailing_means
from birdie_jax.bandit.policies.registry import Policy, register_policy
from birdie_jax.bandit.state import BanditState, current_row

_KEPT, _HALF_LIFE = 0.2, 4.0


def progress_mixture(state: BanditState) -> ArmVector:
    """Return the next mixture: one fifth own shares, and the rest by progress."""
    own = own_shares(state)
    falls = trailing_means(state, class_falls(state), _HALF_LIFE)[jnp.maximum(current_row(state) - 1, 0)]
    unlearned = 1.0 - class_means(state, cast(Array, state.accuracies))
    wanted = jnp.maximum(falls, 0.0) * jnp.where(jnp.isfinite(unlearned), unlearned, 0.0)
    wanted = jnp.where(own > 0, wanted, 0.0)
    total = wanted.sum()
    shares = jnp.where(total > 0, wanted / jnp.where(total > 0, total, 1.0), own)
    return over_arms(state, _KEPT * own + (1.0 - _KEPT) * shares)


register_policy("progress", Policy(propose=progress_mixture, reads_accuracies=True))
