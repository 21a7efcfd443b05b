"""A fine-tuning run, and the parameters and examples that it starts with."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
from jaxtyping import PyTree

from birdie_jax.config import Config, ModelConfig
from birdie_jax.engine import Outcome, Workdir, sections_of, train
from birdie_jax.engine.coordination import Processes
from birdie_jax.engine.hook_registry import HookParts, configured_hooks
from birdie_jax.engine.lease import Lease
from birdie_jax.engine.mesh import Device
from birdie_jax.engine.trackers.sending import OnScalars
from birdie_jax.engine.watch import Watch
from birdie_jax.errors import ConfigError, DataError
from birdie_jax.finetuning.stage_sequence import StageSequence, make_stage_sequence
from birdie_jax.finetuning.staged_step import make_staged_step
from birdie_jax.finetuning.stages import Stage, stage_arms, stage_config, stage_errors
from birdie_jax.finetuning.task_batches import TaskBatches
from birdie_jax.finetuning.task_heads import maps_of_other_classes, max_samples
from birdie_jax.finetuning.teacher import find_teacher
from birdie_jax.interop.initialization import (
    config_of_source,
    read_initial_parameters,
    tokenizer_of_source,
)
from birdie_jax.models.computation import told_differences
from birdie_jax.models.task_head import TASK_HEAD
from birdie_jax.objectives import Mixture
from birdie_jax.optimizers import warn_of_a_cut_warmup
from birdie_jax.resolve import ResolvedRun, check_run, resolve_run
from birdie_jax.start_recorder import Announce
from birdie_jax.storage import exists, write_whole
from birdie_jax.tasks.evaluation import NamedTask
from birdie_jax.tasks.task_hook import task_hooks
from birdie_jax.text import Tokenizer

Choose = Callable[[Sequence[ResolvedRun], Workdir, Processes], tuple[ResolvedRun, ...]]
"""(runs of one model, workdir, processes) -> the runs with all device-dependent choices made."""
FlopsOf = Callable[[ModelConfig, int, int], float]
"""(architecture, rows of its table, length of a row) -> the model's FLOPs per token in a step."""


def check_stages(config: Config, stages: Sequence[Stage]) -> None:
    """Check every stage of a run before its vocabulary is known; see `check_run`.

    Raises:
        ConfigError: a stage is invalid; the message names the field.
    """
    for stage in stages:
        with stage_errors(stage):
            check_run(stage_config(config, stage), 0)


def resolve_stages(
    config: Config,
    stages: Sequence[Stage],
    vocab_size: int,
    devices: Sequence[Device] | None = None,
    num_steps: int | None = None,
) -> tuple[ResolvedRun, ...]:
    """Return a run for each stage: one model on one mesh, with the batches of the stage.

    Args:
        config: the configuration of the whole run, with its head if any.
        stages: its stages.
        vocab_size: the number of rows of the embedding table.
        devices: the devices of the run; None: JAX's devices.
        num_steps: the number of train steps of the whole run, if known.

    Raises:
        ConfigError: see `resolve_run`; the message names the field of the stage.
    """
    runs: list[ResolvedRun] = []
    for stage in stages:
        with stage_errors(stage):
            own = stage_config(config, stage, num_steps)
            if runs:
                run = runs[0].with_batches_of(own)
            else:
                run = resolve_run(own, vocab_size, devices, Mixture(stage_arms(stages)))
        if config.model.head:
            same = [one for one in stages if (one.rows, one.length) == (stage.rows, stage.length)]
            run = replace(run, max_samples=max(max_samples(config, one) for one in same))
        runs.append(run)
    return tuple(runs)


def check_start(config: Config, workdir: Workdir) -> None:
    """Check that a run without a checkpoint has a source to start from.

    Raises:
        ConfigError: it has none.
    """
    if not config.init.from_ and not workdir.saved_steps():
        raise ConfigError(
            "config.init.from: found ''; allowed: with config.finetune.stages a workdir, a checkpoint or "
            "an exported folder, because fine-tuning starts from its parameters"
        )


def check_same_computation(config: Config, source: Config) -> None:
    """Check that a run and its source compute the same function of the parameters.

    The reader of the parameters compares their names and shapes.

    Args:
        config: the configuration of the run.
        source: the configuration of the run that it starts from.

    Raises:
        ConfigError: they do not; the message names every field that differs.
    """
    if different := told_differences(source.model, config.model):
        raise ConfigError(
            f"config.init.from: found {config.init.from_}, a model of another architecture: {different}; "
            "allowed: a model of the same config.model"
        )


def keep_tokenizer(config: Config, source: str, workdir: Workdir, processes: Processes) -> Tokenizer:
    """Return the tokenizer of a run; the first process saves it in the workdir.

    The order of precedence is: the workdir's own tokenizer, `data.tokenizer`, the tokenizer of `init.from`.

    Args:
        config: the configuration of the run.
        source: the source of the run, `init.from`; not read if the workdir has a tokenizer.
        workdir: the folder of the run.
        processes: the processes of the run.

    Raises:
        DataError: no tokenizer exists, or it cannot be read.
    """

    def keep() -> str:
        if not exists(workdir.tokenizer):
            named = config.data.tokenizer
            found = Tokenizer(named) if named else tokenizer_of_source(source)
            write_whole(workdir.tokenizer, found.model_bytes)
        return Tokenizer(str(workdir.tokenizer)).sha256

    sha256 = processes.broadcast_from_first("tokenizer", keep)
    tokenizer = Tokenizer(str(workdir.tokenizer))
    if tokenizer.sha256 != sha256:
        raise DataError(
            f"{workdir.tokenizer}: process {processes.index} reads a different file from process 0"
        )
    return tokenizer


