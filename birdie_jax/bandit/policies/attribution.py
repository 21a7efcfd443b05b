"""Policy attribution: a regression of the falls of every class's loss on the mixtures of past decisions.

The effect of a mixture on a class appears over several decisions. The learning-rate schedule and the
current loss of the class also have an effect. The policy models the fall of class c, divided by the mean
size of its recent falls, as

    fall = b_c . x + g_c . (1, t, t^2, loss of c) + noise

with x the mean of past shares (half-life 4 decisions) minus the mixture's own shares, and t the fraction of
the run so far, which determines the learning rate. The prior of b and g is Gaussian (a ridge regression),
and the weights of past decisions decay over `memory`. The gains are one draw from the posterior (Thompson
sampling), summed over classes in nats. The shares move within a trust region. Like policy `pairs`, this
policy tries pairs of opposite changes, each change for 4 decisions.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from birdie_jax.bandit.classes import (
    ClassHistory,
    ClassVector,
    class_falls,
    class_masses,
    class_means,
    own_shares,
    row_decisions,
    trailing_means,
)
from birdie_jax.bandit.policies.registry import register_policy
from birdie_jax.bandit.state import LEARNING, BanditState, current_row, decision_key
from birdie_jax.bandit.trust_region import Gains, perturb, trust_region_policy

# Standard deviations of the prior of the coefficients and of the noise, in units of a class's usual fall.
_PRIOR, _NOISE = 3.0, 0.5
# Decisions for which a change lasts. A shorter change would cancel with its opposite in the mean of past
# shares.
_HELD = 4
# Half-lives, in decisions, of past shares and of the sizes of falls. With a shorter half-life, dividing by
# the sizes would remove the effect of the shares.
_HALF_LIFE, _HALF_LIFE_OF_SIZES = 4.0, 16.0


class Posterior(NamedTuple):
    """The posterior of the coefficients of each class, in units of its usual fall.

    Attributes:
        mean: the mean of the coefficients; the coefficients of the shares come first.
        factor: the lower Cholesky factor of the inverse of their covariance.
        usual: the mean size of each class's recent falls, in nats.
    """

    mean: Float[Array, "classes coefficients"]
    factor: Float[Array, "classes coefficients coefficients"]
    usual: ClassVector


def posterior_of_effects(state: BanditState) -> Posterior:
    """Return the posterior of the effect of every share on every class, given the history."""
    row, decisions = current_row(state), row_decisions(state)
    is_known = (decisions >= 0) & (jnp.arange(decisions.size) < row)
    falls = class_falls(state)
    sizes = trailing_means(state, jnp.abs(falls), _HALF_LIFE_OF_SIZES)
    targets = jnp.where(sizes > 0, falls / jnp.where(sizes > 0, sizes, 1.0), 0.0)
    shares = jnp.where(is_known[:, None], class_masses(state.actions, state.groups, state.classes), 0.0)
    recent = trailing_means(state, shares, _HALF_LIFE) - own_shares(state)
    past = decisions / state.decisions
    age = jnp.maximum(row - 1 - jnp.arange(decisions.size), 0)
    counts = jnp.where(is_known, (1.0 - 1.0 / state.config.trust_region.memory) ** age, 0.0)
    controls = jnp.stack([jnp.ones_like(past), past, jnp.square(past)], axis=1)
    losses = _standardised(class_means(state, state.losses), is_known)
    usual = sizes[jnp.maximum(row - 1, 0)]

    def of_class(target: Float[Array, " history"], loss: Float[Array, " history"]):
        inputs = jnp.concatenate([recent, controls, loss[:, None]], axis=1)
        inputs = jnp.where(is_known[:, None], inputs, 0.0)
        # By default, accelerators round the factors of a matrix product.
        product = partial(jnp.matmul, precision="highest")
        weighted = (counts / _NOISE**2)[:, None] * inputs
        precision = product(weighted.T, inputs) + jnp.eye(inputs.shape[1]) / _PRIOR**2
        factor = jnp.linalg.cholesky((precision + precision.T) / 2.0)
        return jax.scipy.linalg.cho_solve((factor, True), product(weighted.T, target)), factor

    mean, factor = jax.vmap(of_class, in_axes=1)(targets, losses)
    return Posterior(mean, factor, usual)


def draw_gains(state: BanditState, shares: ClassVector) -> Gains:
    """Return one draw of the gains from the posterior, of a size from 0 (nothing known) to 1."""
    found = posterior_of_effects(state)
    size = found.mean.shape[1]
    normal = jax.random.normal(decision_key(state, LEARNING), (state.classes, size))
    spread = jax.vmap(
        lambda factor: jax.scipy.linalg.solve_triangular(factor, jnp.eye(size), lower=True).T
    )(found.factor)
    departure = jnp.einsum("cij,cj->ci", spread, normal, precision="highest")
    of_shares = slice(0, state.classes)
    mean = jnp.mean(found.usual[:, None] * found.mean[:, of_shares], axis=0)
    drawn = mean + jnp.mean(found.usual[:, None] * departure[:, of_shares], axis=0)
    variance = jnp.sum(jnp.square(spread), axis=2)[:, of_shares]
    variance = jnp.mean(jnp.square(found.usual)[:, None] * variance, axis=0) / state.classes
    known = jnp.mean(jnp.square(mean - jnp.sum(shares * mean)))
    expected = known + jnp.mean(variance)
    size_of_known = jnp.sqrt(known) / jnp.where(expected > 0, expected, 1.0)
    gains = (drawn - jnp.sum(shares * drawn)) * size_of_known
    return Gains(jnp.where(own_shares(state) > 0, gains, 0.0), state.count > 1)


def _standardised(losses: ClassHistory, is_known: Array) -> ClassHistory:
    """Return losses with zero mean and unit standard deviation over the known rows."""
    usable = is_known[:, None] & jnp.isfinite(losses)
    values = jnp.where(usable, losses, 0.0)
    number = jnp.maximum(usable.sum(axis=0), 1)
    from_mean = jnp.where(usable, values - values.sum(axis=0) / number, 0.0)
    deviation = jnp.sqrt(jnp.sum(jnp.square(from_mean), axis=0) / number)
    return from_mean / jnp.where(deviation > 0, deviation, 1.0)


register_policy("attribution", trust_region_policy(draw_gains, partial(perturb, held=_HELD)))
