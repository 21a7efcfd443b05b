"""Plan a run for machines that are not there.

    python -m birdie_jax.plan --config=configs/birdie_1_4b.py --topology=v5p:4x4x4 --json=plan.json

The run's own train step is compiled for the topology, with no device. Told are whether it fits, the bytes
of a device by what they hold, FLOPs, memory traffic and collectives of a step, and the time that each of
them takes at least. --compare, given once for each mesh, sets meshes side by side. docs/plan.md tells how
everything is counted.
"""

import dataclasses
import json
import sys
from pathlib import Path

import jax
from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from birdie_jax.command_line import start
from birdie_jax.config import Config, ConfigError, MeshConfig, parse_config
from birdie_jax.planning import (
    MissingCompiler,
    Plan,
    Topology,
    UnknownTripCount,
    as_json,
    as_text,
    compared,
    largest_batch,
    make_plan,
    make_topology,
)
from birdie_jax.text import DataError, Tokenizer, load_tokenizer
from birdie_jax.training.sharding import fill_in_sizes, make_mesh
from birdie_jax.vocabulary import padded_vocab_size

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "What to plan: a file of configs/, with :variant if it has any."
)
_TOPOLOGY = flags.DEFINE_string(
    "topology",
    None,
    "For which machine: v4:4x4x4, v5p:4x4x4, v5e:16x16, v6e:16x16 or other shapes, with ',slices=2' for "
    "slices; h200:2x8 (hosts and GPUs of each); cpu or cpu:8 (this machine).",
)
_JSON = flags.DEFINE_string("json", None, "File to write the plan to.")
_COMPARE = flags.DEFINE_multi_string(
    "compare",
    [],
    "A mesh such as fsdp=16,tensor=4, in place of the config's; given several times, a table is printed.",
)
_LARGEST_BATCH = flags.DEFINE_enum(
    "largest_batch",
    "estimate",
    ["skip", "estimate", "verify"],
    "Whether to look for the largest batch that fits: estimate compiles one more batch, verify also the "
    "one that is found and the next larger one. Not looked for with --compare.",
)


def run(config: Config) -> None:
    """Plan, print and write."""
    topology = make_topology(_TOPOLOGY.value)
    vocab_size = rows_of_table(config)
    if _COMPARE.value:
        plans = compare(config, vocab_size, topology)
        print(compared(plans))
        write({"plans": [as_json(plan) for plan in plans]})
        return
    config, explanation = fill_in_sizes(config, vocab_size, topology.devices)
    plan = make_plan(config, vocab_size, topology)
    largest = None
    if _LARGEST_BATCH.value != "skip":
        largest = largest_batch(config, plan, verify=_LARGEST_BATCH.value == "verify")
    if explanation:
        print(f"{explanation}\n")
    print(as_text(plan, largest))
    write(as_json(plan, largest))


def rows_of_table(config: Config) -> int:
    """Return the rows of the embedding table, by the tokenizer where it is there already."""
    data = config.data
    if data.prepared and Path(data.prepared).is_dir():
        return load_tokenizer(data.prepared).vocab_size
    if data.tokenizer:
        return Tokenizer(Path(data.tokenizer)).vocab_size
    return padded_vocab_size(data.vocab_size)


def compare(config: Config, vocab_size: int, topology: Topology) -> list[Plan]:
    """Return a plan for each mesh of --compare; all are checked before the first is compiled."""
    meshes = [dataclasses.replace(config, mesh=parse_mesh(text)) for text in _COMPARE.value]
    configs = [fill_in_sizes(one, vocab_size, topology.devices).config for one in meshes]
    for one in configs:
        make_mesh(one, vocab_size, topology.devices)
    return [make_plan(one, vocab_size, topology) for one in configs]


def parse_mesh(text: str) -> MeshConfig:
    """Return the mesh that `fsdp=16,tensor=4` means; axes that are not named have one device."""
    axes = [field.name for field in dataclasses.fields(MeshConfig)]
    sizes = dict.fromkeys(axes, 1)
    for part in text.split(","):
        axis, _, size = part.partition("=")
        if axis not in sizes or not ((size.isdigit() and int(size)) or size == "-1"):
            raise ConfigError(
                f"--compare: found {text!r}; allowed: axis=devices with commas between, axes "
                f"{', '.join(axes)}, such as fsdp=16,tensor=4"
            )
        sizes[axis] = int(size)
    return MeshConfig(**sizes)


def write(plan: dict) -> None:
    """Write --json, if it is asked for."""
    if _JSON.value is not None:
        Path(_JSON.value).write_text(json.dumps(plan, indent=2) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Parse flags and plan; a fault of the user's is told in one line."""
    if len(arguments) > 1:
        raise app.UsageError(f"unknown argument {arguments[1]!r}; every option begins with --")
    logging.set_verbosity(logging.WARNING)
    # Nothing runs here but the compilers; JAX is not to look for other devices.
    jax.config.update("jax_platforms", "cpu")
    config = _CONFIG.value
    if not isinstance(config, ConfigDict):
        sys.exit(f"birdie_jax.plan: --config={flags.FLAGS['config'].config_filename}: no such file")
    try:
        run(parse_config(config))
    except (ConfigError, DataError, MissingCompiler, UnknownTripCount, OSError) as error:
        sys.exit(f"birdie_jax.plan: {error}")


if __name__ == "__main__":
    flags.mark_flags_as_required(["config", "topology"])
    start("plan", main)
