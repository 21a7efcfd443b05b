"""J, the objective of steering: its classes, their groups, and the mixtures that studies find by it."""

import functools
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from birdie_jax.objectives import make_mixture

# Classes of `small_models` by group, with their proportions within the group.
GROUPS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "short copying": {"short_copying": 1, "short_selective_copying": 2},
        "longer copying": {"copying": 1, "selective_copying": 4},
        "language": {
            "causal_lm": 1,
            "prefix_lm": 1,
            "span_corruption": 1,
            "full_span_corruption": 1,
            "deshuffling": 1,
        },
    }
)
# The sixths of the groups in the best constant mixture; `studies.mixture_grid` determines it.
BEST_FIXED = (3, 1, 2)
# `bandit.stages` for the mixture that the search finds; `studies.mixture_search` determines it.
SEARCHED = (
    "0: causal_lm=0.26251, copying=0.079766, deshuffling=0.022844, full_span_corruption=0.040987, "
    "prefix_lm=0.013417, selective_copying=0.039263, short_copying=0.3807, "
    "short_selective_copying=0.081814, span_corruption=0.078704"
)
# The positions of a row; in longer rows the arms have longer texts.
_LENGTH = 256


def stage_of(mixture: tuple[int, int, int]) -> str:
    """Return `bandit.stages` for a constant mixture, without the classes that have no share."""
    shares = []
    for sixths, classes in zip(mixture, GROUPS.values(), strict=True):
        whole = sum(classes.values())
        shares += [f"{name}={sixths * part / whole:g}" for name, part in classes.items() if sixths]
    return f"0: {', '.join(shares)}"


@functools.cache
def class_of_arm() -> Mapping[str, str]:
    """Return the class of each arm of the mixture."""
    mixture = make_mixture("small_models", _LENGTH)
    return dict(zip(mixture.names, mixture.groups, strict=True))


def losses_of_classes(losses: Mapping[str, float]) -> dict[str, float]:
    """Return the mean of the validation losses of each class's arms, from those of all arms."""
    by_class: dict[str, list[float]] = {}
    for arm, name in class_of_arm().items():
        by_class.setdefault(name, []).append(losses[arm])
    return {name: float(np.mean(of_class)) for name, of_class in by_class.items()}


def mean_of_classes(losses: Mapping[str, float]) -> float:
    """Return J of the validation losses of all arms."""
    return float(np.mean(list(losses_of_classes(losses).values())))
