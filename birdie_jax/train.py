"""Pre-train a language model: `python -m birdie_jax.train --config=configs/tiny.py --workdir=runs/tiny`.

A configuration with `config.finetune.stages` fine-tunes the model of `config.init.from` instead.
Started again with the same workdir, a run resumes from its newest checkpoint. On several hosts, start
every process with the same command; birdie_jax/engine/processes.py describes how they connect.
"""

from birdie_jax.host_memory import keep_freed_memory

if __name__ == "__main__":
    # Call this before the imports below start threads.
    keep_freed_memory()

# isort: split
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import jax
from absl import flags, logging

from birdie_jax.command_line import define_path, given_imports, is_output_closed, refuse, start
from birdie_jax.compiled_programs import cache_compiled_programs
from birdie_jax.config import Config, check_used, default_config, parse_config, to_dict
from birdie_jax.config_flag import define_config
from birdie_jax.device_check.choice import keep_scan
from birdie_jax.engine import Hook, Outcome, Workdir, sections_of, train
from birdie_jax.engine.bad_steps import bad_step_rule, check_skip_batches
from birdie_jax.engine.checks import check_workdir
from birdie_jax.engine.coordination import Processes, check_agreement, check_shared
from birdie_jax.engine.hook_registry import HookParts, configured_hooks, hook_names
from birdie_jax.engine.lease import Lease, claimed
from birdie_jax.engine.processes import initialize_processes
from birdie_jax.engine.trackers import sending, tracker_names
from birdie_jax.engine.trackers.sending import OnScalars
from birdie_jax.engine.watch import Limits, Watch
from birdie_jax.errors import BirdieError, RecordError
from birdie_jax.finetuning.run import check_stages, check_start, finetune, read_start
from birdie_jax.finetuning.stages import Stage, read_stages
from birdie_jax.finetuning.task_heads import with_task_head
from birdie_jax.imports import name_of
from birdie_jax.interop.initialization import config_of_source, find_branch, find_source
from birdie_jax.objectives import Mixture
from birdie_jax.optimizers import warn_of_a_cut_warmup
from birdie_jax.planning.model_flops import model_flops_per_token
from birdie_jax.planning.remat_choice import keep_remat
from birdie_jax.pretraining.arm_samples import write_arms
from birdie_jax.pretraining.arm_validation import ArmValidation
from birdie_jax.pretraining.corpora import describe_corpora, in_one_line, with_corpora_of
from birdie_jax.pretraining.gate_statistics import LogGateStatistics
from birdie_jax.pretraining.held_out_samples import HeldOutSamples
from birdie_jax.pretraining.language_model_step import make_language_model_step
from birdie_jax.pretraining.mixture_batches import MixtureBatches
from birdie_jax.pretraining.mixture_shares import agree_on_shares
from birdie_jax.pretraining.training_text import prepare_text
from birdie_jax.resolve import ResolvedRun, check_run, configured_mixture, resolve_run, row_settings
from birdie_jax.start_record import Program, stopped_by
from birdie_jax.start_recorder import Announce, StartRecorder, describe_program, find_commit
from birdie_jax.tasks.evaluation import NamedTask, tasks_of_config
from birdie_jax.tasks.task_hook import read_stop_rule, task_hooks
from birdie_jax.text.statistics import unigram_entropy

_CONFIG = define_config("What to train: a preset or a Python file, with :variant if it has any.")
_WORKDIR = define_path("workdir", "Folder of the run: checkpoints, metrics, report.")
_COORDINATOR_ADDRESS = flags.DEFINE_string(
    "coordinator_address", None, "Address where the processes connect: host:port, on process 0's host."
)
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "Number of processes of this run.")
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "Number of this process: 0 to num_processes - 1.")
_CHECK = flags.DEFINE_bool("check", False, "Check the configuration without devices and data, and end.")

_EXIT_INTERRUPTED = {"SIGTERM": 143, "SIGINT": 130}


class Parts(NamedTuple):
    """The parts that a configuration names.

    Attributes:
        config: the configuration, with the head that the stages' tasks need.
        stages: the stages of fine-tuning; empty in pre-training.
        mixture: the arms of pre-training; None with stages.
        tasks: the tasks that the run measures during training.
    """

    config: Config
    stages: tuple[Stage, ...]
    mixture: Mixture | None
    tasks: Sequence[NamedTask]


