"""Policy cross_effects: give every class in turn a larger share for one decision, and measure the effect.

The policy follows Aioli (Chen et al. 2024, "Aioli: A unified optimization framework for language model data
mixing"). Aioli uses perturbations to measure the effect of training on class j on the loss of class i. It
moves the shares by the column sums of this matrix, with exponentiated gradient.

A cycle has two parts, each with one decision per class. The first part lifts each class j once, in random
order: j has the share (1 - 1/2) w_j + 1/2, and the other classes have the rest in proportion. In the second
part the shares take a step at each decision. The objective is the mean of all losses, so the column sum of
class j is the fall of the objective while j was lifted. Losses fall more and more slowly, so this fall is
compared with a straight line through the falls of the cycle.
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
    """Return the classes in the order in which the current cycle lifts them."""
    cycle = jnp.maximum(state.count - 1, 0) // (2 * state.classes)
    return jax.random.permutation(numbered_key(state, cycle, EXPLORING), state.classes)


def lift(state: BanditState, shares: ClassVector) -> ClassVector:
    """Return the shares with the current class lifted, or unchanged in the second part of a cycle."""
    place = jnp.maximum(state.count - 1, 0) % (2 * state.classes)
    lifted = lifted_order(state)[jnp.minimum(place, state.classes - 1)]
    alone = jax.nn.one_hot(lifted, state.classes)
    is_lifted = (place < state.classes) & (own_shares(state)[lifted] > 0)
    return jnp.where(is_lifted, (1.0 - LIFT) * shares + LIFT * alone, shares)


def gains_of_lifts(state: BanditState, shares: ClassVector) -> Gains:
    """Return the fall of the objective while each class was lifted, minus the line through the cycle."""
    del shares
    place = jnp.maximum(state.count - 1, 0) % (2 * state.classes)
    first = jnp.maximum(current_row(state) - place, 0)
    # A run may have fewer decisions than classes; it then ends before the gains are used.
    falls = jnp.pad(class_falls(state).mean(axis=1), (0, state.classes))
    falls = jax.lax.dynamic_slice_in_dim(falls, first, state.classes)
    number = jnp.arange(state.classes) - (state.classes - 1) / 2.0
    slope = jnp.sum(number * falls) / jnp.maximum(jnp.sum(jnp.square(number)), 1.0)
    from_line = falls - falls.mean() - slope * number
    gains = jnp.zeros(state.classes).at[lifted_order(state)].set(of_unit_size(from_line))
    return Gains(jnp.where(own_shares(state) > 0, gains, 0.0), place >= state.classes)


register_policy("cross_effects", trust_region_policy(gains_of_lifts, lift))
