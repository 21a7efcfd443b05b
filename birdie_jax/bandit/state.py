"""The bandit's state, and functions that read it."""

import typing

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from birdie_jax.array_types import ArmVector, Key, KeyData
from birdie_jax.bandit.critic import critic_inputs
from birdie_jax.bandit_config import BanditConfig

# Each use of a decision's key folds in its own number, so no two uses share random numbers.
LEARNING, PROPOSING, EXPLORING = 0, 1, 2


# No type checks at runtime: JAX also builds this class with shapes, shardings or placeholders as leaves.
@typing.no_type_check
class BanditState(flax.struct.PyTreeNode):
    """The state of the bandit: a pytree of plain arrays that is part of the train state.

    Row k of the history belongs to observation k. It has the measured losses, the action (mixture) that
    follows, and the rewards of this action at observation k + 1. A run of n decisions has n + 1
    observations. A further observation drops the oldest row.

    Attributes:
        mixture: float32 [arms], the current probabilities; they sum to 1.
        losses: float32 [decisions + 1, arms], as measured, finite or not.
        actions: float32 [decisions + 1, arms], the mixture after each observation.
        rewards: float32 [decisions + 1, arms], not scaled by class.
        count: int32, observations so far.
        policy_state: the policy's own arrays (`Policy.init_state`); empty for a policy that has none.
        key: uint32 [2], data of a threefry key. All random numbers depend on it, `count` and their use.
        initial: float32 [arms], the mixture's own weights; they sum to 1.
        groups: int32 [arms], class of each arm, from 0 to classes - 1.
        class_scale: float32 [arms], 1 / (arms in the arm's class).
        config: the bandit's configuration; static.
        decisions: the number of decisions of the whole run; static.
        classes: the number of classes; static.
        class_names: the name of each class, in the order of `groups`; static.
        accuracies: float32 [arms], of the last observation; None if the policy does not read them.
        gains: float32 [arms], the gains of gradients (`policies/gradients.py`) at the last observation;
            None if the policy does not read them.
    """

    mixture: ArmVector
    losses: Float[Array, "history arms"]
    actions: Float[Array, "history arms"]
    rewards: Float[Array, "history arms"]
    count: Int[Array, ""]
    policy_state: PyTree
    key: KeyData
    initial: ArmVector
    groups: Int[Array, " arms"]
    class_scale: ArmVector
    config: BanditConfig = flax.struct.field(pytree_node=False)
    decisions: int = flax.struct.field(pytree_node=False)
    classes: int = flax.struct.field(pytree_node=False)
    class_names: tuple[str, ...] = flax.struct.field(pytree_node=False)
    accuracies: ArmVector | None = None
    gains: ArmVector | None = None

    @property
    def arms(self) -> int:
        """Number of arms."""
        return self.mixture.shape[-1]


def current_row(state: BanditState) -> Int[Array, ""]:
    """Return the row of the last observation in the history (0 before the first)."""
    return jnp.clip(state.count - 1, 0, state.decisions)


def history_steps(state: BanditState, used: Int[Array, ""]) -> Float[Array, "length inputs"]:
    """Return the critic's inputs for every row of the history, zero from row `used` on."""
    is_used = (jnp.arange(state.losses.shape[0]) < used)[:, None]
    return jnp.where(is_used, critic_inputs(state.losses, state.actions), 0.0)


def decision_key(state: BanditState, use: int) -> Key:
    """Return the current decision's key for `use`. It depends only on the run's key, `count` and `use`."""
    return numbered_key(state, state.count, use)


def numbered_key(state: BanditState, number: Int[Array, ""], use: int) -> Key:
    """Return the key of `number`, such as the number of a pair of decisions, for `use`."""
    key = jax.random.wrap_key_data(state.key, impl="threefry2x32")
    return jax.random.fold_in(jax.random.fold_in(key, number), use)