def read_examples(
    config: Config, stages: Sequence[Stage], tokenizer: Tokenizer, processes: Processes
) -> StageSequence:
    """Read and pack the examples of all stages in every process; the first process describes them.

    Raises:
        ConfigError: a stage does not fit its examples.
        DataError: examples cannot be read, or differ from the first process's examples.
    """
    sequence = make_stage_sequence(config, stages, tokenizer)
    first = processes.broadcast_from_first("examples", lambda: sequence.identity)
    if first != sequence.identity:
        raise DataError(
            f"config.finetune.stages: process {processes.index} reads different examples from process 0; "
            "allowed: the same files on every host"
        )
    if processes.first:
        print(sequence.describe(), flush=True)
    return sequence


def read_start(
    run: ResolvedRun, source: str, tokenizer: Tokenizer, processes: Processes, *, whole: bool
) -> Callable[[PyTree[jax.ShapeDtypeStruct]], Callable[[PyTree], PyTree]]:
    """Return the function that reads the parameters of `init.from`, for `ShardedStep.starting_from`.

    Args:
        run: the run.
        source: the source of the run.
        tokenizer: the tokenizer of the run.
        processes: the processes of the run.
        whole: whether the source must compute the same function and have every parameter, except a head's.
    """

    def read(abstract_params: PyTree[jax.ShapeDtypeStruct]) -> Callable[[PyTree], PyTree]:
        not_taken: dict[str, str] = {}
        before = config_of_source(source)
        different = told_differences(before.model, run.config.model)
        if not whole and processes.first and different:
            print(f"init.from: {source} computes differently: {different}", flush=True)
        if whole:
            check_same_computation(run.config, before)
            not_taken = maps_of_other_classes(run.config, before)
        initial = read_initial_parameters(
            source, abstract_params, tokenizer.sha256, run.policies, not_taken
        )
        lacked = [name for name in initial.new if not name.startswith(f"{TASK_HEAD}/")]
        if whole and lacked:
            named = [f"{name} {initial.new[name]}" for name in lacked]
            lacking = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
            raise ConfigError(
                f"config.init.from: found {source}, which lacks {lacking}; allowed: a model of the same "
                "config.model, because fine-tuning trains every parameter"
            )
        if processes.first:
            print(initial.table(), flush=True)
        return initial.put_into

    return read


def finetune(
    config: Config,
    stages: Sequence[Stage],
    *,
    tasks: Sequence[NamedTask],
    source: str,
    workdir: Workdir,
    watch: Watch,
    lease: Lease | None,
    announce: Announce,
    choose: Choose,
    flops_of: FlopsOf,
    on_scalars: OnScalars | None = None,
) -> tuple[Outcome, dict[str, float]]:
    """Read the examples of the stages, train on them, and return the outcome and figures for the summary.

    Args:
        config: the configuration of the run, with its head if any.
        stages: its stages.
        tasks: the tasks that the run measures as it trains.
        source: the source of the run, `init.from`.
        workdir: the folder of the run.
        watch: detects lost and hung processes.
        lease: the lease on the workdir, in the first process.
        announce: prints a description of the run once the mesh is known.
        choose: makes the choices that depend on the devices.
        flops_of: returns the model's FLOPs; the run logs MFU if they are equal in all stages.
        on_scalars: see `birdie_jax.engine.train`.

    Raises:
        BirdieError: see `birdie_jax.engine.train`; or a stage's data or `init.from` is unusable.
    """
    tokenizer = keep_tokenizer(config, source, workdir, watch.processes)
    sequence = read_examples(config, stages, tokenizer, watch.processes)
    steady = max(sequence.num_steps - config.optimizer.warmup_steps, 0)
    if config.optimizer.decay_steps > steady:
        raise ConfigError(
            f"config.optimizer.decay_steps: found {config.optimizer.decay_steps}; allowed: at most "
            f"{steady}, the steps of the run after the warm-up"
        )
    if watch.processes.first:
        warn_of_a_cut_warmup(config.optimizer, sequence.num_steps)
    resolved = resolve_stages(config, stages, tokenizer.vocab_size, num_steps=sequence.num_steps)
    resolved = choose(resolved, workdir, watch.processes)
    first = resolved[0]
    announce(first.mesh, first.explanation)
    with jax.set_mesh(first.mesh):
        batches = TaskBatches(config, sequence, first.mesh)
        parts = HookParts(config, workdir, first.mesh, first.model)
        hooks = [*configured_hooks(parts), *task_hooks(parts, tasks, tokenizer, watch.processes)]
        step = make_staged_step(resolved, sequence, sections_of(hooks))
        if config.finetune.teacher.from_:
            frozen, origin = find_teacher(first).read(tokenizer.sha256)
            step = step.with_frozen(frozen)
            if watch.processes.first:
                print(f"finetune.teacher.from: {origin}", flush=True)
        start_params = read_start(first, source, tokenizer, watch.processes, whole=True)
        lengths = {stage.length for stage in stages}
        flops = {flops_of(first.model.config, tokenizer.vocab_size, length) for length in lengths}
        outcome = train(
            step.starting_from(start_params),
            batches,
            hooks,
            workdir=workdir,
            num_steps=sequence.num_steps,
            log_every_steps=config.train.log_every_steps,
            checkpoint=config.checkpoint,
            watch=watch,
            lease=lease,
            flops_per_token=flops.pop() if len(flops) == 1 else None,
            on_scalars=on_scalars,
        )
    return outcome, {"vocab_size": tokenizer.vocab_size}
