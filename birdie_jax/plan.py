"""Plan a run for machines that you do not have.

    python -m birdie_jax.plan --config=configs/birdie_1_4b.py --topology=v5p:4x4x4 --json=plan.json

Compiles the run's own train step for the topology, without a device. The plan reports whether the step
fits, the memory of a device by content, the FLOPs, memory traffic and collectives of a step, and the
minimum time of each. Repeat --compare to compare meshes. --search finds the fastest step that fits, over
the values of model.remat and the parts of a batch. --decode=1,32 plans decoding on one device instead. For
a fine-tuning configuration, plans the stage with the most positions per batch. docs/plan.md describes the
counting.
"""

import dataclasses
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags, logging
from ml_collections import config_flags

from birdie_jax.command_line import define_path, start
from birdie_jax.config import Config, MeshConfig, check_used, corpora_of, parse_config
from birdie_jax.config_flag import define_config
from birdie_jax.errors import ConfigError, shown
from birdie_jax.finetuning.run import resolve_stages
from birdie_jax.finetuning.stages import Stage, read_stages
from birdie_jax.finetuning.task_heads import with_task_head
from birdie_jax.interop.initialization import check_source, tokenizer_of_source
from birdie_jax.models import build_model
from birdie_jax.models.platforms import check_platform
from birdie_jax.models.rematerialisation import AUTO, CHOICES, LEVELS
from birdie_jax.planning import (
    Topology,
    comparison_table,
    compiling_text,
    decode_row,
    decode_table,
    find_largest_batch,
    frontier,
    make_topology,
    plan_as_json,
    plan_as_text,
    plan_chosen,
    plan_decoding,
    search_steps,
    search_table,
)
from birdie_jax.planning.plan_output import mesh_text, search_row
from birdie_jax.resolve import ResolvedRun, resolve_run
from birdie_jax.storage import is_remote, make_path, write_json
from birdie_jax.storage.outputs import Input, Output, check_outputs
from birdie_jax.text import Tokenizer, load_tokenizer
from birdie_jax.vocabulary import padded_vocab_size
from hlo_analysis import UnknownTripCountError

_CONFIG = define_config(
    "The configuration to plan: a preset or a Python file, with :variant if it has any."
)
_TOPOLOGY = flags.DEFINE_string(
    "topology",
    None,
    "The machine: v4:4x4x4, v5p:4x4x4, v5e:16x16, v6e:16x16 or other shapes, with ',slices=2' for "
    "slices; a Google Cloud slice name such as v5p-128; h200:2x8 or h100:2x8 (hosts and GPUs of each); "
    "cpu or cpu:8 (this machine).",
    required=True,
)
_JSON = define_path("json", "File to write the plan to.")
_COMPARE = flags.DEFINE_multi_string(
    "compare",
    [],
    "A mesh such as fsdp=16,tensor=4, instead of the config's; repeat the flag to print a table of meshes.",
)
_PRICE = flags.DEFINE_float(
    "price_per_chip_hour",
    None,
    "Price of one device hour, in any currency; adds the price of the run to its hours.",
    lower_bound=0.0,
)
_SEARCH = flags.DEFINE_bool(
    "search",
    False,
    "Search for the fastest step that fits: each mesh of --compare, or the config's, with every value of "
    "model.remat and the fewest parts of a batch that fit. Prints all attempts and the best ones.",
)
_DECODE = flags.DEFINE_list(
    "decode",
    [],
    "Plan decoding on one device instead of the run, for each of these numbers of rows, such as 1,32. "
    "A cache that grows has room for batching.length tokens.",
)
_LARGEST_BATCH = flags.DEFINE_enum(
    "largest_batch",
    "estimate",
    ["skip", "estimate", "verify"],
    "Search for the largest batch that fits: estimate compiles one more batch; verify also compiles the "
    "result and the next larger batch. Ignored with --compare.",
)


