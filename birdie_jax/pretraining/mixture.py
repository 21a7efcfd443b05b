"""The mixture that a configuration asks for, checked against its rows."""

from birdie_jax.bandit import find_policy
from birdie_jax.batching import DecisionSchedule
from birdie_jax.config import Config
from birdie_jax.errors import ConfigError
from birdie_jax.objectives import Mixture, make_mixture, mixture_from_arms


def configured_mixture(config: Config) -> Mixture:
    """Return the preset `config.objectives.mixture`, or the mixture of `config.objectives.arms` if any.

    Raises:
        ConfigError: the mixture is unknown or has no arm, an arm is wrong, or cannot fit a row.
    """
    objectives, length = config.objectives, config.batching.length
    try:
        if objectives.arms:
            mixture = mixture_from_arms(objectives.arms)
        else:
            mixture = make_mixture(objectives.mixture, length)
    except ValueError as error:
        field = "arms" if objectives.arms else "mixture"
        raise ConfigError(f"config.objectives.{field}: {error}") from error
    for arm in mixture.arms:
        fits, needs = arm.objective.text_limit(length), arm.objective.minimum_tokens
        if fits < needs:
            raise ConfigError(
                f"config.objectives: arm {arm.name!r} needs {needs} tokens of text, and a row of "
                f"batching.length = {length} holds {fits} of them; allowed: longer rows, or another arm"
            )
    if config.bandit.selection == "top_arms" and config.bandit.top_arms > len(mixture.arms):
        raise ConfigError(
            f"config.bandit.top_arms: found {config.bandit.top_arms}; "
            f"allowed: at most the {len(mixture.arms)} arms of the mixture"
        )
    try:
        schedule = DecisionSchedule(config.bandit.every_steps, config.train.num_steps)
        policy = find_policy(config.bandit.policy)
        policy.check_classes(config.bandit, class_names(mixture), schedule.num_decisions)
    except ValueError as error:
        raise ConfigError(f"config.{error}") from error
    return mixture


def class_names(mixture: Mixture) -> tuple[str, ...]:
    """Return the names of the classes of a mixture, in the order of their integers in the bandit."""
    return tuple(sorted(set(mixture.groups)))
