"""The actions of policy birdie: a random action to explore, or the action that the critic rates best."""

from typing import cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from birdie_jax.array_types import ArmVector, Key, Scalar
from birdie_jax.bandit.classes import class_masses
from birdie_jax.bandit.critic import CriticState, critic_inputs, make_critic
from birdie_jax.bandit.state import BanditState, current_row, history_steps
from birdie_jax.bandit_config import BanditConfig

# Candidates to score at once. This limits memory to a few tens of megabytes at the paper's size.
CHUNK = 1024
# An exploring action leaves a share between these bounds to the classes that it does not choose.
MIN_RESIDUAL_MASS, MAX_RESIDUAL_MASS = 0.02, 0.2

SELECTIONS = ("candidates", "top_arms")
CANDIDATE_PRIORS = ("classes", "arms")
CRITIC_ERRORS = ("scaled", "classes")


def check_proposal_settings(config: BanditConfig, num_arms: int) -> None:
    """Check the settings of proposals for `num_arms` arms.

    Raises:
        ValueError: the selection or the prior is unknown, or `top_arms` exceeds the number of arms.
    """
    if config.selection not in SELECTIONS:
        raise ValueError(f"bandit.selection: found {config.selection!r}; allowed: {', '.join(SELECTIONS)}")
    if config.candidate_prior not in CANDIDATE_PRIORS:
        raise ValueError(
            f"bandit.candidate_prior: found {config.candidate_prior!r}; "
            f"allowed: {', '.join(CANDIDATE_PRIORS)}"
        )
    if config.selection == "top_arms" and config.top_arms > num_arms:
        raise ValueError(f"bandit.top_arms: found {config.top_arms}; allowed: at most the {num_arms} arms")


def exploring_action(key: Key, groups: Int[Array, " arms"], classes: int) -> ArmVector:
    """Return a random mixture that puts most of its mass on one or two classes.

    It chooses one class or two with equal probability. Two classes share the mass at random. All other
    classes share 2 to 20 % evenly. One decision in two splits the mass of a class evenly. The other
    decisions split it by the fourth power of uniform numbers; otherwise the critic could not separate the
    arms of a class of 54. Every arm's probability is positive.

    Args:
        key: a typed random key.
        groups: the class of each arm, 0 to `classes` - 1.
        classes: the number of classes, each with at least one arm.
    """
    pair_key, order_key, share_key, residual_key, even_key, within_key = jax.random.split(key, 6)
    order = jax.random.permutation(order_key, classes)
    share = jax.random.uniform(share_key) * jax.random.bernoulli(pair_key).astype(jnp.float32)
    focus = jnp.zeros(classes).at[order[0]].add(1.0 - share).at[order[-1]].add(share)
    others = jnp.ones(classes).at[order[0]].set(0.0)
    others = jnp.where((jnp.arange(classes) == order[-1]) & (share > 0), 0.0, others)
    residual = jax.random.uniform(residual_key, minval=MIN_RESIDUAL_MASS, maxval=MAX_RESIDUAL_MASS)
    mass = (1.0 - residual) * focus + residual * others / jnp.maximum(others.sum(), 1.0)

    # The floor keeps the fourth power of every arm, and every small share of a class, positive.
    split = jax.random.uniform(within_key, groups.shape, minval=0.1) ** 4
    split = jnp.where(jax.random.bernoulli(even_key), jnp.ones_like(split), split)
    total = class_masses(split, groups, classes)
    return _normalise(jnp.maximum(mass, 1e-4)[groups] * split / total[groups])


