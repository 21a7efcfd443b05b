"""Converts a ConfigDict to frozen dataclasses; every error names the field.

config_sections.py has the fields with their types and defaults. A mixer's own section is in the mixer's
file under models/. The type of a field limits its value (config_types.py). This module checks names and the
relations between fields. A file in configs/ starts from `default_config()`, changes some fields, and
returns the ConfigDict. `parse_config` checks it and returns plain, immutable Python objects.
"""

import dataclasses
import functools
import re
import typing
from typing import Any

import ml_collections

from birdie_jax.bandit import CANDIDATE_PRIORS, CRITIC_ERRORS, CRITICS, POLICIES, REWARDS, SELECTIONS
from birdie_jax.config_sections import (
    BanditConfig,
    BatchingConfig,
    CheckpointConfig,
    Config,
    CorpusConfig,
    DataConfig,
    EvalConfig,
    FinetuneConfig,
    MeshConfig,
    ModelConfig,
    ObjectivesConfig,
    OptimizerConfig,
    Require,
    TrainConfig,
)
from birdie_jax.config_types import MAX_BATCH_TOKENS, RequiredName
from birdie_jax.errors import ConfigError, nearest_first, shown, without_secrets
from birdie_jax.imports import import_extensions
from birdie_jax.models.registry import mixer_config, mixer_sections, model_names
from birdie_jax.models.rematerialisation import AUTO, LEVELS
from birdie_jax.models.task_head import HEADS
from birdie_jax.objectives.shares import UNITS
from birdie_jax.optimizers import DECAY_SHAPES, OPTIMIZERS
from birdie_jax.pruning import finetune_settings
from birdie_jax.storage import file_key, inner_path, parse_typed
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS
from pallas_kernels.linear_scan import IMPLEMENTATIONS

# Sections of `finetune`, and the field of each that turns it on.
_SWITCHES = (("teacher", "from"), ("lora", "rank"), ("pruning", "max_pruned"))
_CORPUS_NAME = re.compile(r"[A-Za-z0-9_]{1,50}")

__all__ = [
    "BanditConfig",
    "BatchingConfig",
    "CheckpointConfig",
    "Config",
    "ConfigError",
    "DataConfig",
    "EvalConfig",
    "FinetuneConfig",
    "MeshConfig",
    "ModelConfig",
    "ObjectivesConfig",
    "OptimizerConfig",
    "TrainConfig",
    "check_batches",
    "check_config",
    "check_used",
    "corpora_of",
    "default_config",
    "parse_config",
    "to_dict",
]


def default_config() -> ml_collections.ConfigDict:
    """Return every field with its default, for a file in configs/ to change."""
    return ml_collections.ConfigDict(to_dict(Config()))


def parse_config(config: ml_collections.ConfigDict, *, importing: bool = True) -> Config:
    """Check `config` and freeze it.

    Args:
        config: every field of a configuration.
        importing: whether to import `config.imports` first.

    Raises:
        ConfigError: a field is unknown or missing, has a wrong type or an unusable value, or contains a
            password or token; or an import fails.
    """
    plain = _plain(config)
    _refuse_secrets(plain)
    if importing:
        import_named(config)
        plain = _plain(config)
    parsed = _parse_section(Config, plain, "config")
    check_config(parsed)
    return parsed


def _refuse_secrets(value: Any, *keys: object) -> None:
    """Refuse secrets: they must not reach config.json, which anybody may read."""
    if isinstance(value, str) and (clean := without_secrets(value)) != value:
        path = functools.reduce(inner_path, keys, "config")
        raise ConfigError(
            f"{path}: found a password, token or key in {shown(clean)}; allowed: none; give credentials to "
            "a store's library in its own files or variables"
        )
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for name, each in value.items():
            _refuse_secrets(each, *keys, name)


def import_named(config: ml_collections.ConfigDict) -> None:
    """Import the names in `config.imports`; add their hashes and the sections of new mixers.

    Raises:
        ConfigError: an import is missing or does not run.
    """
    names = parse_typed(tuple[RequiredName, ...], config.get("imports", ()), "config.imports", ConfigError)
    if not names:
        return
    with config.unlocked():
        config.imports = import_extensions(names, "config.imports")
        if isinstance(config.get("model"), ml_collections.ConfigDict):
            for kind in mixer_sections():
                if kind.section not in config.model:
                    config.model[kind.section] = dataclasses.asdict(kind())


