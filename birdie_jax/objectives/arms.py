"""Arms and mixtures: objectives with parameters and initial probabilities."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from birdie_jax.errors import shown
from birdie_jax.objectives.checks import check_number, refusal
from birdie_jax.objectives.objective import Objective
from birdie_jax.objectives.registry import OBJECTIVES, make_objective

# A name can be part of a file name. Most file systems limit a file name to 255 bytes.
_MAX_NAME_LENGTH = 100
_SAFE_NAME = re.compile(rf"[A-Za-z0-9_]{{1,{_MAX_NAME_LENGTH}}}")
# Only the ratios of weights matter. With this maximum, the sum of all weights is finite, and the
# probabilities fit the bandit's float32.
_MAX_WEIGHT = 10**9


@dataclass(frozen=True)
class Arm:
    """An objective with parameters. The mixture draws arms, and the bandit rewards them.

    Attributes:
        name: the arm's name: at most 100 letters, digits and underscores, so it can be part of the name
            of a file or metric.
        objective: the objective that makes the arm's examples.
        group: the name of the arm's class, with the same allowed characters.
        weight: the initial probability before normalisation, at most a billion.
        corpora: the names of the corpora that the arm reads, drawn by their weights. If empty, the arm
            reads all corpora.
    """

    name: str
    objective: Objective
    group: str
    weight: float = 1.0
    corpora: tuple[str, ...] = ()

    def __post_init__(self):
        _check_arm(self.name, self.group, self.weight)


def _check_arm(name: object, group: object, weight: object) -> None:
    owner = _arm(name)
    for field, value in (("name", name), ("group", group)):
        if not isinstance(value, str) or not _SAFE_NAME.fullmatch(value):
            allowed = f"letters, digits, underscores, at most {_MAX_NAME_LENGTH}"
            raise refusal(owner, field, value, allowed)
    allowed = f"a finite number of at least 0 and at most {_MAX_WEIGHT:,}"
    check_number(owner, "weight", weight, allowed, lambda number: 0 <= number <= _MAX_WEIGHT)


def _arm(name: object) -> str:
    return f"arm {shown(name, 120)}"


@dataclass(frozen=True)
class Mixture:
    """Arms with their initial probabilities.

    Attributes:
        arms: at least one, with unique names and a positive sum of weights.
    """

    arms: tuple[Arm, ...]

    def __post_init__(self):
        if not self.arms:
            raise ValueError("mixture: it has no arms; allowed: at least one")
        names = self.names
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"mixture: more than one arm is called {shown(name)}; allowed: unique names"
                )
        total = math.fsum(arm.weight for arm in self.arms)
        if not (total > 0 and math.isfinite(total)):
            raise ValueError(f"mixture: the weights add up to {total}; allowed: a positive, finite sum")

    @property
    def names(self) -> tuple[str, ...]:
        """The arms' names, in order."""
        return tuple(arm.name for arm in self.arms)

    @property
    def groups(self) -> tuple[str, ...]:
        """The class of each arm, in order."""
        return tuple(arm.group for arm in self.arms)

    def max_loss_positions(self, length: int, spacing: int) -> int:
        """Return the maximum number of loss positions in a row of `length`, for any combination of arms."""
        # A mixed row has at most the loss positions of the arm with the largest share of them.
        return max(arm.objective.max_loss_positions(length, spacing) for arm in self.arms)

    @property
    def weights(self) -> Float64[np.ndarray, " arms"]:
        """The arms' initial probabilities, float64 `[arms]`; they sum to 1."""
        weights = np.array([arm.weight for arm in self.arms], np.float64)
        return weights / weights.sum()


def mixture_from_arms(arms: Mapping[str, Any]) -> Mixture:
    """Make a mixture from the arms that a configuration file lists.

    Args:
        arms: maps each arm's name to a mapping with `objective`, the objective's name, and the objective's
            parameters. Optional keys: `group` (default: the arm's name if it lists corpora, otherwise the
            objective's name), `weight` (default: 1.0) and `corpora`, a name or a list of names
            (default: all).

    Raises:
        ValueError: there are no arms, or an arm is invalid. The error names the arm and the field.
    """
    made = []
    for name, given in arms.items():
        if not isinstance(given, Mapping):
            raise ValueError(f"{_arm(name)}: {shown(given)}; allowed: a mapping with the field objective")
        for key in given:
            if not isinstance(key, str):
                raise ValueError(f"{_arm(name)}: found the field {shown(key)}; allowed: names of fields")
        parameters = dict(given)
        objective = parameters.pop("objective", None)
        if not isinstance(objective, str):
            raise refusal(_arm(name), "objective", objective, ", ".join(OBJECTIVES))
        weight = parameters.pop("weight", 1.0)
        names = _names_of_corpora(name, parameters.pop("corpora")) if "corpora" in parameters else ()
        group = parameters.pop("group", name if names else objective)
        try:
            built = make_objective(objective, **parameters)
        except ValueError as error:
            raise ValueError(f"{_arm(name)}: {error}") from error
        _check_arm(name, group, weight)
        made.append(Arm(name, built, group, float(weight), names))
    return Mixture(tuple(made))


def _names_of_corpora(arm: str, given: object) -> tuple[str, ...]:
    """Return the corpora that an arm names: one, or a list of at least one, without repetition."""
    names: Any = (given,) if isinstance(given, str) else given
    usable = isinstance(names, list | tuple) and all(isinstance(each, str) for each in names)
    if not usable or not names or len(set(names)) < len(names):
        allowed = "the name of a corpus, or a list of different names; without the field: all corpora"
        raise refusal(_arm(arm), "corpora", given, allowed)
    return tuple(names)
