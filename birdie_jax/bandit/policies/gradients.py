"""Policy gradients: the shares follow what a step on each class alone would do for the objective.

With P the optimizer's preconditioner, g_c the gradient of a class's validation loss and G that of the
objective, a small step on class c lowers the objective by G . P g_c for each unit of it: the inner product
of DoGE (Fan et al. 2023) and AC-ODM (Ma et al. 2025), with the optimizer's own metric in place of the
plain one. P is diagonal, so the gain of every class is the derivative of its own loss along P G. It
is measured at each decision on the validation rows (`pretraining/gradient_gains.py`): one gradient and two
more evaluations of them, where other policies need one evaluation.
"""

from typing import cast

import jax.numpy as jnp
from jaxtyping import Array

from birdie_jax.bandit.classes import ClassVector, class_means, own_shares
from birdie_jax.bandit.policies.registry import register_policy
from birdie_jax.bandit.state import BanditState
from birdie_jax.bandit.trust_region import Gains, of_unit_size, trust_region_policy


def gains_of_gradients(state: BanditState, shares: ClassVector) -> Gains:
    """Return the measured gains, from their mean under the shares and of unit size."""
    measured = class_means(state, cast(Array, state.gains))
    usable = (own_shares(state) > 0) & jnp.isfinite(measured)
    measured = jnp.where(usable, measured, 0.0)
    weights = jnp.where(usable, shares, 0.0)
    mean = jnp.sum(weights * measured) / jnp.maximum(weights.sum(), 1e-30)
    from_mean = jnp.where(usable, measured - mean, 0.0)
    return Gains(of_unit_size(from_mean), state.count > 0)


register_policy("gradients", trust_region_policy(gains_of_gradients, reads_gains=True))
