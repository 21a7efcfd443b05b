"""Policy thompson: Thompson sampling with a Gaussian model of a mixture's reward.

Urteaga et al. 2023 ("Multi-armed bandits for resource efficient, online optimization of language model
pre-training") model the reward of a choice as a Gaussian process. They draw a function from its posterior
and take the best choice under it. Here a choice is a mixture a, and its reward R is the mean over classes
of the class-scaled rewards. The model is

    R = w . a + noise,   w ~ N(0, prior_deviation^2 (C + I) / 2),   noise ~ N(0, noise_deviation^2)

with C_ij = 1 if arms i and j are of the same class. This is a Gaussian process with a linear kernel, with
correlated arms within a class. An arm gets credit for its effect on the losses of other arms. The mean of R
is subtracted. The reward of an arm changes over time, so an observation of age t has the weight rho^t with
rho = 1 - 1 / memory.

Each of `samples` draws of w votes for its best arm. The mixture is the shares of the votes, blended with a
share `exploration` of the mixture's own weights. With many draws, the vote shares are each arm's
probability of being the best (probability matching). With one draw, this is the paper's rule. The policy
has no arrays of its own; it reads only the history.
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
    # By default, accelerators round the factors of a matrix product.
    product = partial(jnp.matmul, precision="highest")
    earned = jnp.where(number < row, product(state.rewards, state.class_scale) / state.classes, 0.0)
    total = counts.sum()
    earned = earned - jnp.sum(counts * earned) / jnp.where(total > 0, total, 1.0)
    alike = (state.groups[:, None] == state.groups).astype(jnp.float32)
    prior = settings.prior_deviation**2 * (alike + jnp.eye(state.arms)) / 2.0
    weighted = counts[:, None] * actions / settings.noise_deviation**2
    precision = jnp.linalg.inv(prior) + product(weighted.T, actions)
    # A matrix that is singular in float32 has no Cholesky factor. At usual settings, this term adds a
    # thousandth of the prior's precision.
    precision = precision + _MIN_RELATIVE_PRECISION * jnp.trace(precision) * jnp.eye(state.arms)
    factor = jnp.linalg.cholesky((precision + precision.T) / 2.0)
    return jax.scipy.linalg.cho_solve((factor, True), product(weighted.T, earned)), factor


def vote(state: BanditState) -> ArmVector:
    """Return the vote shares of posterior draws, blended with the mixture's own weights."""
    settings = state.config.thompson
    mean, factor = gain_posterior(state)
    normal = jax.random.normal(decision_key(state, PROPOSING), (state.arms, settings.samples))
    draws = mean[:, None] + jax.scipy.linalg.solve_triangular(factor, normal, lower=True, trans="T")
    # Arms without weight are never trained on.
    best = jnp.argmax(jnp.where(state.initial[:, None] > 0, draws, -jnp.inf), axis=0)
    shares = jnp.mean(jax.nn.one_hot(best, state.arms), axis=0)
    return (1.0 - settings.exploration) * shares + settings.exploration * state.initial


register_policy("thompson", Policy(propose=vote))