# The maximum number of programs that the search for the largest batch compiles.
_EXTRA_PROGRAMS = {"skip": 0, "estimate": 1, "verify": 7}


def run(config: Config) -> None:
    """Plan, print and write."""
    check_used(config)
    _check_json(config)
    _check_decode()
    topology = make_topology(_TOPOLOGY.value, _log)
    vocab_size = embedding_rows(config)
    if _DECODE.value:
        _plan_decoding(config, vocab_size, topology)
        return
    stages = read_stages(config)
    config = with_task_head(config, stages)
    # If several stages have the most positions per batch, take the one with the longest rows.
    stage = max(stages, key=lambda stage: (stage.rows * stage.length, stage.length), default=None)
    if stage is not None:
        print(f"stage {stage.name}, which has the most positions per batch\n")
    meshes = [parse_mesh(text) for text in _COMPARE.value]
    configs = [dataclasses.replace(config, mesh=mesh) for mesh in meshes or [config.mesh]]
    # Check every mesh before the first compilation.
    runs = [_resolve(one, stages, stage, vocab_size, topology) for one in configs]
    if _SEARCH.value:
        _search(runs, topology)
        return
    more = 0 if meshes else _EXTRA_PROGRAMS[_LARGEST_BATCH.value]
    more += len(runs) * (len(CHOICES) - 1) if config.model.remat == AUTO else 0
    _log(compiling_text(topology, len(runs), more))
    chosen = [plan_chosen(one, topology) for one in runs]
    runs, plans = [run for run, _ in chosen], [plan for _, plan in chosen]
    if stage is not None and stage.epochs is None:
        plans = [dataclasses.replace(plan, num_steps=stage.steps) for plan in plans]
    if meshes:
        print(comparison_table(plans))
        _write({"plans": [plan_as_json(plan, price=_PRICE.value) for plan in plans]})
        return
    resolved, plan, largest = runs[0], plans[0], None
    if _LARGEST_BATCH.value != "skip":
        largest = find_largest_batch(resolved, plan, verify=_LARGEST_BATCH.value == "verify")
    if resolved.explanation:
        print(f"{resolved.explanation}\n")
    print(plan_as_text(plan, largest, _PRICE.value))
    _write(plan_as_json(plan, largest, _PRICE.value))


def _search(runs: Sequence[ResolvedRun], topology: Topology) -> None:
    """Print each attempt when it ends, then the frontier of time and memory."""
    _log(compiling_text(topology, len(runs), len(runs) * (len(LEVELS) - 1)))
    candidates = []
    for one in search_steps(runs, topology):
        candidates.append(one)
        state = "fits" if one.plan.fits else "does not fit"
        mesh = mesh_text(one.plan.mesh_shape)
        _log(f"{mesh}, remat={one.remat}, parts={one.accumulation_steps}: {state}")
    print(f"tried\n\n{search_table(candidates)}\n")
    best = frontier(candidates)
    print(f"not beaten in time and memory\n\n{search_table(best)}" if best else "none of them fits")
    _write(
        {"tried": [search_row(one) for one in candidates], "frontier": [search_row(one) for one in best]}
    )


def _check_decode() -> None:
    """Check the numbers of --decode before the search for a compiler.

    Raises:
        ConfigError: a value is not a number of rows, or another flag plans a train step.
    """
    for text in _DECODE.value:
        if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
            raise ConfigError(f"--decode: found {shown(text)}; allowed: numbers of rows, such as 1,32,256")
    others = {"--search": _SEARCH, "--compare": _COMPARE, "--price_per_chip_hour": _PRICE}
    given = [name for name, flag in others.items() if flag.value]
    if _DECODE.value and given:
        raise ConfigError(f"--decode: found with {', '.join(given)}; allowed: without it")


