"""Policies that move class shares along estimated gains, within a trust region at each decision.

The objective is the mean over classes of the validation loss. The gain of a class is how much a larger
share of it lowers the objective. With q the mixture's own shares and z the gains at unit size,

    d = step z - log(w / q) / memory
    w <- (1 - floor) w exp(s d) / sum(w exp(s d)) + floor q

with the largest s in [0, 1] such that the step's Kullback-Leibler divergence from w is at most `kl_limit`.
The second term of d pulls the shares back to q. Without it, they would follow a random walk if the gains
are noise. A policy defines how to estimate z, and how the mixture deviates from w to measure z.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from birdie_jax.array_types import ArmVector, KeyData, Scalar
from birdie_jax.bandit.classes import ClassVector, class_masses, over_arms, own_shares
from birdie_jax.bandit.policies.registry import Policy
from birdie_jax.bandit.state import EXPLORING, BanditState, numbered_key
from birdie_jax.bandit_config import BanditConfig

_BISECTIONS = 24


class Gains(NamedTuple):
    """An estimate of the gains.

    Attributes:
        values: the gains, divided by their size or their error.
        is_new: whether the shares move along the gains at this decision.
    """

    values: ClassVector
    is_new: Bool[Array, ""]


Estimate = Callable[[BanditState, ClassVector], Gains]
"""(state after an observation, w) -> gains."""
Explore = Callable[[BanditState, ClassVector], ClassVector]
"""(state after an observation, w) -> the shares until the next observation."""


def trust_region_policy(
    estimate: Estimate, explore: Explore = lambda _, shares: shares, *, reads_gains: bool = False
) -> Policy:
    """Return a policy that follows the gains from `estimate`.

    The policy's own array is the mixture of the shares w.

    Args:
        estimate: estimates the gains.
        explore: returns the shares to use instead of w.
        reads_gains: whether the policy reads the gains of gradients (`BanditState.gains`).
    """

    def init_state(config: BanditConfig, num_arms: int, key: KeyData) -> ArmVector:
        del config, key
        # The first observation fills in the mixture's own weights.
        return jnp.zeros(num_arms)

    def update(state: BanditState) -> ArmVector:
        settings, own = state.config.trust_region, own_shares(state)
        is_first = state.count == 1
        shares = jnp.where(is_first, own, class_masses(state.policy_state, state.groups, state.classes))
        gains = estimate(state, shares)
        ratio = jnp.where(own > 0, shares / jnp.where(own > 0, own, 1.0), 1.0)
        direction = settings.step * gains.values - jnp.log(ratio) / settings.memory
        moved = step_within(shares, direction, settings.kl_limit)
        moved = (1.0 - settings.floor) * moved + settings.floor * own
        return over_arms(state, jnp.where(gains.is_new & ~is_first, moved, shares))

    def propose(state: BanditState) -> ArmVector:
        shares = class_masses(state.policy_state, state.groups, state.classes)
        return over_arms(state, explore(state, shares))

    return Policy(init_state=init_state, update=update, propose=propose, reads_gains=reads_gains)


def step_within(shares: ClassVector, direction: ClassVector, kl_limit: float) -> ClassVector:
    """Return shares * exp(s direction), normalised, with the largest s in [0, 1] within the limit.

    Args:
        shares: shares that sum to 1; a share of 0 stays 0.
        direction: the change of the logarithm of each share at s = 1.
        kl_limit: the maximum divergence of the result from `shares`, in nats.
    """

    def moved(size: Scalar) -> ClassVector:
        exponents = jnp.where(shares > 0, size * direction, -jnp.inf)
        grown = shares * jnp.exp(exponents - exponents.max())
        return grown / grown.sum()

    def divergence(size: Scalar) -> Scalar:
        after = moved(size)
        ratio = jnp.where(after > 0, after / jnp.where(shares > 0, shares, 1.0), 1.0)
        return jnp.sum(after * jnp.log(ratio))

    def halve(_: Int[Array, ""], bounds: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = bounds
        middle = (low + high) / 2.0
        fits = divergence(middle) <= kl_limit
        return jnp.where(fits, middle, low), jnp.where(fits, high, middle)

    zero, one = jnp.float32(0.0), jnp.float32(1.0)
    low, _ = jax.lax.fori_loop(0, _BISECTIONS, halve, (zero, one))
    return moved(jnp.where(divergence(one) <= kl_limit, one, low))


def of_unit_size(values: ClassVector) -> ClassVector:
    """Return the values divided by their root mean square. Zeros stay zeros."""
    size = jnp.sqrt(jnp.mean(jnp.square(values)))
    return values / jnp.where(size > 0, size, 1.0)


def pair_signs(
    state: BanditState, decisions: Int[Array, " decisions"], held: int = 1
) -> Float[Array, "decisions classes"]:
    """Return the signs of the changes that the given decisions make to the shares.

    Args:
        state: the state of the run. Its key determines the signs.
        decisions: the numbers of the decisions.
        held: the number of decisions for which a change lasts, before its opposite lasts as long.
    """

    def signs(decision: Int[Array, ""]) -> ClassVector:
        key = numbered_key(state, decision // (2 * held), EXPLORING)
        first = jax.random.rademacher(key, (state.classes,), jnp.float32)
        return jnp.where((decision // held) % 2 == 0, first, -first)

    return jax.vmap(signs)(decisions)


def perturb(state: BanditState, shares: ClassVector, held: int = 1) -> ClassVector:
    """Return the changed shares that the current decision tries: a random change, or its opposite."""
    distance = math.log1p(state.config.trust_region.perturbation)
    tried = shares * jnp.exp(distance * pair_signs(state, state.count[None] - 1, held)[0])
    return tried / tried.sum()