def _plain(config: ml_collections.ConfigDict) -> dict[str, Any]:
    plain, path = {}, "config"
    try:
        for name, value in config.items():
            path = inner_path("config", name)
            plain[name] = value.to_dict() if isinstance(value, ml_collections.ConfigDict) else value
    except TypeError as error:
        # ml_collections sorts the keys of a section, which fails for keys of several types.
        raise ConfigError(f"{path}: found keys of several types in a section; allowed: str") from error
    return plain


def corpora_of(data: DataConfig) -> dict[str, CorpusConfig]:
    """Return the corpora of `data.corpora` by their names, sorted.

    Raises:
        ConfigError: a name or an entry is unusable, or `data.prepared` is set too.
    """
    corpora = {}
    for name in sorted(data.corpora):
        where, given = f"config.data.corpora.{name}", data.corpora[name]
        if not _CORPUS_NAME.fullmatch(name):
            raise ConfigError(
                f"{where}: found {shown(name)}; allowed: 1 to 50 letters, digits, underscores"
            )
        if not isinstance(given, dict):
            raise ConfigError(
                f"{where}: found {shown(given)}; allowed: source or prepared, weight, max_epochs"
            )
        entry = dataclasses.asdict(CorpusConfig()) | given
        corpora[name] = corpus = parse_typed(CorpusConfig, entry, where, ConfigError)
        if bool(corpus.source) == bool(corpus.prepared):
            found = "both" if corpus.source else "neither"
            raise ConfigError(f"{where}: found {found} of source and prepared; allowed: one of them")
    if corpora and data.prepared:
        raise ConfigError(
            f"config.data.prepared: found {shown(data.prepared)} beside data.corpora; allowed: one of them"
        )
    return corpora


def to_dict(config: Config) -> dict[str, Any]:
    """Return `config` as nested plain dicts, for config.json, with the sections of all mixers."""
    return _section_to_dict(config)


def _section_to_dict(section: Any) -> dict[str, Any]:
    values = {
        file_key(field): _section_to_dict(value) if dataclasses.is_dataclass(value) else value
        for field, value in ((f, getattr(section, f.name)) for f in dataclasses.fields(section))
    }
    if isinstance(section, ModelConfig):
        del values["sections"]
        values |= {kind.section: dataclasses.asdict(section.section(kind)) for kind in mixer_sections()}
    return values


def _fields_of(section: type) -> dict[str, Any]:
    """Return the type and bounds of each field of a section; a model also has the mixers' sections."""
    hints = typing.get_type_hints(section, include_extras=True)
    fields = {file_key(field): hints[field.name] for field in dataclasses.fields(section)}
    if section is ModelConfig:
        del fields["sections"]
        fields |= {kind.section: kind for kind in mixer_sections()}
    return fields


def _parse_section(section: type, values: Any, path: str) -> Any:
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: found {shown(values)}; allowed: a section with fields")
    fields = _fields_of(section)
    for name in values:
        if name not in fields:
            raise ConfigError(
                f"{inner_path(path, name)}: unknown field; allowed: {nearest_first(name, fields)}"
                f"{_homonyms(fields, name, path)}"
            )
    parsed = {}
    for name, hint in fields.items():
        if name not in values:
            raise ConfigError(f"{path}.{name}: missing")
        value, where = values[name], f"{path}.{name}"
        if dataclasses.is_dataclass(hint):
            parsed[name] = _parse_section(typing.cast(type, hint), value, where)
        else:
            parsed[name] = parse_typed(hint, value, where, ConfigError)
    if section is ModelConfig:
        mixers = [parsed.pop(kind.section) for kind in mixer_sections()]
        parsed["sections"] = tuple(mixer for mixer in mixers if mixer != type(mixer)())
    attributes = {file_key(field): field.name for field in dataclasses.fields(section)}
    return section(**{attributes[name]: value for name, value in parsed.items()})


