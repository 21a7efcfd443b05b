"""Classes of arms: their shares of a mixture, their losses, and how a class's share falls to its arms."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from birdie_jax.array_types import ArmVector
from birdie_jax.bandit.state import BanditState, current_row

ClassVector = Float[Array, " classes"]
ClassHistory = Float[Array, "history classes"]


def class_masses(
    mixtures: Float[Array, "*candidates arms"], groups: Int[Array, " arms"], classes: int
) -> Float[Array, "*candidates classes"]:
    """Return the sum over the arms of each class."""
    # A reduction, not a scatter: on a GPU the order in which a scatter adds is not the same every time.
    is_member = groups == jnp.arange(classes)[:, None]
    return jnp.sum(jnp.where(is_member, mixtures[..., None, :], 0.0), axis=-1)


def class_means(state: BanditState, values: Float[Array, "*rows arms"]) -> Float[Array, "*rows classes"]:
    """Return the mean over the arms of each class."""
    return class_masses(values * state.class_scale, state.groups, state.classes)


def own_shares(state: BanditState) -> ClassVector:
    """Return the share of each class in the mixture's own weights."""
    return class_masses(state.initial, state.groups, state.classes)


def over_arms(state: BanditState, shares: ClassVector) -> ArmVector:
    """Return the mixture in which a class divides its share among its arms as the own weights do.

    Arms of a class whose own weights are 0 have equal shares.
    """
    total = own_shares(state)[state.groups]
    within = jnp.where(total > 0, state.initial / jnp.where(total > 0, total, 1.0), state.class_scale)
    return shares[state.groups] * within


def class_falls(state: BanditState) -> ClassHistory:
    """Return by how much the mean loss of each class fell under the mixture of each row, in nats.

    0 in the rows whose action has no observation after it yet, and where a loss is not finite.
    """
    is_known = jnp.arange(state.losses.shape[0])[:, None] < current_row(state)
    falls = class_means(state, state.losses - jnp.roll(state.losses, -1, axis=0))
    return jnp.where(is_known & jnp.isfinite(falls), falls, 0.0)


def row_decisions(state: BanditState) -> Int[Array, " history"]:
    """Return the number of the decision that each row of the history belongs to; negative: none."""
    rows = jnp.arange(state.losses.shape[0])
    return rows + jnp.maximum(state.count - 1 - state.decisions, 0)


def trailing_means(state: BanditState, values: ClassHistory, half_life: float) -> ClassHistory:
    """Return for each row the mean of this row and those before it; a row counts half after `half_life`."""
    rows = jnp.arange(values.shape[0])
    age = rows[:, None] - rows
    is_past = (age >= 0) & (row_decisions(state) >= 0)
    weights = jnp.where(is_past, 0.5 ** (jnp.maximum(age, 0) / half_life), 0.0)
    total = jnp.maximum(weights.sum(axis=1, keepdims=True), 1e-30)
    return jnp.matmul(weights / total, values, precision="highest")
