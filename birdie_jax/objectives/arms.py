"""Arms and mixtures: objectives with their parameters, and the probabilities that they start with."""

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

# A name can be part of a file's name, which may have at most 255 bytes on most file systems.
_MAX_NAME_LENGTH = 100
_SAFE_NAME = re.compile(rf"[A-Za-z0-9_]{{1,{_MAX_NAME_LENGTH}}}")
# Weights count by their ratios. Any number of arms of this weight add up to a finite number, and one of
# them does not hide another in float32, in which the bandit has their probabilities.
_MAX_WEIGHT = 10**9


@dataclass(frozen=True)
class Arm:
    """An objective with its parameters, as the mixture draws it and the bandit rewards it.

    Attributes:
        name: the arm's name, of at most 100 letters, digits and underscores, so it can be part of a
            file's or a metric's name.
        objective: the objective that makes its examples.
        group: the class of arms that it belongs to, named by the same letters.
        weight: the initial probability, before the mixture normalises it; at most a billion.
        corpora: the names of the corpora that it reads, by their weights; empty: all.
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
        """For each arm, in order, the class it belongs to."""
        return tuple(arm.group for arm in self.arms)

    def max_loss_positions(self, length: int, spacing: int) -> int:
        """Return the most positions of a row of `length` that can bear loss, whatever arms are in it."""
        # A share of the row for each arm: a mixed row has no more than the arm with the largest share.
        return max(arm.objective.max_loss_positions(length, spacing) for arm in self.arms)

    @property
    def weights(self) -> Float64[np.ndarray, " arms"]:
        """The arms' initial probabilities, float64 `[arms]`, which add up to 1."""
        weights = np.array([arm.weight for arm in self.arms], np.float64)
        return weights / weights.sum()


def mixture_from_arms(arms: Mapping[str, Any]) -> Mixture:
    """Make a mixture of a user's own arms, as a configuration file lists them.

    Args:
        arms: for each arm's name a mapping with `objective`, its name; optionally `group` (default: the
            objective's name, or the arm's own where it names corpora), `weight` (default: 1.0) and
            `corpora`, a name or a list of names (default: all); and the objective's parameters.

    Raises:
        ValueError: there is no arm, or an arm is not such a mapping; the error names the arm and the field.
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
        corpora = parameters.pop("corpora", ())
        names = (corpora,) if isinstance(corpora, str) else corpora
        if not isinstance(names, list | tuple) or not all(isinstance(each, str) for each in names):
            raise refusal(_arm(name), "corpora", corpora, "the name of a corpus, or a list of names")
        group = parameters.pop("group", name if names else objective)
        try:
            built = make_objective(objective, **parameters)
        except ValueError as error:
            raise ValueError(f"{_arm(name)}: {error}") from error
        _check_arm(name, group, weight)
        made.append(Arm(name, built, group, float(weight), tuple(names)))
    return Mixture(tuple(made))