def find_parts(config: Config) -> Parts:
    """Return the parts that a configuration names, without access to devices or data.

    Raises:
        ConfigError: a part does not exist; the message names the field.
    """
    check_used(config)
    stages = read_stages(config)
    config = with_task_head(config, stages)
    hook_names(config)
    tracker_names(config)
    bad_step_rule(config.train)
    check_skip_batches(config.train.skip_batches, config.train.num_steps)
    mixture = None if stages else configured_mixture(config)
    tasks = tasks_of_config(config.eval.tasks, "config.eval.tasks")
    read_stop_rule(config.eval, tasks)
    return Parts(config, stages, mixture, tasks)


def run(config: Config, workdir: Workdir, watch: Watch, program: Program | None = None) -> Outcome:
    """Run everything: workdir, text or examples, training, summary and report.

    The first process writes the shared files; the others wait where they need them.

    Args:
        config: the configuration of the run.
        workdir: the folder of the run.
        watch: detects processes that are lost or hang.
        program: the program of this process, for the record of the start; None: no record.
    """
    processes = watch.processes
    config, stages, mixture, tasks = find_parts(config)
    # Check this before a preparation that may take hours.
    if mixture is None:
        check_stages(config, stages)
        check_start(config, workdir)
    else:
        check_run(config, len(mixture.arms))
    check_agreement(to_dict(config), processes)
    source = find_source(config.init.from_, workdir, processes)
    with ExitStack() as held:
        lease = None
        if processes.first:
            lease = held.enter_context(claimed(workdir, to_dict(config), default_config().to_dict()))
        processes.broadcast_from_first("workdir", lambda: str(workdir))
        check_shared(workdir, processes, 2.0 * config.train.lost_seconds)
        if mixture is None:
            train_model = partial(
                finetune, config, stages, choose=choose_on_devices, flops_of=model_flops_per_token
            )
        else:
            train_model = partial(pretrain, config, mixture)
        trackers = tracker_names(config) if processes.first else []
        on_scalars = held.enter_context(sending(trackers, workdir, to_dict(config)))
        with StartRecorder(workdir, program if processes.first else None, processes.count) as recorder:
            outcome, summary = train_model(
                tasks=tasks,
                source=source,
                workdir=workdir,
                watch=watch,
                lease=lease,
                announce=recorder.announce,
                on_scalars=on_scalars,
            )
            ended = "completed" if outcome.completed else stopped_by(str(outcome.stopped_by))
            recorder.note_outcome(ended, outcome.step)
        if processes.first:
            known = {
                "parameters": outcome.parameters,
                "completed": outcome.completed,
                "num_steps": outcome.num_steps,
            }
            workdir.write(workdir.summary, known | summary)
            write_report(workdir)
    return outcome


