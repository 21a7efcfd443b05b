"""Resolves the automatic choices of a configuration: sizes, mesh and model.

Training, fine-tuning and `birdie_jax.plan` use a `ResolvedRun`. No other code chooses sizes, arranges
devices, or builds the model of a run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float64, PyTree

from birdie_jax.array_types import Key
from birdie_jax.bandit import BanditState, find_policy, init_bandit
from birdie_jax.batching import DecisionSchedule, RowSettings
from birdie_jax.config import Config, ModelConfig, corpora_of
from birdie_jax.engine.memory_check import check_memory
from birdie_jax.engine.mesh import Device, arrange, fill_in_sizes
from birdie_jax.errors import ConfigError, shown
from birdie_jax.models import LanguageModel, build_model
from birdie_jax.models.parameters import ParameterPolicy, parameter_policies
from birdie_jax.objectives import Arm, Mixture, make_mixture, mixture_from_arms


@dataclass(frozen=True)
class ResolvedRun:
    """A run without open choices.

    Attributes:
        config: the configuration, with a number for every size.
        mixture: the arms of pre-training, or an arm for each stage; losses are summed by arm.
        vocab_size: the number of rows of the embedding table.
        mesh: the device mesh; this machine may lack its devices.
        model: the model.
        policies: the policy of each parameter, in the structure of the parameters.
        explanation: one line with the chosen sizes and the reasons; empty if nothing was chosen.
        max_samples: the maximum number of samples in a row for a model with a head; otherwise 0.
    """

    config: Config
    mixture: Mixture
    vocab_size: int
    mesh: Mesh
    model: LanguageModel
    policies: PyTree[ParameterPolicy]
    explanation: str
    max_samples: int = 0

    @property
    def rows(self) -> RowSettings:
        """The settings that the rows of training batches share."""
        return row_settings(self.config)

    @property
    def max_loss_positions(self) -> int:
        """The maximum number of positions with loss in a row."""
        return self.mixture.max_loss_positions(self.rows.length, self.rows.spacing)

    def with_model(self, **fields: str) -> "ResolvedRun":
        """Return the same run with other values of `config.model` fields that change no parameter."""
        config = replace(self.config, model=replace(self.config.model, **fields))
        return replace(self, config=config, model=build_model(config.model, self.vocab_size))

    def explained(self, choice: str) -> "ResolvedRun":
        """Return the same run with one more choice in its explanation."""
        return replace(self, explanation="; ".join(part for part in (self.explanation, choice) if part))

    def with_batches_of(self, config: Config) -> "ResolvedRun":
        """Return the same model on the same devices, with the batches of another configuration.

        Raises:
            ConfigError: the mesh cannot divide the batches.
        """
        config = replace(config, mesh=self.config.mesh)
        sized = fill_in_sizes(config, self.vocab_size, self.mesh.devices.flatten().tolist())
        return replace(self, config=sized.config)


def resolve_run(
    config: Config,
    vocab_size: int,
    devices: Sequence[Device] | None = None,
    mixture: Mixture | None = None,
) -> ResolvedRun:
    """Return the run of a configuration.

    Args:
        config: the configuration.
        vocab_size: the number of rows of the embedding table.
        devices: the devices of the run, which this machine may lack; None = JAX's devices.
        mixture: the arms of the run; None: the arms of `config.objectives`.

    Raises:
        ConfigError: the mixture is invalid, the devices do not fit `config.mesh`, or they cannot divide
            rows or model; the message names the field.
    """
    devices = jax.devices() if devices is None else devices
    if mixture is None:
        mixture = configured_mixture(config)
    sized = fill_in_sizes(config, vocab_size, devices)
    model = build_model(config.model, vocab_size)
    return ResolvedRun(
        sized.config,
        mixture,
        vocab_size,
        arrange(sized.mesh_sizes, devices),
        model,
        parameter_policies(model),
        sized.explanation,
    )


def check_run(config: Config, num_arms: int) -> None:
    """Check a run on JAX's devices before its vocabulary is known.

    Args:
        config: the configuration.
        num_arms: the number of arms of its mixture; 0 for fine-tuning.

    Raises:
        ConfigError: the model has another program's special tokens; the devices do not fit
            `config.mesh`, or cannot divide rows or model; or the run needs more memory than the machine
            has.
    """
    default, model = ModelConfig(), config.model
    for name in ("start_token", "min_predicted_id", "max_predicted_id"):
        if getattr(model, name) != getattr(default, name):
            raise ConfigError(
                f"config.model.{name}: found {getattr(model, name)}; allowed: {getattr(default, name)} in "
                "training, which uses the special tokens of this program"
            )
    check_memory(config, num_arms, fill_in_sizes(config, 0, jax.devices()).mesh_sizes)


def row_settings(config: Config) -> RowSettings:
    """Return the settings that the rows of training batches share."""
    batching = config.batching
    return RowSettings(config.seed, batching.rows, batching.length, batching.spacing, batching.lookahead)


def corpus_names(config: Config) -> tuple[str, ...]:
    """Return the names of the run's corpora; none if it reads one text."""
    return tuple(corpora_of(config.data))


