"""The bandit's state, how it starts, and how it takes in what was measured."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from birdie_jax.array_types import Key
from birdie_jax.bandit.critic import critic_inputs, make_critic
from birdie_jax.bandit.learning import critic_optimizer, learn
from birdie_jax.bandit.reward import reward
from birdie_jax.config_sections import BanditConfig

# What a decision's key is folded with, so that no two uses share random numbers.
LEARNING, PROPOSING = 0, 1


@flax.struct.dataclass
class BanditState:
    """Everything the bandit knows: a pytree of plain arrays that lives in the train state.

    Row k of the history belongs to observation k: the losses measured then, the action (mixture) in force
    from then on, and the rewards that this action had earned by observation k + 1. A run of n decisions
    observes n + 1 times. Should it observe oftener, the oldest row is dropped.

    Attributes:
        mixture: float32 [arms], the probabilities in force; they sum to 1.
        losses: float32 [decisions + 1, arms], as measured, finite or not.
        actions: float32 [decisions + 1, arms].
        rewards: float32 [decisions + 1, arms], not scaled by class.
        count: int32, observations so far.
        critic: the critic's parameters; empty unless the policy is birdie.
        critic_optimizer: state of its optimizer; empty likewise.
        key: uint32 [2], data of a threefry key; every random number is drawn from it, `count` and its use.
        initial: float32 [arms], the mixture's own weights, summing to 1.
        groups: int32 [arms], class of each arm, from 0 to classes - 1.
        class_scale: float32 [arms], 1 / (arms in the arm's class).
        config: static.
        decisions: static, decisions of the whole run.
        classes: static, number of classes.
    """

    mixture: Any
    losses: Any
    actions: Any
    rewards: Any
    count: Any
    critic: Any
    critic_optimizer: Any
    key: Any
    initial: Any
    groups: Any
    class_scale: Any
    config: BanditConfig = flax.struct.field(pytree_node=False)
    decisions: int = flax.struct.field(pytree_node=False)
    classes: int = flax.struct.field(pytree_node=False)

    @property
    def arms(self) -> int:
        """Number of arms."""
        return self.mixture.shape[-1]


def init_bandit(
    config: BanditConfig,
    weights: ArrayLike | Sequence[Any],
    groups: ArrayLike | Sequence[Any],
    num_decisions: int,
    key: ArrayLike,
) -> BanditState:
    """Return the state of a run before its first observation.

    Args:
        config: policy, critic, selection and exploration.
        weights: [arms], the mixture's own weights, at least 0; they need not sum to 1. Concrete.
        groups: [arms], integers that name each arm's class. Concrete.
        num_decisions: decisions of the whole run; the history's size and the exploration schedule.
        key: a JAX random key, typed or raw; may be traced.

    Returns:
        A state whose mixture is `weights` normalised (policies birdie and fixed) or uniform.

    Raises:
        ValueError: an argument has a wrong shape or value; the message names it.
    """
    weights, groups, classes = _check_arms(weights, groups)
    arms = weights.size
    if num_decisions < 1:
        raise ValueError(f"init_bandit: num_decisions must be at least 1; found {num_decisions}")
    if config.policy not in ("birdie", "fixed", "uniform"):
        raise ValueError(f"bandit.policy: found {config.policy!r}; allowed: birdie, fixed, uniform")
    if config.selection not in ("candidates", "top_arms"):
        raise ValueError(f"bandit.selection: found {config.selection!r}; allowed: candidates, top_arms")
    if config.candidate_prior not in ("classes", "arms"):
        raise ValueError(
            f"bandit.candidate_prior: found {config.candidate_prior!r}; allowed: classes, arms"
        )
    if config.selection == "top_arms" and config.top_arms > arms:
        raise ValueError(f"bandit.top_arms: found {config.top_arms}; allowed: at most the {arms} arms")

    initial = jnp.asarray(weights / weights.sum(), jnp.float32)
    # The same generator whatever the caller's key or the platform's default.
    data = jax.random.bits(key, (2,), jnp.uint32)
    critic, optimizer_state = {}, {}
    if config.policy == "birdie":
        critic, optimizer_state = _init_critic(config, arms, data)
    history = jnp.zeros((num_decisions + 1, arms), jnp.float32)
    return BanditState(
        mixture=jnp.full((arms,), 1.0 / arms, jnp.float32) if config.policy == "uniform" else initial,
        losses=history,
        actions=history,
        rewards=history,
        count=jnp.int32(0),
        critic=critic,
        critic_optimizer=optimizer_state,
        key=data,
        initial=initial,
        groups=jnp.asarray(groups, jnp.int32),
        class_scale=jnp.asarray(1.0 / np.bincount(groups)[groups], jnp.float32),
        config=config,
        decisions=num_decisions,
        classes=classes,
    )


@jax.jit
def observe(state: BanditState, losses: ArrayLike) -> BanditState:
    """Take in the validation loss of every arm, measured now under the mixture in force.

    From the second observation on, the action before it gets its rewards and, where the policy is birdie,
    the critic learns from all actions whose rewards are known.

    A loss that is NaN or infinite is kept as it is in `losses`, but the arm's rewards on both sides of it
    are 0, and the critic reads 0 in its place: one diverged arm does not spoil the others.

    Args:
        state: after the last `propose` (or `observe`, then the mixture simply went on).
        losses: float32 [arms].

    Raises:
        ValueError: `losses` has a wrong shape.
    """
    losses = jnp.asarray(losses, jnp.float32)
    if losses.shape != state.mixture.shape:
        raise ValueError(f"observe: losses must have shape {state.mixture.shape}; found {losses.shape}")
    # Beyond the planned number of decisions the history slides; until then `row` is `count`.
    last = state.decisions
    slide = (state.count > last).astype(jnp.int32)
    all_losses, actions, rewards = (
        jnp.roll(rows, -slide, axis=0) for rows in (state.losses, state.actions, state.rewards)
    )
    row = jnp.minimum(state.count, last)
    before = jnp.maximum(row - 1, 0)
    earned = jnp.where(
        jnp.isfinite(all_losses[before]) & jnp.isfinite(losses), reward(all_losses[before], losses), 0.0
    )
    # The first observation has no action before it: row 0 is cleared here and filled by the second.
    rewards = rewards.at[before].set(jnp.where(row > 0, earned, 0.0)).at[row].set(0.0)
    state = state.replace(
        losses=all_losses.at[row].set(losses),
        actions=actions.at[row].set(state.mixture),
        rewards=rewards,
        count=state.count + 1,
    )
    if state.config.policy != "birdie":
        return state
    critic, optimizer_state = learn(
        state.config,
        make_critic(state.config, state.arms),
        state.critic,
        state.critic_optimizer,
        steps=history_steps(state, row),
        targets=state.rewards * state.class_scale,
        used=row,
        key=decision_key(state, LEARNING),
    )
    return state.replace(critic=critic, critic_optimizer=optimizer_state)


def current_row(state: BanditState) -> Int[Array, ""]:
    """Return the history's row of the last observation (0 before the first)."""
    return jnp.clip(state.count - 1, 0, state.decisions)


def history_steps(state: BanditState, used: Int[Array, ""]) -> Float[Array, "length inputs"]:
    """Return the critic's inputs for every row of the history, zero from row `used` on."""
    is_used = (jnp.arange(state.losses.shape[0]) < used)[:, None]
    return jnp.where(is_used, critic_inputs(state.losses, state.actions), 0.0)


def decision_key(state: BanditState, use: int) -> Key:
    """Return the key of the present decision for `use`: a function of the run's key and `count` alone."""
    key = jax.random.wrap_key_data(state.key, impl="threefry2x32")
    return jax.random.fold_in(jax.random.fold_in(key, state.count), use)


@partial(jax.jit, static_argnums=(0, 1))
def _init_critic(config: BanditConfig, arms: int, key_data: jax.Array) -> tuple[Any, Any]:
    one_step = jnp.zeros((1, 2 * arms), jnp.float32)
    key = jax.random.wrap_key_data(key_data, impl="threefry2x32")
    critic = make_critic(config, arms)
    parameters = critic.init(key, one_step, jnp.int32(1))["params"]
    return parameters, critic_optimizer(config, critic).init(parameters)


def _check_arms(
    weights: ArrayLike | Sequence[Any], groups: ArrayLike | Sequence[Any]
) -> tuple[np.ndarray, np.ndarray, int]:
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
    names, groups = np.unique(groups, return_inverse=True)
    return weights, groups.astype(np.int32), names.size
