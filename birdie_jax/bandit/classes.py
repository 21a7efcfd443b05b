"""Classes of arms: their shares of a mixture, their losses, and the shares of the arms in a class."""

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
    # A reduction is deterministic. A scatter on a GPU adds in a different order every time.
    is_member = groups == jnp.arange(classes)[:, None]
    return jnp.sum(jnp.where(is_member, mixtures[..., None, :], 0.0), axis=-1)


def class_means(state: BanditState, values: Float[Array, "*rows arms"]) -> Float[Array, "*rows classes"]:
    """Return the mean over the arms of each class."""
    return class_masses(values * state.class_scale, state.groups, state.classes)


def own_shares(state: BanditState) -> ClassVector:
    """Return the share of each class in the mixture's own weights."""
    return class_masses(state.initial, state.groups, state.classes)


def over_arms(state: BanditState, shares: ClassVector) -> ArmVector:
    """Return the mixture that splits each class's share among its arms by the mixture's own weights.

    If all own weights of a class are 0, its arms have equal shares.
    """
    total = own_shares(state)[state.groups]
    within = jnp.where(total > 0, state.initial / jnp.where(total > 0, total, 1.0), state.class_scale)
    return shares[state.groups] * within


def class_falls(state: BanditState) -> ClassHistory:
    """Return the fall of each class's mean loss under the mixture of each row, in nats.

    The fall is 0 in rows without a later observation, and where a loss is not finite.
    """
    is_known = jnp.arange(state.losses.shape[0])[:, None] < current_row(state)
    falls = class_means(state, state.losses - jnp.roll(state.losses, -1, axis=0))
    return jnp.where(is_known & jnp.isfinite(falls), falls, 0.0)


def row_decisions(state: BanditState) -> Int[Array, " history"]:
    """Return the number of the decision in each row of the history. A negative number means none."""
    rows = jnp.arange(state.losses.shape[0])
    return rows + jnp.maximum(state.count - 1 - state.decisions, 0)


def trailing_means(state: BanditState, values: ClassHistory, half_life: float) -> ClassHistory:
    """Return for each row the mean of it and all earlier rows. Weights halve every `half_life` rows."""
    rows = jnp.arange(values.shape[0])
    age = rows[:, None] - rows
    is_past = (age >= 0) & (row_decisions(state) >= 0)
    weights = jnp.where(is_past, 0.5 ** (jnp.maximum(age, 0) / half_life), 0.0)
    total = jnp.maximum(weights.sum(axis=1, keepdims=True), 1e-30)
    return jnp.matmul(weights / total, values, precision="highest")