def _homonyms(fields: dict[str, Any], name: object, path: str) -> str:
    """Return a text about the inner sections that have a field of this name."""
    inner = [section for section, hint in fields.items() if dataclasses.is_dataclass(hint)]
    found = [f"{path}.{section}.{name}" for section in inner if name in _fields_of(fields[section])]
    return f"; such a field is {' and '.join(found)}" if found else ""


def _check_predicted_ids(model: ModelConfig, require: Require) -> None:
    """Check the fields of prompts without a start token, and the range of predicted ids."""
    allowed = "true, or a causal model: model.bidirectional=false"
    require(model.start_token or not model.bidirectional, "model.start_token", allowed)
    allowed = "an id of text, at least 256, where model.start_token=false"
    require(model.start_token or model.end_token >= NUM_SPECIAL_TOKENS, "model.end_token", allowed)
    allowed = "an id of text, at least 256, or 0 for none"
    begins = model.begin_token == 0 or model.begin_token >= NUM_SPECIAL_TOKENS
    require(begins, "model.begin_token", allowed)
    allowed = f"at least model.min_predicted_id = {model.min_predicted_id}, or 0"
    least = model.max_predicted_id == 0 or model.max_predicted_id >= model.min_predicted_id
    require(least, "model.max_predicted_id", allowed)


def _require_of(config: Config) -> Require:
    """Return a function that refuses a configuration and names one of its fields."""

    def require(ok: bool, name: str, allowed: str) -> None:
        if not ok:
            found: Any = to_dict(config)
            for part in name.split("."):
                found = found[part]
            raise ConfigError(f"config.{name}: found {shown(found)}; allowed: {allowed}")

    return require


def check_batches(config: Config) -> None:
    """Check the rows of pre-training, or of the stage in `config.batching`.

    Raises:
        ConfigError: the rows cannot be divided or are too long; the message names the field.
    """
    require = _require_of(config)
    require(
        config.data.record_tokens >= config.batching.length,
        "data.record_tokens",
        f"at least batching.length = {config.batching.length}",
    )
    for section in ("batching", "eval"):
        rows, length = getattr(config, section).rows, config.batching.length
        allowed = (
            f"at most {MAX_BATCH_TOKENS // length:,} of batching.length = {length}: int32 counts tokens"
        )
        require(rows * length <= MAX_BATCH_TOKENS, f"{section}.rows", allowed)
    if config.train.accumulation_steps:
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


