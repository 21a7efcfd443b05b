"""Policy learning_curves: the share of a class follows the slope of its fitted learning curve.

This is ADO (Jiang et al. 2024, "Adaptive data optimization: dynamic sample selection with scaling laws").
The policy fits L(n) = e + b n^-a to the losses of a class, with n the number of past decisions, so all
tokens count for every class. With q the mixture's own shares, h a decaying mean of the shares in use, and
the slope s = a b n^-a / n,

    rho ~ q sqrt(h) s, at least 0.01           shares = 0.9 (mean of all rho so far) + 0.1 rho

The curve is the best of a grid of a and e by relative squared error, with the best b for each pair.
"""

from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from birdie_jax.array_types import ArmVector, KeyData, Scalar
from birdie_jax.bandit.classes import (
    class_masses,
    class_means,
    over_arms,
    own_shares,
    row_decisions,
    trailing_means,
)
from birdie_jax.bandit.policies.registry import Policy, register_policy
from birdie_jax.bandit.state import BanditState, current_row
from birdie_jax.bandit_config import BanditConfig

_EXPONENTS, _ENDS = (0.05, 2.0, 24), (0.0, 0.98, 24)
# The half-life of a mean with a decay factor of 0.9, and the minimum number of losses for a curve.
_HALF_LIFE, _FEWEST = 6.58, 4
_SMALLEST, _INERTIA = 0.01, 0.9


class CurveShares(flax.struct.PyTreeNode):
    """The shares from the curves of all decisions so far.

    Attributes:
        mean: the mean of rho over decisions, as a mixture of arms.
        last: rho of the last decision, as a mixture of arms.
    """

    mean: ArmVector
    last: ArmVector


class Curve(NamedTuple):
    """A fitted learning curve e + b n^-a.

    Attributes:
        end: e, in nats.
        height: b, in nats.
        exponent: a.
    """

    end: Scalar
    height: Scalar
    exponent: Scalar


def fit_curve(
    losses: Float[Array, " history"], numbers: Float[Array, " history"], usable: Bool[Array, " history"]
) -> Curve:
    """Return the curve with the smallest relative squared error over the usable losses.

    Args:
        losses: the losses, in nats.
        numbers: n of each loss; positive for usable losses.
        usable: whether to fit each loss.
    """
    exponents = jnp.geomspace(*_EXPONENTS)
    lowest = jnp.min(jnp.where(usable, losses, jnp.inf))
    ends = lowest * jnp.linspace(*_ENDS)
    powers = jnp.where(usable, jnp.where(usable, numbers, 1.0) ** -exponents[:, None], 0.0)
    weights = jnp.where(usable, 1.0 / jnp.where(usable, losses, 1.0) ** 2, 0.0)
    values = jnp.where(usable, losses, 0.0)
    rest = jnp.where(usable, values - ends[:, None], 0.0)
    height = (
        jnp.einsum("h,ah,eh->ae", weights, powers, rest) / jnp.sum(weights * powers**2, axis=1)[:, None]
    )
    height = jnp.maximum(height, 0.0)
    misfit = rest[None] - height[..., None] * powers[:, None]
    error = jnp.sum(weights * jnp.square(misfit), axis=2)
    best = jnp.unravel_index(jnp.argmin(error), error.shape)
    return Curve(ends[best[1]], height[best], exponents[best[0]])


def update_shares(state: BanditState) -> CurveShares:
    """Return the shares from the curves of all losses so far."""
    own, row = own_shares(state), current_row(state)
    numbers = row_decisions(state).astype(jnp.float32)
    losses = class_means(state, state.losses)
    is_past = (numbers >= 1) & (jnp.arange(numbers.size) <= row)
    usable = is_past[:, None] & jnp.isfinite(losses) & (losses > 0)
    curves = jax.vmap(fit_curve, in_axes=(1, None, 1))(losses, numbers, usable)
    now = jnp.maximum(state.count - 1, 1).astype(jnp.float32)
    slopes = curves.exponent * curves.height * now ** (-curves.exponent - 1.0)
    in_force = trailing_means(state, class_masses(state.actions, state.groups, state.classes), _HALF_LIFE)
    credit = jnp.sqrt(in_force[jnp.maximum(row - 1, 0)])
    wanted = jnp.where(usable.sum(axis=0) >= _FEWEST, own * credit * slopes, jnp.nan)
    total = wanted.sum()
    rho = jnp.where(total > 0, wanted / total, own)
    rho = jnp.where(own > 0, jnp.maximum(rho, _SMALLEST), 0.0)
    last = over_arms(state, rho / rho.sum())
    number = state.count.astype(jnp.float32)
    return CurveShares(state.policy_state.mean * (1.0 - 1.0 / number) + last / number, last)


def curve_mixture(state: BanditState) -> ArmVector:
    """Return nine tenths of the mean shares of all decisions plus a tenth of the last shares."""
    return _INERTIA * state.policy_state.mean + (1.0 - _INERTIA) * state.policy_state.last


def _no_shares(config: BanditConfig, num_arms: int, key: KeyData) -> CurveShares:
    del config, key
    return CurveShares(jnp.zeros(num_arms), jnp.zeros(num_arms))


register_policy(
    "learning_curves", Policy(init_state=_no_shares, update=update_shares, propose=curve_mixture)
)