def pretrain(
    config: Config,
    mixture: Mixture,
    *,
    tasks: Sequence[NamedTask],
    source: str,
    workdir: Workdir,
    watch: Watch,
    lease: Lease | None,
    announce: Announce,
    on_scalars: OnScalars | None = None,
) -> tuple[Outcome, dict[str, float]]:
    """Prepare the text, train on it, and return the outcome and figures for the summary."""
    if watch.processes.first:
        warn_of_a_cut_warmup(config.optimizer, config.train.num_steps)
    text, tokenizer = prepare_text(config, workdir, watch.processes)
    shares = agree_on_shares(config, mixture, text.train, watch.processes)
    if watch.processes.first:
        if config.data.corpora:
            corpora = describe_corpora(config, mixture, shares, text.train)
            workdir.write(workdir.corpora, corpora)
            print(in_one_line(corpora), flush=True)
        write_arms(workdir, mixture, shares, text.train, tokenizer, settings=row_settings(config))
    resolved = resolve_run(config, text.vocab_size, mixture=mixture)
    (resolved,) = choose_on_devices([resolved], workdir, watch.processes)
    announce(resolved.mesh, resolved.explanation)
    with jax.set_mesh(resolved.mesh):
        batches = MixtureBatches(resolved, shares, text.train)
        parts = HookParts(resolved.config, workdir, resolved.mesh, resolved.model)
        hooks: list[Hook] = [ArmValidation(resolved, text.validation, batches), *configured_hooks(parts)]
        hooks += task_hooks(parts, tasks, tokenizer, watch.processes)
        if config.train.gate_statistics_every_steps:
            hooks.append(LogGateStatistics(resolved, text.validation))
        hooks.append(HeldOutSamples(resolved, workdir, text.validation, tokenizer))
        step = make_language_model_step(resolved, sections_of(hooks))
        branch = None
        if source and config.init.optimizer and not workdir.saved_steps():
            found = find_branch(config, source)
            origin = config_of_source(source)
            skip_batches, earlier = config.train.skip_batches, origin.train.skip_batches
            check_skip_batches(skip_batches, config.train.num_steps, done=found.step, before=earlier)
            branch = with_corpora_of(found, origin, config, tokenizer)
        elif source:
            start_params = read_start(resolved, source, tokenizer, watch.processes, whole=False)
            step = step.starting_from(start_params)
        outcome = train(
            step,
            batches,
            hooks,
            workdir=workdir,
            num_steps=config.train.num_steps,
            log_every_steps=config.train.log_every_steps,
            checkpoint=config.checkpoint,
            watch=watch,
            lease=lease,
            branch=branch,
            flops_per_token=model_flops_per_token(
                resolved.model.config, text.vocab_size, config.batching.length, resolved.max_loss_positions
            ),
            on_scalars=on_scalars,
        )
    entropy = unigram_entropy(text.validation) if watch.processes.first else 0.0
    return outcome, {"vocab_size": text.vocab_size, "unigram_entropy": entropy}


def choose_on_devices(
    runs: Sequence[ResolvedRun], workdir: Workdir, processes: Processes
) -> tuple[ResolvedRun, ...]:
    """Return runs with the device-dependent choices: the scan's implementation and the kept arrays."""
    return keep_remat(keep_scan(runs, workdir, processes), workdir, processes)


def write_report(workdir: Workdir) -> None:
    """Write the report, or end the command with the reason."""
    # The plotting modules are large, and an interrupted run does not need them.
    from birdie_jax import reporting

    try:
        print(f"report: {reporting.write_report(workdir.root)}")
    except RecordError as error:
        message = f"training has ended and is saved; its report cannot be written: {error}"
        refuse("train", error, message)


def main(arguments: list[str]) -> None:
    """Parse flags, train, write the report."""
    logging.set_verbosity(logging.WARNING)
    root = _WORKDIR.value
    check_workdir(root, "--workdir")
    with _CONFIG.value.unlocked():
        _CONFIG.value.imports += tuple(
            name for name in given_imports() if name not in map(name_of, _CONFIG.value.imports)
        )
    parsed = parse_config(_CONFIG.value)
    if _CHECK.value:
        find_parts(parsed)
        return
    cache_compiled_programs()
    workdir = Workdir(root)
    try:
        initialize_processes(
            _COORDINATOR_ADDRESS.value,
            _NUM_PROCESSES.value,
            _PROCESS_ID.value,
            os.environ,
            parsed.train.lost_seconds,
        )
        processes = Processes()
        limits = Limits(parsed.train.lost_seconds, parsed.train.hung_seconds)
        with Watch(processes, limits, workdir, (BirdieError, OSError)) as watch:
            program = None
            if processes.first:
                program = describe_program(sys.orig_argv, os.environ, find_commit())
            outcome = run(parsed, workdir, watch, program)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and is_output_closed():
            raise
        good = workdir.last_good()
        message = f"{error}. Last good checkpoint: {good}; the same command resumes from it"
        refuse("train", error, message)
    if outcome.stopped_by:
        if processes.first:
            print(
                f"stopped by {outcome.stopped_by} at step {outcome.step}, saved; the same command resumes"
            )
        sys.exit(_EXIT_INTERRUPTED[outcome.stopped_by])


if __name__ == "__main__":
    flags.mark_flags_as_required(["config", "workdir"])
    start("train", main)
