"""Compare the least memory that a run needs with the available memory, before a large allocation.

The check counts only memory that every run of the configuration needs at the same time. A run that passes
the check can still need too much; `birdie_jax.plan` predicts the exact memory of a step.
"""

import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from birdie_jax.config_sections import Config
from birdie_jax.engine.automatic_sizes import BYTES_PER_PARAMETER, count_parameters, listed_memory
from birdie_jax.errors import ConfigError
from birdie_jax.models.registry import architecture_of
from birdie_jax.vocabulary import padded_vocab_size

_GIB = 2**30
# A batch has five int32 arrays and two bool arrays.
_BYTES_PER_POSITION = 22
# The rows as made, joined, and filled with padding rows (birdie_jax/batching/pipeline.py).
_COPIES_OF_VALIDATION = 3
_CGROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


class Need(NamedTuple):
    """The memory of one part of a run.

    Attributes:
        bytes: the least number of bytes.
        what: the part, in words.
        fields: the fields of the configuration that the need grows with.
    """

    bytes: int | float
    what: str
    fields: tuple[str, ...]


def check_memory(config: Config, num_arms: int, mesh: Mapping[str, int]) -> None:
    """Check that the least memory that a run needs fits into the memory of its devices and host.

    Args:
        config: the configuration of the run.
        num_arms: the number of arms of its mixture.
        mesh: the number of devices along each axis of the mesh, in all processes.

    Raises:
        ConfigError: it does not fit; the message names the most unusual field, and both numbers.
    """
    devices = jax.local_devices()
    on_device = device_needs(config, num_arms, mesh)
    on_host = host_needs(config, num_arms, jax.process_count())
    if devices[0].platform == "cpu":
        # The devices of a CPU share the memory of the host.
        on_host += [need._replace(bytes=need.bytes * len(devices)) for need in on_device]
    else:
        _compare(config, on_device, device_memory(devices[0]), f"a {devices[0].device_kind}")
    _compare(config, on_host, host_memory(), "this machine")


def device_needs(config: Config, num_arms: int, mesh: Mapping[str, int]) -> list[Need]:
    """Return the least memory that one device of a mesh needs."""
    model, batching, bandit = config.model, config.batching, config.bandit
    parameters = count_parameters(model, _min_vocab_size(config)) / (mesh["fsdp"] * mesh["tensor"])
    sizes = ("model.layers", "model.features")
    # Encoders do not use `model.state`. If they have no separate MLP, their gate has `model.mlp_features`.
    sizes += () if architecture_of(model).encoder else ("model.state",)
    sizes += (
        ("model.mlp_features",) if architecture_of(model).has_mlp or architecture_of(model).encoder else ()
    )
    sizes += ("data.vocab_size",) if trains_tokenizer(config) else ()

    # With automatic parts, a part of a batch has at least one row.
    parts = mesh["data"] * mesh["fsdp"] * config.train.accumulation_steps
    rows = batching.rows / parts if parts else 1
    positions = rows * batching.length / prod((mesh["sequence"], mesh["tensor"]))
    # The backward pass starts with the input of every block, and ends with a gradient for each parameter.
    streams = positions * model.layers * model.features * jnp.dtype(model.dtype).itemsize
    streams = max(0, streams - 4 * parameters)

    decisions = -(-config.train.num_steps // bandit.every_steps) + 1
    return [
        Need(
            BYTES_PER_PARAMETER * parameters,
            "the parameters with their gradients and optimizer state",
            sizes,
        ),
        Need(
            streams,
            "the inputs of all blocks, which the backward pass reads",
            ("batching.rows", "batching.length", "model.layers", "model.features"),
        ),
        Need(
            3 * 4 * decisions * num_arms,
            "the bandit's history of all decisions",
            ("train.num_steps", "bandit.every_steps"),
        ),
    ]


def host_needs(config: Config, num_arms: int, num_processes: int) -> list[Need]:
    """Return the least memory that the host of one process needs."""
    batching, length = config.batching, config.batching.length
    rows = batching.rows / num_processes
    validation_batch = config.eval.rows * length * _BYTES_PER_POSITION
    return [
        Need(
            rows * length * _BYTES_PER_POSITION,
            "a batch",
            ("batching.rows", "batching.length"),
        ),
        Need(
            rows * 8 * 3 * (1 + batching.lookahead),
            "the states of the row streams",
            ("batching.rows", "batching.lookahead"),
        ),
        Need(
            _COPIES_OF_VALIDATION * num_arms * config.eval.batches_per_arm * validation_batch,
            "the validation batches of all arms",
            ("eval.rows", "eval.batches_per_arm", "batching.length"),
        ),
    ]


def host_memory() -> int | None:
    """Return the bytes of memory, with swap, that a process on this machine can use; None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        memory, swap = (1024 * kilobytes.get(name, 0) for name in ("MemTotal", "SwapTotal"))
    except (OSError, ValueError, IndexError):
        try:
            memory, swap = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), 0
        except (OSError, ValueError):
            return None
    return min([memory, *_cgroup_limits()]) + swap


def device_memory(device: Any) -> int | float | None:
    """Return the bytes of a device's memory, reported by it or listed for its kind; None if unknown."""
    return (device.memory_stats() or {}).get("bytes_limit") or listed_memory(device.device_kind)


def _cgroup_limits() -> list[int]:
    """Return the memory limits of this process, for example from a container."""
    limits = []
    for name in _CGROUP_LIMITS:
        try:
            limits.append(int(Path("/sys/fs/cgroup", name).read_text()))
        except (OSError, ValueError):
            # The file does not exist, or has no limit ("max").
            continue
    return limits


def trains_tokenizer(config: Config) -> bool:
    """Return whether the run trains its own tokenizer, so `data.vocab_size` has an effect."""
    prepared = any(corpus.get("prepared") for corpus in config.data.corpora.values())
    return not (prepared or config.data.prepared or config.data.tokenizer)


def _min_vocab_size(config: Config) -> int:
    """Return the rows of the embedding table, without the pieces of a tokenizer that is not read yet."""
    return padded_vocab_size(config.data.vocab_size if trains_tokenizer(config) else 0)


def _compare(config: Config, needs: Sequence[Need], memory: int | float | None, whose: str) -> None:
    total = sum(need.bytes for need in needs)
    if memory is None or total <= memory:
        return
    largest = max(needs, key=lambda need: need.bytes)
    default = Config()
    # Choose the most unusual field. Only for `bandit.every_steps`, a smaller number means more memory.
    ratios = {name: _value(config, name) / _value(default, name) for name in largest.fields}
    if "bandit.every_steps" in ratios:
        ratios["bandit.every_steps"] = 1 / ratios["bandit.every_steps"]
    field = max(ratios, key=lambda name: ratios[name])
    raise ConfigError(
        f"config.{field}: found {_value(config, field)}; allowed: what fits into memory: the run needs at "
        f"least {_in_gib(total)}, {_in_gib(largest.bytes)} of it for {largest.what}; {whose} has "
        f"{_in_gib(memory)}"
    )


def _in_gib(size: int | float) -> str:
    return f"{size / _GIB:,.1f} GiB"


def _value(config: Config, field: str) -> int:
    section, name = field.split(".")
    return getattr(getattr(config, section), name)
