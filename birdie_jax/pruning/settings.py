"""The settings of pruning, which determine how many tokens stay, and which."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from types import MappingProxyType
from typing import cast

from jaxtyping import Array, Float

from birdie_jax.config_sections import FinetunePruningConfig
from birdie_jax.errors import ConfigError, PruningError, nearest_first, shown
from birdie_jax.models.influence import DIRECTIONS, NORMS, READOUTS
from birdie_jax.pruning.policies import POLICIES
from birdie_jax.pruning.samples import SHARE_UNITS

Share = float | Float[Array, "*tokens"]
"""A share of a sample's tokens, or one share per token."""


def linear_shares(keep: Share, layers: int) -> tuple[Share, ...]:
    """Return 1 - (1 - keep) l / L for layer l of L, as in the paper; the last layer is above `keep`."""
    return tuple(1 - (1 - keep) * layer / layers for layer in range(layers))


def constant_shares(keep: Share, layers: int) -> tuple[Share, ...]:
    """Return 1 for the first layer, which must read all tokens, and `keep` for the others."""
    return (1.0, *[keep] * (layers - 1))


SCHEDULES: Mapping[str, Callable[[Share, int], tuple[Share, ...]]] = MappingProxyType(
    {"linear": linear_shares, "constant": constant_shares}
)
"""The schedules by name: (final share, layers) -> the share that enters each layer."""


def check_shares(shares: Sequence[float], layers: int) -> str | None:
    """Return the allowed values if `shares` is not a valid schedule; otherwise None."""
    falling = all(one >= other for one, other in pairwise(shares))
    if len(shares) == layers and shares[0] == 1 and falling and shares[-1] > 0:
        return None
    return f"{layers} shares, one a layer: 1 first, never rising, all above 0"


def kept_tokens(share: float, tokens: int, protected: int = 1) -> int:
    """Return the number of a sample's tokens that enter a layer: its share, rounded.

    Args:
        share: the share that enters the layer.
        tokens: the number of tokens in the sample.
        protected: the number of tokens that are never dropped.
    """
    # The same integers as in `samples.share_of`.
    units = math.ceil(share * SHARE_UNITS)
    return max(protected, (units * tokens + SHARE_UNITS // 2) // SHARE_UNITS)


# Norms that only policies and plots use.
_OTHER_NORMS = ("entry", "relative")


@dataclass(frozen=True)
class PruningSettings:
    """The settings of pruning; equal settings compile to the same program.

    Attributes:
        keep: the share of a prompt's tokens at the end of the schedule, above 0; 1 prunes nothing.
        policy: the name of the rule that chooses the tokens to keep.
        schedule: the name of the schedule, "linear" or "constant"; ignored if `shares` is set.
        shares: the share of the tokens that enters each layer; empty: see `schedule`.
        norm: the norm that makes a score of channels: "absolute", "signed" or "l2".
        readout: "gated", with the output gate at the last token; or "state", for later questions.
        directions: "forward" or "both".
        keep_first: whether the first token of a prompt, which names the objective, always stays.
        seed: the seed of the policy "random".
    """

    keep: float = 1.0
    policy: str = "influence"
    schedule: str = "linear"
    shares: tuple[float, ...] = ()
    norm: str = "absolute"
    readout: str = "gated"
    directions: str = "forward"
    keep_first: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        """Check each setting.

        Raises:
            PruningError: a setting is not allowed.
        """
        if not 0 < self.keep <= 1:
            raise PruningError(f"keep: found {self.keep}; allowed: above 0, at most 1")
        _check_name("policy", self.policy, tuple(POLICIES))
        _check_name("schedule", self.schedule, tuple(SCHEDULES))
        _check_name("norm", self.norm, tuple(norm for norm in NORMS if norm not in _OTHER_NORMS))
        _check_name("readout", self.readout, READOUTS)
        _check_name("directions", self.directions, DIRECTIONS)

    def layer_shares(self, layers: int) -> tuple[float, ...]:
        """Return the share of a prompt's tokens that enters each layer.

        Raises:
            PruningError: `shares` has another number of layers.
        """
        if not self.shares:
            return cast(tuple[float, ...], SCHEDULES[self.schedule](self.keep, layers))
        if allowed := check_shares(self.shares, layers):
            raise PruningError(f"shares: found {self.shares}; allowed: {allowed}")
        return self.shares

    @property
    def asked_norm(self) -> str | None:
        """The norm of the scores that layers return; None: no scores."""
        norm = POLICIES[self.policy].norm
        return self.norm if norm == "" else norm


def finetune_settings(config: FinetunePruningConfig) -> PruningSettings:
    """Return the settings of a fine-tuning run; `keep` is the smallest share that a sample may keep.

    Raises:
        ConfigError: a setting is not allowed; the message names the field.
    """
    own = {field.name: getattr(config, field.name) for field in fields(config)}
    keep = 1 - own.pop("max_pruned")
    try:
        return PruningSettings(keep=keep, **own)
    except PruningError as error:
        raise ConfigError(f"config.finetune.pruning.{error}") from error


def _check_name(setting: str, found: str, allowed: Sequence[str]) -> None:
    if found not in allowed:
        raise PruningError(f"{setting}: found {shown(found)}; allowed: {nearest_first(found, allowed)}")


def parse_pruning(keep: float, settings: Sequence[str]) -> PruningSettings:
    """Return the settings of a command.

    Args:
        keep: the share at the end of the schedule.
        settings: texts NAME=VALUE; commas separate the values of `shares`.

    Raises:
        PruningError: a setting is unknown, is given twice, or has a value that is not allowed.
    """
    kinds = {field.name: field.default for field in fields(PruningSettings) if field.name != "keep"}
    given: dict[str, object] = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator or name not in kinds or name in given:
            names = nearest_first(name, kinds)
            raise PruningError(
                f"pruning: found {shown(setting)}; allowed: NAME=VALUE, once each, of {names}"
            )
        given[name] = _parse_value(name, value, kinds[name])
    return PruningSettings(keep=keep, **given)  # pyright: ignore[reportArgumentType] - parsed by type


def _parse_value(name: str, value: str, default: object) -> object:
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[value.lower()]
        if isinstance(default, int):
            return int(value)
        if isinstance(default, tuple):
            return tuple(float(share) for share in value.split(","))
    except (KeyError, ValueError):
        kind = {bool: "true or false", int: "a whole number", tuple: "numbers joined by commas"}[
            type(default)
        ]
        raise PruningError(f"pruning: {name}: found {shown(value)}; allowed: {kind}") from None
    return value
