"""Policy pairs: two decisions try a change of the shares and its opposite, and compare the results.

This is simultaneous perturbation (Spall 1992, "Multivariate stochastic approximation using a simultaneous
perturbation gradient approximation"). Decisions 2k and 2k + 1 multiply the shares by exp(d s) and
exp(-d s), with s a random sign for each class and exp(d) = 1 + `perturbation`. With F and F' the falls of
the objective under the two decisions, the result of the pair is

    r = (F - F') / (|F| + |F'|)

The gain of a class is the sum over pairs of (r - mean r) s, divided by the standard deviation that this sum
has if no class has an effect. Subtracting the mean removes the general slowing of the losses. The weights
of pairs decay over `memory` decisions.
"""

import jax.numpy as jnp

from birdie_jax.bandit.classes import ClassVector, class_falls, own_shares, row_decisions
from birdie_jax.bandit.policies.registry import register_policy
from birdie_jax.bandit.state import BanditState, current_row
from birdie_jax.bandit.trust_region import Gains, pair_signs, perturb, trust_region_policy


def gains_of_pairs(state: BanditState, shares: ClassVector) -> Gains:
    """Return the gain of each class from the pairs so far."""
    del shares
    row, decisions = current_row(state), row_decisions(state)
    falls = class_falls(state).mean(axis=1)
    after = jnp.roll(falls, -1)
    is_pair = (decisions >= 0) & (decisions % 2 == 0) & (jnp.arange(falls.size) + 1 < row)
    size = jnp.abs(falls) + jnp.abs(after)
    ratio = jnp.where(is_pair, (falls - after) / jnp.where(size > 0, size, 1.0), 0.0)
    age = jnp.maximum(row - jnp.arange(falls.size), 0)
    counts = jnp.where(is_pair, (1.0 - 1.0 / state.config.trust_region.memory) ** age, 0.0)
    total = jnp.maximum(counts.sum(), 1e-30)
    from_mean = ratio - jnp.sum(counts * ratio) / total
    variance = jnp.sum(counts * jnp.square(from_mean)) / total
    credited = jnp.sum((counts * from_mean)[:, None] * pair_signs(state, decisions), axis=0)
    deviation = jnp.sqrt(variance * jnp.sum(jnp.square(counts)))
    gains = credited / jnp.where(deviation > 0, deviation, 1.0)
    return Gains(jnp.where(own_shares(state) > 0, gains, 0.0), state.count % 2 == 1)


register_policy("pairs", trust_region_policy(gains_of_pairs, perturb))
