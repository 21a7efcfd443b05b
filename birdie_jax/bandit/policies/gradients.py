"""Policy gradients: the shares follow the effect of a step on each class alone on the objective.

Let P be the optimizer's preconditioner, g_c the gradient of a class's validation loss and G the gradient of
the objective. A small step on class c lowers the objective by G . P g_c per unit of step size. This is the
inner product of DoGE (Fan et al. 2023) and AC-ODM (Ma et al. 2025), but in the optimizer's metric. P is
diagonal, so the gain of a class is the derivative of its own loss along P G. The gains are measured at each
decision on the validation rows (`pretraining/gradient_gains.py`). They take one gradient and two more
evaluations of these rows, whereas other policies need one evaluation.
"""

from typing import cast

import jax.numpy as jnp
from jaxtyping import Array

from birdie_jax.bandit.classes import ClassVector, class_means, own_shares
from birdie_jax.bandit.policies.registry import register_policy
from birdie_jax.bandit.state import BanditState
from birdie_jax.bandit.trust_region import Gains, of_unit_size, trust_region_policy


def gains_of_gradients(state: BanditState, shares: ClassVector) -> Gains:
    """Return the measured gains, minus their mean under the shares, at unit size."""
    measured = class_means(state, cast(Array, state.gains))
    usable = (own_shares(state) > 0) & jnp.isfinite(measured)
    measured = jnp.where(usable, measured, 0.0)
    weights = jnp.where(usable, shares, 0.0)
    mean = jnp.sum(weights * measured) / jnp.maximum(weights.sum(), 1e-30)
    from_mean = jnp.where(usable, measured - mean, 0.0)
    return Gains(of_unit_size(from_mean), state.count > 0)


register_policy("gradients", trust_region_policy(gains_of_gradients, reads_gains=True))