def _plan_decoding(config: Config, vocab_size: int, topology: Topology) -> None:
    """Print a table of decoding steps, and the assumed figures of the device."""
    if topology.chip is None:
        raise ConfigError(
            f"--topology: found {shown(topology.name)} with --decode; allowed: TPUs and GPUs with "
            "known figures"
        )
    check_platform(config.model, topology.devices[0].platform)
    model = build_model(config.model, vocab_size)
    _log(compiling_text(topology, len(_DECODE.value), 0))
    plans = [plan_decoding(model, topology, int(rows), config.batching.length) for rows in _DECODE.value]
    rows = [decode_row(plan, topology) for plan in plans]
    print(
        f"decoding on one {topology.chip.title}, {plans[0].parameter_bytes / 1e9:.3f} GB of parameters\n\n"
        f"{decode_table(rows)}"
    )
    _write({"topology": topology.name, "parameter_bytes": plans[0].parameter_bytes, "decode": rows})


def _log(line: str) -> None:
    """Print a line of progress to standard error."""
    print(f"plan: {line}", file=sys.stderr, flush=True)


def _resolve(
    config: Config, stages: Sequence[Stage], stage: Stage | None, vocab_size: int, topology: Topology
) -> ResolvedRun:
    if stage is None:
        return resolve_run(config, vocab_size, topology.devices)
    # The number of steps in a stage's epochs is not known yet.
    num_steps = max(config.train.num_steps, 1)
    return resolve_stages(config, stages, vocab_size, topology.devices, num_steps)[stage.number]


def embedding_rows(config: Config) -> int:
    """Return the number of rows in the embedding table, from the tokenizer if it already exists.

    Fine-tuning uses the tokenizer of `init.from` if it is set.
    """
    data = config.data
    if config.finetune.stages and config.init.from_ and not data.tokenizer:
        source = check_source(config.init.from_, name_checkpoint=False)
        return tokenizer_of_source(source).vocab_size
    for prepared in (data.prepared, *(corpus.prepared for corpus in corpora_of(data).values())):
        if prepared and (is_remote(prepared) or Path(prepared).is_dir()):
            return load_tokenizer(prepared).vocab_size
    if data.tokenizer:
        return Tokenizer(data.tokenizer).vocab_size
    return padded_vocab_size(data.vocab_size)


def parse_mesh(text: str) -> MeshConfig:
    """Parse a mesh such as `fsdp=16,tensor=4`; axes without a size have one device."""
    axes = [field.name for field in dataclasses.fields(MeshConfig)]
    sizes = dict.fromkeys(axes, 1)
    for part in text.split(","):
        axis, _, size = part.partition("=")
        if axis not in sizes or not (re.fullmatch(r"0{0,9}[1-9][0-9]{0,8}", size) or size == "-1"):
            raise ConfigError(
                f"--compare: found {shown(text)}; allowed: axis=devices with commas between, axes "
                f"{', '.join(axes)}, such as fsdp=16,tensor=4"
            )
        sizes[axis] = int(size)
    return MeshConfig(**sizes)


def _check_json(config: Config) -> None:
    """Check the file of --json before work that takes minutes.

    Raises:
        ConfigError: the file is also an input, or cannot be written.
    """
    if _JSON.value is None:
        return
    read = {
        "--config": config_flags.get_config_filename(flags.FLAGS["config"]).partition(":")[0],
        "--config.data.prepared": config.data.prepared,
        "--config.data.tokenizer": config.data.tokenizer,
    }
    inputs = [Input(flag, path) for flag, path in read.items() if path]
    check_outputs([Output("--json", _JSON.value)], inputs)


def _write(plan: dict[str, Any]) -> None:
    """Write the file of --json, if set."""
    if _JSON.value is not None:
        write_json(make_path(_JSON.value), plan)


def main(arguments: list[str]) -> None:
    """Parse the config and plan."""
    logging.set_verbosity(logging.WARNING)
    # Only compilers run here, so JAX does not need other devices.
    jax.config.update("jax_platforms", "cpu")
    run(parse_config(_CONFIG.value))


if __name__ == "__main__":
    flags.mark_flag_as_required("config")
    start("plan", main, UnknownTripCountError, OSError)
