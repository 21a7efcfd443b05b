"""The arguments of a search (design, objective and proxies), which are checked before any training."""

import re
from dataclasses import replace

import numpy as np
from jaxtyping import Float64

from birdie_jax.bandit.policies.staged import parse_stages
from birdie_jax.config import Config
from birdie_jax.errors import ConfigError, nearest_first, shown
from birdie_jax.mixture_search.design import Design, stages_text
from birdie_jax.objectives import Mixture
from birdie_jax.resolve import class_names, configured_mixture

_FIXED = "fixed"


def make_design(config: Config, stages: int, seed: int) -> tuple[Design, Mixture]:
    """Return the design of a search, and the arms on which proxies are evaluated.

    Raises:
        ConfigError: the configuration fine-tunes, has a policy that changes its shares, has only one class,
            or has too few decisions for the stages.
    """
    if config.finetune.stages:
        raise ConfigError("config.finetune.stages: found stages; allowed: none, a search pre-trains")
    if config.bandit.policy != _FIXED:
        raise ConfigError(
            f"config.bandit.policy: found {shown(config.bandit.policy)}; allowed: {_FIXED}, since a search "
            "sets the schedule of each proxy"
        )
    mixture = configured_mixture(config)
    groups, weights = np.array(mixture.groups), mixture.weights
    own = {name: float(weights[groups == name].sum()) for name in class_names(mixture)}
    own = {name: share for name, share in own.items() if share > 0}
    if len(own) == 1:
        raise ConfigError(
            f"config.objectives: found one class with a weight, {', '.join(own)}; allowed: two or more"
        )
    design = Design(tuple(own), tuple(own.values()), stages, seed)
    text = stages_text(design.classes, design.points(1)[0])
    configured_mixture(replace(config, bandit=replace(config.bandit, policy="staged", stages=text)))
    return design, mixture


def parse_objective(text: str | None, design: Design, mixture: Mixture) -> Float64[np.ndarray, " measured"]:
    """Return the weight of each class of the mixture in the objective; they sum to 1.

    Args:
        text: weights in the format of a stage, such as `causal_lm=1, copying=2`. If None, all classes of
            the design have equal weights.
        design: the design.
        mixture: the arms; `text` may name any of their classes.

    Raises:
        ConfigError: the format of `text` is invalid, or it names an unknown class.
    """
    weights = dict.fromkeys(design.classes, 1.0)
    names = class_names(mixture)
    if text is not None:
        try:
            ((_, weights),) = parse_stages(f"0: {text}")
        except ValueError as error:
            raise ConfigError(
                f"--objective: found {shown(text)}; allowed: classes with weights: causal_lm=1, copying=2"
            ) from error
    for name in weights:
        if name not in names:
            raise ConfigError(
                f"--objective: found the class {shown(name)}; allowed: {nearest_first(name, names)}"
            )
    found = np.array([weights.get(name, 0.0) for name in names])
    return found / found.sum()


def choose_numbers(text: str | None, proxies: int) -> range:
    """Return the numbers of the proxies in --only, or all numbers for None.

    Raises:
        ConfigError: `text` is not a number or a range of numbers, or is not within --proxies.
    """
    if text is None:
        return range(proxies)
    found = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", text)
    if found:
        first = int(found[1])
        end = first + 1 if found[2] is None else int(found[2])
        if first < end <= proxies:
            return range(first, end)
    raise ConfigError(
        f"--only: found {shown(text)}; allowed: a proxy such as 3, or a range such as 0:8, of --proxies="
        f"{proxies}: 0 to {proxies - 1}"
    )
