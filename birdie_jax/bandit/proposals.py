"""How the next mixture is chosen: explore, or the best that the critic can think of."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from birdie_jax.array_types import ArmVector, Key, Scalar
from birdie_jax.bandit.critic import critic_inputs, make_critic
from birdie_jax.bandit.state import PROPOSING, BanditState, current_row, decision_key, history_steps
from birdie_jax.config_sections import BanditConfig

# Candidates that are scored at once: bounds memory to a few tens of megabytes at the paper's size.
CHUNK = 1024
# An exploring action leaves this share to the classes that it did not choose.
CRUMBS_LEAST, CRUMBS_MOST = 0.02, 0.2


@jax.jit
def propose(state: BanditState) -> BanditState:
    """Choose the mixture that is in force until the next observation, and record it in the history.

    Policies fixed and uniform keep their mixture. Policy birdie explores with `explore_probability`, and
    otherwise takes what `config.selection` finds best. Called twice at one observation it gives the same.
    """
    if state.config.policy == "birdie":
        explores_key, action_key, best_key = jax.random.split(decision_key(state, PROPOSING), 3)
        decision = jnp.maximum(state.count - 1, 0)
        probability = explore_probability(state.config, decision, state.decisions)
        mixture = jax.lax.cond(
            jax.random.uniform(explores_key) < probability,
            lambda: exploring_action(action_key, state.groups, state.classes),
            lambda: best_action(state, best_key),
        )
        state = state.replace(mixture=mixture)
    return state.replace(actions=state.actions.at[current_row(state)].set(state.mixture))


def explore_probability(config: BanditConfig, decision: Int[Array, ""], num_decisions: int) -> Scalar:
    """Return the probability that decision 0, 1, .. of `num_decisions` explores.

    It is 1 for the first `explore_first` of all decisions, then falls along half a cosine from
    `explore_from` to `explore_to` over the next `explore_decay`, and stays there.
    """
    progress = decision.astype(jnp.float32) / num_decisions
    # A decay of no length is a step down.
    fallen = (progress - config.explore_first) / max(config.explore_decay, 1e-6)
    height = 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.clip(fallen, 0.0, 1.0)))
    later = config.explore_to + (config.explore_from - config.explore_to) * height
    return jnp.where(progress < config.explore_first, 1.0, later)


def exploring_action(key: Key, groups: Int[Array, " arms"], classes: int) -> ArmVector:
    """Return a random mixture that puts most of its mass on one or two classes.

    One or two classes are chosen, equally likely; two share the mass at random. All other classes share
    2 to 20 % evenly. Within a class the mass is split evenly at one decision in two, else by the fourth
    power of uniform numbers: a class of 54 arms could otherwise never tell its arms apart. Every arm's
    probability is positive.

    Args:
        key: typed random key.
        groups: class of each arm, 0 to `classes` - 1.
        classes: number of classes, each with at least one arm.
    """
    pair_key, order_key, share_key, crumbs_key, even_key, within_key = jax.random.split(key, 6)
    order = jax.random.permutation(order_key, classes)
    share = jax.random.uniform(share_key) * jax.random.bernoulli(pair_key).astype(jnp.float32)
    focus = jnp.zeros(classes).at[order[0]].add(1.0 - share).at[order[-1]].add(share)
    others = jnp.ones(classes).at[order[0]].set(0.0)
    others = jnp.where((jnp.arange(classes) == order[-1]) & (share > 0), 0.0, others)
    crumbs = jax.random.uniform(crumbs_key, minval=CRUMBS_LEAST, maxval=CRUMBS_MOST)
    mass = (1.0 - crumbs) * focus + crumbs * others / jnp.maximum(others.sum(), 1.0)

    # The floor keeps the fourth power of every arm, and of every class that got a small share, positive.
    split = jax.random.uniform(within_key, groups.shape, minval=0.1) ** 4
    split = jnp.where(jax.random.bernoulli(even_key), jnp.ones_like(split), split)
    total = class_masses(split, groups, classes)
    return _normalised(jnp.maximum(mass, 1e-4)[groups] * split / total[groups])


def best_action(state: BanditState, key: Key) -> ArmVector:
    """Return the mixture that `config.selection` finds best by the critic's predicted rewards.

    - candidates: the mean of the `average_best` best of 2 * `candidates` random mixtures, drawn as
      `candidate_prior` says (Birdie, section 3.3, takes the single best; the published code the mean of 8).
    - top_arms: the `top_arms` best arms with equal probability (RL-MoD, early draft section 4.1). The draft
      speaks of the estimated reward of objective i under the present parameters, and of synergies between
      objectives; it is read here as: ask the critic for the action that trains on arm i alone, and rank
      arms by all that this action would earn, not by arm i's own reward only.
    """
    if state.config.selection == "top_arms":
        scores = candidate_scores(state, jnp.eye(state.arms))
        _, best = jax.lax.top_k(scores, state.config.top_arms)
        return jnp.zeros(state.arms).at[best].set(1.0 / state.config.top_arms)
    candidates = random_candidates(key, state.config, state.groups, state.classes)
    _, best = jax.lax.top_k(candidate_scores(state, candidates), state.config.average_best)
    return _normalised(candidates[best].mean(axis=0))


def random_candidates(
    key: Key, config: BanditConfig, groups: Int[Array, " arms"], classes: int
) -> Float[Array, "candidates arms"]:
    """Return `config.candidates` random mixtures, then as many sharpened ones.

    - `candidate_prior` arms: uniform numbers over arms, or their fourth powers, normalised (the published
      code). A sum of many draws hardly varies: a class of n among 104 arms always gets about n / 104.
    - `candidate_prior` classes: the same numbers over classes, and over the arms of each class to split
      what it got. Where each arm is a class of its own the two are the same distribution.

    Args:
        key: typed random key.
        config: number of candidates and their prior.
        groups: class of each arm, 0 to `classes` - 1.
        classes: number of classes, each with at least one arm.
    """
    arms_key, classes_key = jax.random.split(key)
    within = _some_sharpened(arms_key, config.candidates, groups.size)
    if config.candidate_prior == "arms":
        return _normalised(within)
    mass = _normalised(_some_sharpened(classes_key, config.candidates, classes))
    return _normalised((mass / class_masses(within, groups, classes))[:, groups] * within)


def _some_sharpened(key: Key, count: int, size: int) -> Float[Array, "candidates size"]:
    # The floor keeps a vector's sum, and after averaging every arm's probability, positive.
    uniform = jax.random.uniform(key, (2 * count, size), minval=1e-3)
    return jnp.concatenate([uniform[:count], uniform[count:] ** 4])


@jax.jit
def candidate_scores(
    state: BanditState, candidates: Float[Array, "candidates arms"]
) -> Float[Array, " candidates"]:
    """Return the sum over arms of the class-scaled rewards that the critic predicts for each candidate.

    The critic reads the history once, up to the present observation; then each candidate costs one step
    from there, with the losses of the present observation.

    Args:
        state: after at least one `observe`; the policy must be birdie.
        candidates: mixtures; the number of them is free.

    Raises:
        ValueError: the state has no critic, or the candidates are not of [candidates, arms].
    """
    if state.config.policy != "birdie":
        raise ValueError(f"candidate_scores: policy {state.config.policy!r} has no critic")
    if candidates.ndim != 2 or candidates.shape[1] != state.arms:
        raise ValueError(
            f"candidate_scores: candidates must be [candidates, {state.arms}]; found {candidates.shape}"
        )
    critic = make_critic(state.config, state.arms)
    variables = {"params": state.critic}
    row = current_row(state)
    memory = critic.apply(variables, history_steps(state, row), row, method="remember")
    losses = state.losses[row]

    def score(candidate):
        step = critic_inputs(losses, candidate)
        return jnp.sum(critic.apply(variables, memory, step, method="predict_next"))

    return jax.lax.map(score, candidates, batch_size=min(CHUNK, candidates.shape[0]))


def class_masses(
    mixtures: Float[Array, "*candidates arms"], groups: Int[Array, " arms"], classes: int
) -> Float[Array, "*candidates classes"]:
    """Return the sum over the arms of each class."""
    # A reduction, not a scatter: on a GPU the order in which a scatter adds is not the same every time.
    is_member = groups == jnp.arange(classes)[:, None]
    return jnp.sum(jnp.where(is_member, mixtures[..., None, :], 0.0), axis=-1)


def _normalised(vectors: Float[Array, "*candidates arms"]) -> Float[Array, "*candidates arms"]:
    return vectors / vectors.sum(axis=-1, keepdims=True)
