"""The one place where a ConfigDict becomes frozen dataclasses; every error names the field.

Defaults live in the dataclasses below. A file in configs/ starts from `default_config()`, changes what
it wants, and returns the ConfigDict; `parse_config` checks it and gives the rest of the program plain,
immutable Python.
"""

import dataclasses
import math
import types
import typing
from dataclasses import dataclass, field
from typing import Any

import ml_collections

MODELS = ("gated_ssm_plus", "gated_ssm", "gated_ssm_mlp")


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the field, the value and what is allowed."""


@dataclass(frozen=True)
class DataConfig:
    """Where text comes from, and how it becomes token shards.

    Attributes:
        source: "stdlib" (the Python standard library), a file, a folder or a glob of documents.
        prepared: directory written by prepare_data; empty = prepare `source` into `cache_dir`.
        cache_dir: where sources are prepared; empty = ~/.cache/birdie_jax/data.
        tokenizer: a SentencePiece .model; empty = train one on a sample of the source.
        vocab_size: pieces of a tokenizer that is trained.
        text_field: field of .jsonl and .parquet records that holds the text.
        record_tokens: longer documents are cut into records of at most this many tokens.
        validation_fraction: share of documents held out.
    """

    source: str = "stdlib"
    prepared: str = ""
    cache_dir: str = ""
    tokenizer: str = ""
    vocab_size: int = 32_000
    text_field: str = "text"
    record_tokens: int = 32_768
    validation_fraction: float = 0.01


@dataclass(frozen=True)
class ObjectivesConfig:
    """The arms that training draws from.

    Attributes:
        mixture: a preset of `birdie_jax.objectives.MIXTURES`; read only if `arms` is empty.
        arms: a user's own arms, name -> {objective, group, weight, **parameters}.
    """

    mixture: str = "birdie"
    arms: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BatchingConfig:
    """Shape and making of the global batch.

    Attributes:
        rows: packed rows of the global batch.
        length: tokens of a row.
        spacing: padding tokens between two samples of a row.
        lookahead: examples a row stream may hold back to fill rows better.
        workers: processes that make batches; 0 = a thread of this process.
        prefetch: batches made ahead of the train step.
    """

    rows: int = 520
    length: int = 2048
    spacing: int = 3
    lookahead: int = 12
    workers: int = 0
    prefetch: int = 4


@dataclass(frozen=True)
class ModelConfig:
    """Architecture.

    Attributes:
        name: gated_ssm (fused mixer and MLP), gated_ssm_mlp (separate MLP), gated_ssm_plus (MLP and
            short convolution).
        layers: number of blocks.
        features: width D of the residual stream.
        state: recurrent channels N of a block; half of them run in reverse where `bidirectional`.
        mlp_features: inner width of the gated MLP.
        conv_width: taps of the short convolution.
        bidirectional: read the context in both directions.
        tie_embeddings: the output head is the embedding table.
        dtype: type of activations and matrix products; parameters are always float32.
        scan_dtype: type of the recurrence's inputs. bfloat16 has no value between 0.996 and 1, so that
            slow decays need float32.
        remat: none, dots (keep matrix products) or full (keep the input of each block only).
        scan_implementation: of `pallas_kernels.linear_scan`; empty = the best one for the platform.
        norm_epsilon: added to the mean square in RMSNorm.
    """

    name: str = "gated_ssm_plus"
    layers: int = 24
    features: int = 2048
    state: int = 2560
    mlp_features: int = 4864
    conv_width: int = 4
    bidirectional: bool = True
    tie_embeddings: bool = True
    dtype: str = "bfloat16"
    scan_dtype: str = "float32"
    remat: str = "full"
    scan_implementation: str = ""
    norm_epsilon: float = 1e-6


@dataclass(frozen=True)
class BanditConfig:
    """How the mixture is chosen while training runs.

    Attributes:
        policy: birdie (critic over random candidates), fixed (the mixture's own weights) or uniform.
        every_steps: train steps between two decisions; each measures every arm's validation loss.
        critic: gated_ssm (Birdie) or transformer (the early draft's RL-MoD).
        critic_layers: depth of the critic.
        critic_features: width of the critic.
        critic_state: recurrent channels of a Gated SSM critic.
        critic_updates: optimizer steps a decision, each on the whole history.
        critic_learning_rate: AdamW's.
        critic_weight_decay: AdamW's.
        critic_clip: largest global gradient norm.
        critic_noise: relative uniform noise on the critic's inputs while it learns.
        selection: candidates (mean of the best random mixtures) or top_arms (RL-MoD: the M best arms).
        candidates: uniform random mixtures; as many again are sharpened by the fourth power.
        candidate_prior: classes (random masses of classes, each split at random within its class) or arms
            (random over all arms, as published: the mass of a class stays near its share of the arms).
        average_best: the proposal is the mean of this many best candidates (1 = the best one).
        top_arms: M of `selection` top_arms.
        explore_first: share of all decisions that always explore.
        explore_decay: share over which the probability of exploring then falls along a cosine.
        explore_from: that probability where the fall begins.
        explore_to: that probability where the fall ends, and from then on.
    """

    policy: str = "birdie"
    every_steps: int = 512
    critic: str = "gated_ssm"
    critic_layers: int = 4
    critic_features: int = 256
    critic_state: int = 512
    critic_updates: int = 200
    critic_learning_rate: float = 5e-4
    critic_weight_decay: float = 0.1
    critic_clip: float = 1.0
    critic_noise: float = 0.02
    selection: str = "candidates"
    candidates: int = 4096
    candidate_prior: str = "classes"
    average_best: int = 8
    top_arms: int = 4
    explore_first: float = 0.05
    explore_decay: float = 0.45
    explore_from: float = 0.5
    explore_to: float = 0.25


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW as Mamba trains (linear warm-up, then cosine).

    Attributes:
        learning_rate: peak.
        final_learning_rate: at the last step.
        warmup_steps: steps from 0 to the peak.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: added to the root of the second moment.
        weight_decay: on matrices; norms and other vectors have none.
        clip_norm: largest global gradient norm.
    """

    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-5
    warmup_steps: int = 640
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0


@dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis; -1 = all that are left. Only `data` may differ from 1 so far."""

    data: int = -1
    fsdp: int = 1
    tensor: int = 1
    sequence: int = 1


@dataclass(frozen=True)
class TrainConfig:
    """The loop.

    Attributes:
        num_steps: train steps of the whole run.
        log_every_steps: steps between two lines of metrics.jsonl.
        accumulation_steps: parts into which a batch is cut to save memory; the result is the same.
        loss_chunk: sequence positions whose logits are held at a time.
    """

    num_steps: int = 32_000
    log_every_steps: int = 10
    accumulation_steps: int = 1
    loss_chunk: int = 256


@dataclass(frozen=True)
class CheckpointConfig:
    """Saving.

    Attributes:
        every_steps: steps between two checkpoints.
        keep: newest checkpoints that are kept; at least 2, so that a damaged one leaves another.
    """

    every_steps: int = 500
    keep: int = 3


@dataclass(frozen=True)
class EvalConfig:
    """Validation, at every decision of the bandit and at the end.

    Attributes:
        batches_per_arm: fixed validation batches of each arm.
        rows: rows of a validation batch.
    """

    batches_per_arm: int = 2
    rows: int = 16


@dataclass(frozen=True)
class Config:
    """A whole run."""

    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    objectives: ObjectivesConfig = field(default_factory=ObjectivesConfig)
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    bandit: BanditConfig = field(default_factory=BanditConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)


def default_config() -> ml_collections.ConfigDict:
    """Return every field with its default, for a file in configs/ to change."""
    return ml_collections.ConfigDict(dataclasses.asdict(Config()))


def parse_config(config: ml_collections.ConfigDict) -> Config:
    """Check `config` and freeze it.

    Raises:
        ConfigError: an unknown or missing field, a wrong type or an unusable value.
    """
    parsed = _parse_section(Config, config, "config")
    _check(parsed)
    return parsed


def to_dict(config: Config) -> dict[str, Any]:
    """Return `config` as nested plain dicts, for config.json."""
    return dataclasses.asdict(config)


def _parse_section(section: type, values: Any, path: str) -> Any:
    if not isinstance(values, ml_collections.ConfigDict | dict):
        raise ConfigError(f"{path}: found {values!r}; allowed: a section with fields")
    hints = typing.get_type_hints(section)
    known = [f.name for f in dataclasses.fields(section)]
    for name in values:
        if name not in known:
            raise ConfigError(f"{path}.{name}: unknown field; allowed: {', '.join(known)}")
    parsed = {}
    for name in known:
        if name not in values:
            raise ConfigError(f"{path}.{name}: missing")
        hint, value, where = hints[name], values[name], f"{path}.{name}"
        if dataclasses.is_dataclass(hint):
            parsed[name] = _parse_section(typing.cast(type, hint), value, where)
        else:
            parsed[name] = _parse_value(hint, value, where)
    return section(**parsed)


def _parse_value(hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, types.GenericAlias):
        if isinstance(value, ml_collections.ConfigDict):
            value = value.to_dict()
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: found {value!r}; allowed: a section with fields")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"{where}: found {value!r} ({type(value).__name__}); allowed: {hint.__name__}")
    if hint is float and not math.isfinite(value):
        raise ConfigError(f"{where}: found {value!r}; allowed: a finite number")
    return value


def _check(config: Config) -> None:
    def require(ok: bool, name: str, allowed: str) -> None:
        if not ok:
            found: Any = config
            for part in name.split("."):
                found = getattr(found, part)
            raise ConfigError(f"config.{name}: found {found!r}; allowed: {allowed}")

    def one_of(name: str, *choices: str) -> None:
        section, leaf = name.split(".")
        require(getattr(getattr(config, section), leaf) in choices, name, ", ".join(choices))

    positive = """data.vocab_size data.record_tokens batching.rows batching.length batching.prefetch
        model.layers model.features model.state model.mlp_features model.conv_width bandit.every_steps
        bandit.critic_layers bandit.critic_features bandit.critic_state bandit.candidates
        bandit.average_best bandit.top_arms train.num_steps train.log_every_steps
        train.accumulation_steps train.loss_chunk checkpoint.every_steps eval.batches_per_arm
        eval.rows"""
    for name in positive.split():
        section, leaf = name.split(".")
        require(getattr(getattr(config, section), leaf) >= 1, name, "at least 1")
    for name in (
        "batching.workers",
        "bandit.critic_updates",
        "optimizer.warmup_steps",
        "batching.lookahead",
    ):
        section, leaf = name.split(".")
        require(getattr(getattr(config, section), leaf) >= 0, name, "at least 0")

    require(config.seed >= 0, "seed", "at least 0")
    require(0 < config.data.validation_fraction < 1, "data.validation_fraction", "between 0 and 1")
    one_of("model.name", *MODELS)
    one_of("model.dtype", "float32", "bfloat16")
    one_of("model.scan_dtype", "float32", "bfloat16")
    one_of("model.remat", "none", "dots", "full")
    one_of("model.scan_implementation", "", "xla")
    require(config.model.state % 2 == 0, "model.state", "an even number: half of it runs in reverse")
    require(config.model.norm_epsilon > 0, "model.norm_epsilon", "more than 0")
    require(
        config.batching.spacing >= config.model.conv_width - 1,
        "batching.spacing",
        f"at least model.conv_width - 1 = {config.model.conv_width - 1}",
    )
    require(
        config.data.record_tokens >= config.batching.length,
        "data.record_tokens",
        f"at least batching.length = {config.batching.length}",
    )
    require(
        config.batching.rows % config.train.accumulation_steps == 0,
        "batching.rows",
        f"a multiple of train.accumulation_steps = {config.train.accumulation_steps}",
    )
    if config.batching.workers:
        require(
            config.batching.rows % config.batching.workers == 0,
            "batching.workers",
            f"a divisor of batching.rows = {config.batching.rows}",
        )
    require(
        config.batching.length % min(config.train.loss_chunk, config.batching.length) == 0,
        "train.loss_chunk",
        f"a divisor of batching.length = {config.batching.length}, or more than it",
    )

    one_of("bandit.policy", "birdie", "fixed", "uniform")
    one_of("bandit.critic", "gated_ssm", "transformer")
    one_of("bandit.selection", "candidates", "top_arms")
    one_of("bandit.candidate_prior", "classes", "arms")
    require(config.bandit.critic_state % 2 == 0, "bandit.critic_state", "an even number")
    require(
        config.bandit.average_best <= 2 * config.bandit.candidates,
        "bandit.average_best",
        f"at most 2 * bandit.candidates = {2 * config.bandit.candidates}",
    )
    for name in ("explore_first", "explore_decay", "explore_from", "explore_to", "critic_noise"):
        require(0 <= getattr(config.bandit, name) <= 1, f"bandit.{name}", "between 0 and 1")
    for name in ("learning_rate", "clip_norm", "epsilon"):
        require(getattr(config.optimizer, name) > 0, f"optimizer.{name}", "more than 0")
    for name in ("beta1", "beta2"):
        require(0 <= getattr(config.optimizer, name) < 1, f"optimizer.{name}", "at least 0 and below 1")
    require(config.optimizer.weight_decay >= 0, "optimizer.weight_decay", "at least 0")
    require(
        0 <= config.optimizer.final_learning_rate <= config.optimizer.learning_rate,
        "optimizer.final_learning_rate",
        f"between 0 and optimizer.learning_rate = {config.optimizer.learning_rate}",
    )
    require(config.checkpoint.keep >= 2, "checkpoint.keep", "at least 2")
    require(config.mesh.data == -1 or config.mesh.data >= 1, "mesh.data", "-1 or at least 1")
    for name in ("fsdp", "tensor", "sequence"):
        require(getattr(config.mesh, name) == 1, f"mesh.{name}", "1 (this release shards over data only)")
