"""The choice of `config.model.remat`, the arrays that blocks keep for the gradient, if it is `auto`.

Choices are tried in order, from the least recomputation to the least memory. The run uses the first one
with a train step that fits a device. A resumed run keeps its choice, because another one rounds
differently.
"""

import json
from collections.abc import Callable, Sequence

import jax

from birdie_jax.engine.coordination import Processes
from birdie_jax.engine.memory_check import device_memory
from birdie_jax.errors import ConfigError, shown
from birdie_jax.models.rematerialisation import AUTO, CHOICES, LEVELS
from birdie_jax.planning.compilation import compile_step
from birdie_jax.planning.planner import RunPlan, plan_run
from birdie_jax.planning.topology import Topology
from birdie_jax.resolve import ResolvedRun
from birdie_jax.saved_config import read_json
from birdie_jax.storage import exists
from birdie_jax.storage.workdir import Workdir
from hlo_analysis import OutOfMemory

_GIB = 2**30
# The share of a device's memory that a program can use; the runtime uses the rest.
_USABLE = 0.95

# The choice on CPUs, without compiling.
_ON_CPU = ("none", "a CPU has the memory of the machine")

Bytes = int | float
Try = Callable[[ResolvedRun], tuple[Bytes, Bytes]]
"""A run -> the bytes that its step needs on a device, and the bytes that a device has."""


def choose_level(
    run: ResolvedRun, try_step: Try, agree: Callable[[str, bool], bool] = lambda _, fits: fits
) -> tuple[str, str]:
    """Return the first choice with a step that fits, or the last choice, and a text about the attempts.

    Args:
        run: the run.
        try_step: compiles the step of a choice.
        agree: (choice, whether it fits) -> the answer for every process of the run.
    """
    tried = []
    for level in CHOICES:
        needed, available = try_step(run.with_model(remat=level))
        tried.append(f"{level} {needed / _GIB:.1f} GiB")
        if agree(level, needed <= _USABLE * available):
            break
    return level, f"{', '.join(tried)}; a device has {available / _GIB:.1f} GiB"


def plan_chosen(run: ResolvedRun, topology: Topology) -> tuple[ResolvedRun, RunPlan]:
    """Return the run with its choice for a topology, and its plan."""
    if run.config.model.remat != AUTO:
        return run, plan_run(run, topology)
    plans: dict[str, RunPlan] = {}

    def try_step(candidate: ResolvedRun) -> tuple[Bytes, Bytes]:
        plan = plans[candidate.config.model.remat] = plan_run(candidate, topology)
        return plan.bytes_per_device.total, plan.bytes_per_device.available

    if topology.devices[0].platform == "cpu":
        level, tried = _ON_CPU
        try_step(run.with_model(remat=level))
    else:
        level, tried = choose_level(run, try_step)
    return run.with_model(remat=level).explained(_explanation(level, tried)), plans[level]


def keep_remat(
    runs: Sequence[ResolvedRun], workdir: Workdir, processes: Processes
) -> tuple[ResolvedRun, ...]:
    """Return runs of one model on attached devices with the workdir's choice; make the choice once.

    On a CPU, blocks keep everything and nothing is compiled: devices share the memory of the machine.

    Args:
        runs: the run of each stage, or the run of pre-training.
        workdir: the folder of the run; the choice is in its `remat.json`.
        processes: all processes of the run, which use the choice of the first.

    Raises:
        ConfigError: the record has no valid level.
    """
    if runs[0].config.model.remat != AUTO:
        return tuple(runs)
    record = json.loads(processes.broadcast_from_first("remat", lambda: _read(workdir)))
    if not record:
        # The run with the most positions per batch.
        largest = max(runs, key=lambda run: run.config.batching.rows * run.config.batching.length)
        level, tried = _choose_on_devices(largest, processes)
        record = {"remat": level, "tried": tried}
        if processes.first:
            workdir.write(workdir.remat, record)
    level, tried = str(record.get("remat")), str(record.get("tried", ""))
    if level not in LEVELS:
        raise ConfigError(f"{workdir.remat}: remat: found {shown(level)}; allowed: {', '.join(LEVELS)}")
    return tuple(run.with_model(remat=level).explained(_explanation(level, tried)) for run in runs)


def _read(workdir: Workdir) -> str:
    found = read_json(workdir.remat, "the choice of what blocks keep") if exists(workdir.remat) else {}
    return json.dumps(found)


def _choose_on_devices(run: ResolvedRun, processes: Processes) -> tuple[str, str]:
    """Return the choice and the attempts. Call this in every process, because GPU compilers communicate."""
    if run.mesh.devices.flat[0].platform == "cpu":
        return _ON_CPU

    def agree(level: str, fits: bool) -> bool:
        return json.loads(processes.broadcast_from_first(f"remat {level}", lambda: json.dumps(fits)))

    return choose_level(run, _try_on_devices, agree)


def _try_on_devices(run: ResolvedRun) -> tuple[Bytes, Bytes]:
    outcome = compile_step(run).outcome
    available = device_memory(jax.local_devices()[0]) or float("inf")
    if isinstance(outcome, OutOfMemory):
        return outcome.needed, min(available, outcome.available)
    memory = outcome.executable.memory_analysis()
    if memory is None:
        raise RuntimeError("the compiler does not state the memory of the step; set config.model.remat")
    needed = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return needed + memory.generated_code_size_in_bytes + memory.temp_size_in_bytes, available


def _explanation(level: str, tried: str) -> str:
    return f"model.remat = {level} ({tried})"