def configured_mixture(config: Config) -> Mixture:
    """Return the preset `config.objectives.mixture`, or the mixture of `config.objectives.arms` if any.

    Raises:
        ConfigError: the mixture is unknown or empty, or an arm is invalid or does not fit a row.
    """
    objectives, length = config.objectives, config.batching.length
    try:
        if objectives.arms:
            mixture = mixture_from_arms(objectives.arms)
        else:
            mixture = make_mixture(objectives.mixture, length)
    except ValueError as error:
        # The error of a preset begins with "mixture".
        where = "config.objectives.arms: " if objectives.arms else "config.objectives."
        raise ConfigError(f"{where}{error}") from error
    corpora = corpus_names(config)
    for arm in mixture.arms:
        for name in arm.corpora:
            if name not in corpora:
                raise ConfigError(
                    f"config.objectives.arms: arm {arm.name!r} reads the corpus {shown(name)}; allowed: "
                    f"{', '.join(corpora) or 'none, because config.data.corpora is empty'}"
                )
        fits, needs = arm.objective.text_limit(length), arm.objective.minimum_tokens
        if fits < needs:
            raise ConfigError(
                f"config.objectives: arm {arm.name!r} needs {needs} tokens of text, and a row of "
                f"batching.length = {length} holds {fits}; allowed: longer rows, or another arm"
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


def trained_arms(config: Config) -> tuple[Arm, ...]:
    """Return the arms that a run trains on: those with a share of any mixture that is known before it.

    A policy that reads losses may choose any arm.

    Raises:
        ConfigError: the mixture is invalid; see `configured_mixture`.
    """
    mixture, policy = configured_mixture(config), find_policy(config.bandit.policy)
    if policy.reads_losses and policy.changes_mixture:
        return mixture.arms
    shares = np.array([shares for shares, _ in known_mixtures(config, mixture)])
    return tuple(arm for arm, share in zip(mixture.arms, shares.max(axis=0), strict=True) if share > 0)


def class_names(mixture: Mixture) -> tuple[str, ...]:
    """Return the names of the classes of a mixture, in the order of their integers in the bandit."""
    return tuple(sorted(set(mixture.groups)))


def create_bandit(config: Config, mixture: Mixture, key: Key) -> BanditState:
    """Return the bandit of a run before its first observation."""
    classes = class_names(mixture)
    groups = np.array([classes.index(group) for group in mixture.groups], np.int32)
    schedule = DecisionSchedule(config.bandit.every_steps, config.train.num_steps)
    return init_bandit(
        config.bandit, mixture.weights, groups, schedule.num_decisions, key, class_names=classes
    )


def first_mixture(config: Config, mixture: Mixture) -> Float64[np.ndarray, " arms"]:
    """Return the mixture of a run's first steps, as known before the run.

    If the policy reads losses, this is the mixture before its first decision.
    """
    policy = find_policy(config.bandit.policy)
    if policy.reads_losses:
        return np.asarray(policy.initial_mixture(jnp.asarray(mixture.weights, jnp.float32)), np.float64)
    state = create_bandit(config, mixture, jax.random.key(config.seed))
    return np.asarray(policy.propose(state), np.float64)


def known_mixtures(config: Config, mixture: Mixture) -> list[tuple[Float64[np.ndarray, " arms"], int]]:
    """Return the mixtures of a run that are known before it, each with the number of its steps.

    If the policy reads losses, this is the mixture before its first decision, for all steps.
    """
    policy, steps = find_policy(config.bandit.policy), config.train.num_steps
    if policy.reads_losses or not policy.changes_mixture:
        return [(first_mixture(config, mixture), steps)]
    state = create_bandit(config, mixture, jax.random.key(config.seed))
    begins = np.arange(0, steps, config.bandit.every_steps)
    counts = jnp.arange(1, len(begins) + 1, dtype=jnp.int32)
    propose = jax.jit(jax.vmap(lambda count: policy.propose(state.replace(count=count))))
    decided = np.asarray(propose(counts), np.float64)
    changes = np.flatnonzero(np.any(np.diff(decided, axis=0, prepend=np.nan) != 0, axis=1))
    lengths = np.diff([*begins[changes], steps])
    return list(zip(decided[changes], lengths.tolist(), strict=True))
