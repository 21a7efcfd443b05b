"""Policy thompson: Thompson sampling with a Gaussian model of what a mixture earns.

Urteaga et al. 2023 ("Multi-armed bandits for resource efficient, online optimization of language model
pre-training") model the reward of a choice by a Gaussian process, draw a function from its posterior, and
take the choice that is best under it. Here a choice is a mixture a, and what it earned, R, the mean over
classes of the class-scaled rewards. It is modelled as

    R = w . a + noise,   w ~ N(0, prior_deviation^2 (C + I) / 2),   noise ~ N(0, noise_deviation^2)

with C_ij = 1 where arms i and j are of one class: a Gaussian process with a linear kernel, in which arms of
a class are alike. So what an arm does for the losses of others is credited to it. R is measured from its
mean, and an observation of age t counts rho^t, rho = 1 - 1 / memory, for what an arm earns changes.

Each of `samples` draws of w votes for its best arm. The mixture is the shares of the votes, and
`exploration` of the mixture's own weights: with many draws, each arm's probability of being the best one
(probability matching), with one the paper's rule. It has no arrays of its own: the history is all it needs.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from birdie_jax.array_types import ArmVector
from birdie_jax.bandit.policies.registry import Policy, register_policy
from birdie_jax.bandit.state import PROPOSING, BanditState, current_row, decision_key

_MIN_RELATIVE_PRECISION = 1e-6


def gain_posterior(state: BanditState) -> tuple[ArmVector, Float[Array, "arms arms"]]:
    """Return the mean of w, and the lower Cholesky factor of the inverse of its covariance."""
    settings, row = state.config.thompson, current_row(state)
    number = jnp.arange(state.actions.shape[0])
    counts = jnp.where(number < row, (1.0 - 1.0 / settings.memory) ** jnp.maximum(row - 1 - number, 0), 0.0)
    actions = jnp.where((number < row)[:, None], state.actions, 0.0)
    # Accelerators round the factors of a product by default.
    product = partial(jnp.matmul, precision="highest")
    earned = jnp.where(number < row, product(state.rewards, state.class_scale) / state.classes, 0.0)
    total = counts.sum()
    earned = earned - jnp.sum(counts * earned) / jnp.where(total > 0, total, 1.0)
    alike = (state.groups[:, None] == state.groups).astype(jnp.float32)
    prior = settings.prior_deviation**2 * (alike + jnp.eye(state.arms)) / 2.0
    weighted = counts[:, None] * actions / settings.noise_deviation**2
    precision = jnp.linalg.inv(prior) + product(weighted.T, actions)
    # A matrix that is singular in float32 has no Cholesky factor. At usual settings this adds a thousandth
    # of the prior's part.
    precision = precision + _MIN_RELATIVE_PRECISION * jnp.trace(precision) * jnp.eye(state.arms)
    factor = jnp.linalg.cholesky((precision + precision.T) / 2.0)
    return jax.scipy.linalg.cho_solve((factor, True), product(weighted.T, earned)), factor


def vote(state: BanditState) -> ArmVector:
    """Return the shares of the votes of draws from the posterior, and some of the mixture's own weights."""
    settings = state.config.thompson
    mean, factor = gain_posterior(state)
    normal = jax.random.normal(decision_key(state, PROPOSING), (state.arms, settings.samples))
    draws = mean[:, None] + jax.scipy.linalg.solve_triangular(factor, normal, lower=True, trans="T")
    # An arm without weight is not to be trained on.
    best = jnp.argmax(jnp.where(state.initial[:, None] > 0, draws, -jnp.inf), axis=0)
    shares = jnp.mean(jax.nn.one_hot(best, state.arms), axis=0)
    return (1.0 - settings.exploration) * shares + settings.exploration * state.initial


register_policy("thompson", Policy(propose=vote))
