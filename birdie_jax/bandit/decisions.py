"""The bandit's functions: create the state, record an observation, and choose the next mixture."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from birdie_jax.array_types import ArmVector
from birdie_jax.bandit.policies import find_policy
from birdie_jax.bandit.rewards import find_reward
from birdie_jax.bandit.state import BanditState, current_row
from birdie_jax.bandit_config import BanditConfig


def init_bandit(
    config: BanditConfig,
    weights: ArrayLike | Sequence[Any],
    groups: ArrayLike | Sequence[Any],
    num_decisions: int,
    key: ArrayLike,
    *,
    class_names: Sequence[str] | None = None,
) -> BanditState:
    """Return the state of a run before its first observation.

    Args:
        config: the reward, the policy and their settings.
        weights: [arms], the mixture's own weights, at least 0; they need not sum to 1. Must be concrete.
        groups: [arms], integers that identify each arm's class. Must be concrete.
        num_decisions: the number of decisions in the whole run. It sets the size of the history and the
            length of the exploration schedule.
        key: a JAX random key, typed or raw; may be traced.
        class_names: the names of the classes, in the order of their integers, for policies with settings
            that refer to classes by name. The default is the integers.

    Returns:
        A state with the policy's initial mixture for the normalised `weights`.

    Raises:
        ValueError: an argument has a wrong shape or value; the message names it.
    """
    weights, groups, numbers = _check_arms(weights, groups)
    arms = weights.size
    if num_decisions < 1:
        raise ValueError(f"init_bandit: num_decisions must be at least 1; found {num_decisions}")
    policy = find_policy(config.policy)
    policy.check(config, arms)
    find_reward(config.reward)
    names = tuple(str(number) for number in numbers) if class_names is None else tuple(class_names)
    if len(names) != len(numbers):
        raise ValueError(
            f"init_bandit: class_names must be one for each of the {len(numbers)} classes; "
            f"found {len(names)}"
        )
    policy.check_classes(config, names, num_decisions)

    initial = jnp.asarray(weights / weights.sum(), jnp.float32)
    # Use the same generator for every kind of key and on every platform.
    data = jax.random.bits(key, (2,), jnp.uint32)
    history = jnp.zeros((num_decisions + 1, arms), jnp.float32)
    none_yet = jnp.full(arms, jnp.nan, jnp.float32)
    return BanditState(
        mixture=policy.initial_mixture(initial),
        losses=history,
        actions=history,
        rewards=history,
        count=jnp.int32(0),
        policy_state=policy.init_state(config, arms, data),
        key=data,
        initial=initial,
        groups=jnp.asarray(groups, jnp.int32),
        class_scale=jnp.asarray(1.0 / np.bincount(groups)[groups], jnp.float32),
        config=config,
        decisions=num_decisions,
        classes=len(numbers),
        class_names=names,
        accuracies=none_yet if policy.reads_accuracies else None,
        gains=none_yet if policy.reads_gains else None,
    )


@jax.jit
def observe(
    state: BanditState,
    losses: ArrayLike,
    accuracies: ArrayLike | None = None,
    gains: ArrayLike | None = None,
) -> BanditState:
    """Record the validation loss of every arm under the current mixture.

    From the second observation on, this sets the rewards of the previous action. Then the policy updates
    its own arrays from the new row of the history.

    A NaN or infinite loss stays in `losses`, but the arm's rewards before and after it are 0, and birdie's
    critic reads 0 instead. One diverged arm does not affect the others.

    Args:
        state: the state after the last `propose`. After another `observe`, the mixture stays the same.
        losses: float32 [arms].
        accuracies: float32 [arms], the share of correct target tokens; required by a policy that reads
            them.
        gains: float32 [arms], the gains of gradients; required by a policy that reads them.

    Raises:
        ValueError: an argument has a wrong shape, or an argument that the policy reads is missing.
    """
    losses = _of_every_arm(state, "losses", losses)
    extra = {}
    for name, given in (("accuracies", accuracies), ("gains", gains)):
        if getattr(state, name) is not None:
            if given is None:
                raise ValueError(f"observe: policy {state.config.policy!r} requires {name}; found None")
            extra[name] = _of_every_arm(state, name, given)
    # After the planned number of decisions, the history drops its oldest row. Until then, `row` is `count`.
    last = state.decisions
    slide = (state.count > last).astype(jnp.int32)
    all_losses, actions, rewards = (
        jnp.roll(rows, -slide, axis=0) for rows in (state.losses, state.actions, state.rewards)
    )
    row = jnp.minimum(state.count, last)
    before = jnp.maximum(row - 1, 0)
    is_finite = jnp.isfinite(all_losses[before]) & jnp.isfinite(losses)
    all_losses = all_losses.at[row].set(losses)
    earned = jnp.where(is_finite, find_reward(state.config.reward)(state.config, all_losses, row), 0.0)
    # No action precedes the first observation. It clears row 0, which the second observation fills.
    rewards = rewards.at[before].set(jnp.where(row > 0, earned, 0.0)).at[row].set(0.0)
    state = state.replace(
        losses=all_losses,
        actions=actions.at[row].set(state.mixture),
        rewards=rewards,
        count=state.count + 1,
        **extra,
    )
    return state.replace(policy_state=find_policy(state.config.policy).update(state))


@jax.jit
def propose(state: BanditState) -> BanditState:
    """Choose the mixture until the next observation, and record it in the history.

    A second call at the same observation returns the same mixture.

    Args:
        state: the bandit after `observe`.
    """
    state = state.replace(mixture=find_policy(state.config.policy).propose(state))
    return state.replace(actions=state.actions.at[current_row(state)].set(state.mixture))


def _of_every_arm(state: BanditState, name: str, values: ArrayLike) -> ArmVector:
    values = jnp.asarray(values, jnp.float32)
    if values.shape != state.mixture.shape:
        raise ValueError(f"observe: {name} must have shape {state.mixture.shape}; found {values.shape}")
    return values


def _check_arms(
    weights: ArrayLike | Sequence[Any], groups: ArrayLike | Sequence[Any]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    weights = np.asarray(weights, np.float64)
    groups = np.asarray(groups)
    if weights.ndim != 1 or weights.size == 0:
        raise ValueError(f"init_bandit: weights must have shape [arms]; found {weights.shape}")
    if not np.all(np.isfinite(weights)) or np.any(weights < 0) or weights.sum() <= 0:
        raise ValueError(
            f"init_bandit: weights must be finite, at least 0 and not all 0; found {weights.tolist()}"
        )
    if groups.shape != weights.shape:
        raise ValueError(
            f"init_bandit: groups must have the shape {weights.shape} of weights; found {groups.shape}"
        )
    if not np.issubdtype(groups.dtype, np.integer):
        raise ValueError(f"init_bandit: groups must be integers; found {groups.dtype}")
    numbers, groups = np.unique(groups, return_inverse=True)
    return weights, groups.astype(np.int32), numbers
