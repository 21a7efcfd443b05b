"""The one place where a ConfigDict becomes frozen dataclasses; every error names the field.

The fields and their defaults are in config_sections.py. A file in configs/ starts from `default_config()`,
changes what it wants, and returns the ConfigDict; `parse_config` checks it and gives the rest of the
program plain, immutable Python.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable
from typing import Any

import ml_collections

from birdie_jax.bandit import CANDIDATE_PRIORS, CRITICS, POLICIES, SELECTIONS
from birdie_jax.config_sections import (
    BanditConfig,
    BatchingConfig,
    CheckpointConfig,
    Config,
    DataConfig,
    EvalConfig,
    MeshConfig,
    ModelConfig,
    ObjectivesConfig,
    OptimizerConfig,
    TrainConfig,
)

__all__ = [
    "MODELS",
    "BanditConfig",
    "BatchingConfig",
    "CheckpointConfig",
    "Config",
    "ConfigError",
    "DataConfig",
    "EvalConfig",
    "MeshConfig",
    "ModelConfig",
    "ObjectivesConfig",
    "OptimizerConfig",
    "TrainConfig",
    "default_config",
    "parse_config",
    "to_dict",
]

MODELS = (
    "gated_ssm_plus",
    "gated_ssm",
    "gated_ssm_mlp",
    "hawk",
    "hawk_mlp",
    "birdie_ssm",
    "transformer",
)
WITH_HAWK = ("hawk", "hawk_mlp")
WITH_ATTENTION = ("transformer",)


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the field, the value and what is allowed."""


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
        model.layers model.features model.state model.mlp_features model.conv_width model.heads
        bandit.every_steps
        bandit.critic_layers bandit.critic_features bandit.critic_state bandit.candidates
        bandit.average_best bandit.top_arms train.num_steps train.log_every_steps
        train.accumulation_steps train.loss_chunk train.lost_seconds train.hung_seconds
        checkpoint.every_steps eval.batches_per_arm eval.rows"""
    for name in positive.split():
        section, leaf = name.split(".")
        require(getattr(getattr(config, section), leaf) >= 1, name, "at least 1")
    for name in (
        "batching.workers",
        "model.kv_heads",
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
    one_of("model.scan_implementation", "", "xla", "pallas_tpu", "pallas_gpu", "pallas_interpret")
    require(config.model.state % 2 == 0, "model.state", "an even number: half of it runs in reverse")
    one_of("model.input_activation", "tanh", "sigmoid", "gelu", "identity")
    one_of("model.attention_implementation", "", "xla", "cudnn", "splash", "splash_interpret")
    require(config.model.norm_epsilon > 0, "model.norm_epsilon", "more than 0")
    require(config.model.rope_base > 1, "model.rope_base", "more than 1")
    _check_heads(config.model, require)
    if config.model.name in WITH_ATTENTION and config.model.attention_implementation.startswith("splash"):
        allowed = "a multiple of 128, the block of model.attention_implementation splash"
        require(config.batching.length % 128 == 0, "batching.length", allowed)
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

    one_of("bandit.policy", *POLICIES)
    one_of("bandit.critic", *CRITICS)
    one_of("bandit.selection", *SELECTIONS)
    one_of("bandit.candidate_prior", *CANDIDATE_PRIORS)
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
    sizes = dataclasses.asdict(config.mesh)
    for name, size in sizes.items():
        require(size == -1 or size >= 1, f"mesh.{name}", "-1 or at least 1")
    rest = [name for name, size in sizes.items() if size == -1]
    if len(rest) > 1:
        raise ConfigError(f"config.mesh: found -1 for {' and '.join(rest)}; allowed: -1 for one axis")
    if config.model.name in WITH_ATTENTION:
        allowed = f"1 for {config.model.name}: attention reads whole rows"
        require(config.mesh.sequence == 1, "mesh.sequence", allowed)


def _check_heads(model: ModelConfig, require: Callable[[bool, str, str], None]) -> None:
    """Check what divides what, where the model has heads: other models do not read these fields."""
    if model.name in WITH_HAWK:
        allowed = f"a divisor of model.state = {model.state}"
        require(model.state % model.heads == 0, "model.heads", allowed)
    if model.name in WITH_ATTENTION:
        allowed = f"a divisor of model.features = {model.features} into heads of an even width"
        require(model.features % (2 * model.heads) == 0, "model.heads", allowed)
        allowed = f"a divisor of model.heads = {model.heads}, or 0 for as many"
        require(model.kv_heads == 0 or model.heads % model.kv_heads == 0, "model.kv_heads", allowed)
