"""Policy cross_effects: every class in turn gets a larger share for one decision, to measure its effect.

After Aioli (Chen et al. 2024, "Aioli: A unified optimization framework for language model data mixing"),
which measures by perturbations what training on class j does for the loss of class i, and moves the shares
by the column sums of this matrix, as exponentiated gradient does. A cycle has two parts of as many
decisions as there are classes. In the first, in random order, each class j once has the share
(1 - 1/2) w_j + 1/2, and the others the rest in proportion. In the second the shares follow, a step at each
decision. The objective is the mean of all losses, so the column sum of class j is the fall of the
objective while j was lifted. It is compared with the line through the falls of the cycle, because losses
fall more and more slowly.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from birdie_jax.bandit.classes import ClassVector, class_falls, own_shares
from birdie_jax.bandit.policies.registry import register_policy
from birdie_jax.bandit.state import EXPLORING, BanditState, current_row, numbered_key
from birdie_jax.bandit.trust_region import Gains, of_unit_size, trust_region_policy

LIFT = 0.5


def lifted_order(state: BanditState) -> Int[Array, " classes"]:
    """Return the classes in the order in which the present cycle lifts them."""
    cycle = jnp.maximum(state.count - 1, 0) // (2 * state.classes)
    return jax.random.permutation(numbered_key(state, cycle, EXPLORING), state.classes)


def lift(state: BanditState, shares: ClassVector) -> ClassVector:
    """Return the shares with the class lifted whose turn it is; unchanged in the second part of a cycle."""
    place = jnp.maximum(state.count - 1, 0) % (2 * state.classes)
    lifted = lifted_order(state)[jnp.minimum(place, state.classes - 1)]
    alone = jax.nn.one_hot(lifted, state.classes)
    is_lifted = (place < state.classes) & (own_shares(state)[lifted] > 0)
    return jnp.where(is_lifted, (1.0 - LIFT) * shares + LIFT * alone, shares)


def gains_of_lifts(state: BanditState, shares: ClassVector) -> Gains:
    """Return by how much the objective fell more than the line of the cycle while a class was lifted."""
    del shares
    place = jnp.maximum(state.count - 1, 0) % (2 * state.classes)
    first = jnp.maximum(current_row(state) - place, 0)
    falls = jax.lax.dynamic_slice_in_dim(class_falls(state).mean(axis=1), first, state.classes)
    number = jnp.arange(state.classes) - (state.classes - 1) / 2.0
    slope = jnp.sum(number * falls) / jnp.maximum(jnp.sum(jnp.square(number)), 1.0)
    from_line = falls - falls.mean() - slope * number
    gains = jnp.zeros(state.classes).at[lifted_order(state)].set(of_unit_size(from_line))
    return Gains(jnp.where(own_shares(state) > 0, gains, 0.0), place >= state.classes)


register_policy("cross_effects", trust_region_policy(gains_of_lifts, lift))