def best_action(state: BanditState, key: Key) -> ArmVector:
    """Return the best mixture by the critic's predicted rewards, chosen with `config.selection`.

    - candidates: the mean of the `average_best` best of 2 * `candidates` random mixtures from
      `candidate_prior`. Birdie, section 3.3, takes the single best; the published code takes the mean of 8.
    - top_arms: the `top_arms` best arms with equal probability (RL-MoD, early draft section 4.1). The draft
      mentions the estimated reward of objective i under the present parameters, and synergies between
      objectives. Here the critic scores the action that trains on arm i alone, and arms are ranked by the
      sum of all rewards of this action, not only by arm i's own reward.
    """
    if state.config.selection == "top_arms":
        scores = candidate_scores(state, jnp.eye(state.arms))
        _, best = jax.lax.top_k(scores, state.config.top_arms)
        return jnp.zeros(state.arms).at[best].set(1.0 / state.config.top_arms)
    candidates = random_candidates(key, state.config, state.groups, state.classes)
    _, best = jax.lax.top_k(candidate_scores(state, candidates), state.config.average_best)
    return _normalise(candidates[best].mean(axis=0))


def random_candidates(
    key: Key, config: BanditConfig, groups: Int[Array, " arms"], classes: int
) -> Float[Array, "candidates arms"]:
    """Return `config.candidates` random mixtures, followed by the same number of sharpened mixtures.

    - `candidate_prior` arms: uniform numbers over arms, or their fourth powers, normalised (the published
      code). A sum of many draws hardly varies, so a class of n among 104 arms always gets about n / 104.
    - `candidate_prior` classes: the same numbers over classes, and over the arms of each class to split its
      share. If every class has one arm, the two priors are the same distribution.

    Args:
        key: a typed random key.
        config: the number of candidates and their prior.
        groups: the class of each arm, 0 to `classes` - 1.
        classes: the number of classes, each with at least one arm.
    """
    arms_key, classes_key = jax.random.split(key)
    within = _draw_some_sharpened(arms_key, config.candidates, groups.size)
    if config.candidate_prior == "arms":
        return _normalise(within)
    mass = _normalise(_draw_some_sharpened(classes_key, config.candidates, classes))
    return _normalise((mass / class_masses(within, groups, classes))[:, groups] * within)


def _draw_some_sharpened(key: Key, count: int, size: int) -> Float[Array, "candidates size"]:
    # The floor keeps the sum of a vector positive, and so every arm's probability after averaging.
    uniform = jax.random.uniform(key, (2 * count, size), minval=1e-3)
    return jnp.concatenate([uniform[:count], uniform[count:] ** 4])


@jax.jit
def candidate_scores(
    state: BanditState, candidates: Float[Array, "candidates arms"]
) -> Float[Array, " candidates"]:
    """Return the sum over arms of the class-scaled rewards that the critic predicts for each candidate.

    The critic reads the history once, up to the current observation. Each candidate then costs one step,
    with the losses of the current observation.

    Args:
        state: a state of policy birdie, after at least one `observe`.
        candidates: any number of mixtures.

    Raises:
        ValueError: the state has no critic, or the candidates do not have shape [candidates, arms].
    """
    if not isinstance(state.policy_state, CriticState):
        raise ValueError(f"candidate_scores: policy {state.config.policy!r} has no critic")
    if candidates.ndim != 2 or candidates.shape[1] != state.arms:
        raise ValueError(
            f"candidate_scores: candidates must be [candidates, {state.arms}]; found {candidates.shape}"
        )
    critic = make_critic(state.config, state.arms)
    variables = {"params": state.policy_state.parameters}
    row = current_row(state)
    cache = critic.apply(variables, history_steps(state, row), row, method="prefill")
    losses = state.losses[row]

    def score(candidate: ArmVector) -> Scalar:
        step = critic_inputs(losses, candidate)
        return jnp.sum(cast(Array, critic.apply(variables, cache, step, method="predict_next")))

    return jax.lax.map(score, candidates, batch_size=min(CHUNK, candidates.shape[0]))


def _normalise(vectors: Float[Array, "*candidates arms"]) -> Float[Array, "*candidates arms"]:
    return vectors / vectors.sum(axis=-1, keepdims=True)