def check_config(config: Config) -> None:
    """Check the relations between fields, and the names in them.

    The stages of fine-tuning define its batches, which `check_batches` checks with `stage_config`.

    Raises:
        ConfigError: a field is invalid; the message names it.
    """
    require = _require_of(config)

    def one_of(name: str, *choices: str) -> None:
        section, leaf = name.split(".")
        value = getattr(getattr(config, section), leaf)
        require(value in choices, name, nearest_first(value, choices))

    corpora_of(config.data)
    one_of("model.name", *model_names())
    one_of("model.dtype", "float32", "bfloat16")
    one_of("model.scan_dtype", "float32", "bfloat16")
    one_of("model.residual_dtype", "", "float32", "bfloat16")
    one_of("model.mlp_activation", "gelu", "silu")
    one_of("model.remat", AUTO, *LEVELS)
    one_of("model.scan_implementation", "", *IMPLEMENTATIONS)
    one_of("model.head", "", *HEADS)
    allowed = "'' without config.finetune.stages: pre-training has none"
    require(not config.model.head or bool(config.finetune.stages), "model.head", allowed)
    allowed = "0 without config.finetune.stages: pre-training trains all parameters"
    require(not config.finetune.lora.rank or bool(config.finetune.stages), "finetune.lora.rank", allowed)
    require(config.model.state % 2 == 0, "model.state", "an even number: half of it runs in reverse")
    _check_predicted_ids(config.model, require)
    for kind in mixer_sections():
        config.model.section(kind).check_fields(require)
    mixer_config(config.model).check_model(config, require)
    if not config.finetune.stages:
        check_batches(config)
    require(
        config.train.num_steps > 0 or bool(config.finetune.stages),
        "train.num_steps",
        "at least 1, or with config.finetune.stages 0: all steps of the stages",
    )
    finetune_settings(config.finetune.pruning)
    allowed = "0 without config.finetune.stages: pre-training has no second loss"
    unused = config.finetune.pruning.max_pruned == 0
    require(unused or bool(config.finetune.stages), "finetune.pruning.max_pruned", allowed)
    require(
        not config.init.optimizer or (bool(config.init.from_) and not config.finetune.stages),
        "init.optimizer",
        "false without config.init.from, and with config.finetune.stages",
    )
    one_of("objectives.shares_of", *UNITS)
    one_of("bandit.policy", *POLICIES)
    one_of("bandit.reward", *REWARDS)
    one_of("bandit.critic", *CRITICS)
    one_of("bandit.selection", *SELECTIONS)
    one_of("bandit.candidate_prior", *CANDIDATE_PRIORS)
    one_of("bandit.critic_error", *CRITIC_ERRORS)
    require(config.bandit.critic_state % 2 == 0, "bandit.critic_state", "an even number")
    require(
        config.bandit.average_best <= 2 * config.bandit.candidates,
        "bandit.average_best",
        f"at most 2 * bandit.candidates = {2 * config.bandit.candidates}",
    )
    require(
        config.train.layer_norms_every_steps % config.train.log_every_steps == 0,
        "train.layer_norms_every_steps",
        f"a multiple of train.log_every_steps = {config.train.log_every_steps}, or 0",
    )
    one_of("optimizer.name", *OPTIMIZERS)
    reads_moments = config.bandit.policy in POLICIES and POLICIES[config.bandit.policy].reads_gains
    require(
        config.optimizer.name == "adamw" or not reads_moments,
        "optimizer.name",
        f"adamw, whose second moments bandit.policy={config.bandit.policy} reads",
    )
    one_of("optimizer.schedule", "cosine", "linear", "wsd")
    one_of("optimizer.decay_shape", *sorted(DECAY_SHAPES))
    require(
        config.optimizer.decay_steps == 0 or config.optimizer.schedule == "wsd",
        "optimizer.decay_steps",
        "0 without optimizer.schedule=wsd: the rate falls from the peak on",
    )
    steady = config.train.num_steps - config.optimizer.warmup_steps
    require(
        config.optimizer.decay_steps <= max(steady, 0) or bool(config.finetune.stages),
        "optimizer.decay_steps",
        f"at most {max(steady, 0)}, the steps of the run after the warm-up",
    )
    require(
        config.optimizer.final_learning_rate <= config.optimizer.learning_rate,
        "optimizer.final_learning_rate",
        f"at most optimizer.learning_rate = {config.optimizer.learning_rate}",
    )
    sizes = dataclasses.asdict(config.mesh)
    rest = [name for name, size in sizes.items() if size == -1]
    if len(rest) > 1:
        raise ConfigError(f"config.mesh: found -1 for {' and '.join(rest)}; allowed: -1 for one axis")


def check_used(config: Config) -> None:
    """Check that no field is set that the values of other fields make useless.

    A saved configuration is not checked, because it may have the defaults of an earlier version.

    Raises:
        ConfigError: a field would be ignored; the message names it.
    """
    require = _require_of(config)
    values, defaults = to_dict(config)["finetune"], to_dict(Config())["finetune"]
    for section, switch in _SWITCHES:
        if values[section][switch] != defaults[section][switch]:
            continue
        for name, default in defaults[section].items():
            allowed = f"{shown(default)} without config.finetune.{section}.{switch}"
            require(values[section][name] == default, f"finetune.{section}.{name}", allowed)
    unread = not config.data.corpora or config.data.source in ("", Config().data.source)
    require(unread, "data.source", "none beside config.data.corpora, whose entries have their own sources")
    require(
        config.train.gate_statistics_every_steps == 0 or not config.finetune.stages,
        "train.gate_statistics_every_steps",
        "0 with config.finetune.stages: only pre-training measures gates",
    )
