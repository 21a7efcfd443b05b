"""Pre-train a language model: `python -m birdie_jax.train --config=configs/tiny.py --workdir=runs/tiny`.

A configuration with `config.finetune.stages` fine-tunes the model of `config.init.from` instead.
Started again with the same workdir, a run goes on from its newest checkpoint. On several hosts, every
process is started with the same command; birdie_jax/engine/processes.py tells how they find each other.
"""

from birdie_jax.host_memory import keep_freed_memory

if __name__ == "__main__":
    # Before what is imported below starts threads.
    keep_freed_memory()

# isort: split
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import jax
from absl import flags, logging
from jaxtyping import PyTree

from birdie_jax.command_line import define_path, is_output_closed, refuse, start
from birdie_jax.compiled_programs import cache_compiled_programs
from birdie_jax.config import Config, ModelConfig, default_config, parse_config, to_dict
from birdie_jax.config_flag import define_config
from birdie_jax.engine import Outcome, Workdir
from birdie_jax.engine.coordination import Processes, check_agreement, check_shared
from birdie_jax.engine.hook_registry import HookParts, configured_hooks
from birdie_jax.engine.lease import Lease
from birdie_jax.engine.memory_check import check_memory
from birdie_jax.engine.mesh import check_mesh, fill_in_sizes
from birdie_jax.engine.processes import initialize_processes
from birdie_jax.engine.protocols import Hook
from birdie_jax.engine.watch import Limits, Watch
from birdie_jax.errors import BirdieError, ConfigError, RecordError
from birdie_jax.finetuning.run import (
    check_same_computation,
    check_stages,
    check_start,
    finetune,
    keep_tokenizer,
    read_examples,
)
from birdie_jax.finetuning.stages import Stage, read_stages
from birdie_jax.finetuning.task_heads import maps_of_other_classes, with_task_head
from birdie_jax.interop.initialization import check_source, config_of_source, read_initial_parameters
from birdie_jax.models import build_model
from birdie_jax.models.computation import told_differences
from birdie_jax.models.parameters import parameter_policies
from birdie_jax.models.task_head import TASK_HEAD
from birdie_jax.objectives import Mixture
from birdie_jax.pretraining.arm_samples import describe_arms
from birdie_jax.pretraining.masked_samples import MaskedSamples
from birdie_jax.pretraining.mixture import configured_mixture
from birdie_jax.pretraining.mixture_shares import MixtureShares, measure_shares, small_loss_shares
from birdie_jax.pretraining.rows import row_settings
from birdie_jax.pretraining.run import pretrain
from birdie_jax.pretraining.training_text import TrainingText, check_same_text
from birdie_jax.storage import absolute, exists, make_path, write_whole
from birdie_jax.storage.cache_folder import cache_folder
from birdie_jax.storage.metric_lines import has_begun
from birdie_jax.tasks.evaluation import tasks_of_config
from birdie_jax.tasks.task_hook import TaskEvaluation
from birdie_jax.text import Tokenizer, TokenShards, load_tokenizer
from birdie_jax.text.cache import cached_folder
from birdie_jax.text.locations import Location, locate
from birdie_jax.text.preparation import prepare
from birdie_jax.text.statistics import unigram_entropy
from birdie_jax.trained_model import taught_arms

_CONFIG = define_config("What to train: a preset or a Python file, with :variant if it has any.")
_WORKDIR = define_path("workdir", "Folder of the run: checkpoints, metrics, report.")
_COORDINATOR_ADDRESS = flags.DEFINE_string(
    "coordinator_address", None, "Where the processes of this run meet: host:port, on process 0's host."
)
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "How many processes this run has.")
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "Which of them this is: 0 to num_processes - 1.")

_EXIT_INTERRUPTED = {"SIGTERM": 143, "SIGINT": 130}


def run(config: Config, workdir: Workdir, watch: Watch) -> Outcome:
    """Do all of a run: workdir, text, training, summary, report.

    What is to be there once is written by the first process; the others wait for it where they need it.
    """
    processes = watch.processes
    stages = read_stages(config)
    config = with_task_head(config, stages)
    _check_formats(config)
    # What is wrong with the tasks is told now, and not when they are measured.
    tasks_of_config(config.eval.tasks, "config.eval.tasks")
    # Before a preparation that may take hours.
    if stages:
        check_stages(config, stages)
        check_start(config, workdir)
    else:
        num_arms = len(configured_mixture(config).arms)
        check_memory(config, num_arms, check_mesh(config, 0, jax.devices()))
    check_agreement(to_dict(config), processes)
    source = config.init.from_
    if source and not workdir.saved_steps():
        several = processes.count > 1
        source = processes.broadcast_from_first(
            "init.from", lambda: check_source(source, name_checkpoint=several)
        )
    with ExitStack() as held:
        lease = None
        if processes.first:
            workdir.make()
            lease = held.enter_context(Lease(workdir))
            workdir.claim(to_dict(config), default_config().to_dict(), begun=has_begun(workdir))
        processes.broadcast_from_first("workdir", lambda: str(workdir))
        check_shared(workdir, processes, 2 * config.train.lost_seconds)
        if stages:
            outcome, summary = _finetune(config, stages, source, workdir, watch=watch, lease=lease)
        else:
            outcome, summary = _pretrain(config, source, workdir, watch, lease)
        if processes.first:
            known = {"parameters": outcome.parameters, "completed": outcome.completed}
            workdir.write(workdir.summary, known | summary)
            _write_report(workdir)
    return outcome


def _check_formats(config: Config) -> None:
    """Check that the model may learn the formats of this program.

    Raises:
        ConfigError: it is told to leave out tokens that training reads and predicts.
    """
    default, model = ModelConfig(), config.model
    for name in ("start_token", "min_predicted_id", "max_predicted_id"):
        if getattr(model, name) != getattr(default, name):
            raise ConfigError(
                f"config.model.{name}: found {getattr(model, name)}; allowed: {getattr(default, name)} in "
                "training, which teaches a model of another program the special tokens of this one"
            )


def _pretrain(
    config: Config, source: str, workdir: Workdir, watch: Watch, lease: Lease | None
) -> tuple[Outcome, dict[str, float]]:
    """Prepare the text and train on it; return how it ended, and what the summary says besides."""
    processes, mixture = watch.processes, configured_mixture(config)
    text, tokenizer = _prepare_text(config, workdir, processes)
    shares = MixtureShares.from_json(
        processes.broadcast_from_first(
            "shares of arms", lambda: measure_shares(config, mixture, text.train).to_json()
        )
    )
    if processes.first:
        arms = describe_arms(mixture, shares, text.train, tokenizer, row_settings(config))
        workdir.write(workdir.arms, arms)
        small = small_loss_shares(mixture, shares)
        if small and not workdir.saved_steps():
            print(small, flush=True)
    sized = fill_in_sizes(config, text.vocab_size, jax.devices())
    if processes.first and sized.explanation:
        print(sized.explanation, flush=True)
    outcome = pretrain(
        sized.config,
        workdir,
        text,
        mixture,
        watch,
        shares=shares,
        lease=lease,
        initial_params=_initial_params(config, source, tokenizer, processes) if source else None,
        more_hooks=_pretraining_hooks(mixture, text.validation, tokenizer, processes),
    )
    entropy = unigram_entropy(text.validation) if processes.first else 0.0
    return outcome, {"vocab_size": text.vocab_size, "unigram_entropy": entropy}


def _finetune(
    config: Config,
    stages: tuple[Stage, ...],
    source: str,
    workdir: Workdir,
    *,
    watch: Watch,
    lease: Lease | None,
) -> tuple[Outcome, dict[str, float]]:
    """Read the examples of the stages and train on them; return as `_pretrain`."""
    tokenizer = keep_tokenizer(config, source, workdir, watch.processes)
    sequence = read_examples(config, stages, tokenizer, watch.processes)
    start_params = _initial_params(config, source, tokenizer, watch.processes, whole=True)
    outcome = finetune(
        config,
        workdir,
        sequence,
        tokenizer.vocab_size,
        watch,
        lease=lease,
        initial_params=start_params,
        more_hooks=_more_hooks(tokenizer, watch.processes),
    )
    return outcome, {"vocab_size": tokenizer.vocab_size, "num_steps": sequence.num_steps}


def _pretraining_hooks(
    mixture: Mixture, text: TokenShards, tokenizer: Tokenizer, processes: Processes
) -> Callable[[HookParts], Sequence[Hook]]:
    """Return what makes the hooks of `_more_hooks`, and the one that shows what masked LM has learned."""
    others = _more_hooks(tokenizer, processes)
    if not any(arm.objective.in_place for arm in mixture.arms):
        return others
    return lambda parts: [*others(parts), MaskedSamples(parts, mixture, text, tokenizer)]


def _more_hooks(tokenizer: Tokenizer, processes: Processes) -> Callable[[HookParts], Sequence[Hook]]:
    """Return what makes the hooks of `train.hooks`, and the one that measures `eval.tasks`, if any."""

    def make(parts: HookParts) -> Sequence[Hook]:
        hooks = configured_hooks(parts)
        tasks = tasks_of_config(parts.config.eval.tasks, "config.eval.tasks")
        if not tasks:
            return hooks
        return [*hooks, TaskEvaluation(parts, tasks, tokenizer, taught_arms(parts.config), processes)]

    return make


def _initial_params(
    config: Config, source: str, tokenizer: Tokenizer, processes: Processes, *, whole: bool = False
) -> Callable[[PyTree[jax.ShapeDtypeStruct]], Callable[[PyTree], PyTree]]:
    """Return what reads `init.from`: as a `whole` it has to give every parameter but those of a head."""

    def read(abstract_params: PyTree[jax.ShapeDtypeStruct]) -> Callable[[PyTree], PyTree]:
        policies = parameter_policies(build_model(config.model, tokenizer.vocab_size))
        not_taken: dict[str, str] = {}
        before = config_of_source(source)
        if not whole and processes.first and (different := told_differences(before.model, config.model)):
            print(f"init.from: {source} computes otherwise: {different}", flush=True)
        if whole:
            check_same_computation(config, before)
            not_taken = maps_of_other_classes(config, before)
        initial = read_initial_parameters(source, abstract_params, tokenizer.sha256, policies, not_taken)
        lacked = [name for name in initial.new if not name.startswith(f"{TASK_HEAD}/")]
        if whole and lacked:
            named = [f"{name} {initial.new[name]}" for name in lacked]
            lacking = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
            raise ConfigError(
                f"config.init.from: found {source}, which lacks {lacking}; allowed: a model of the same "
                "config.model, every parameter of which is fine-tuned"
            )
        if processes.first:
            print(initial.table(), flush=True)
        return initial.put_into

    return read


def _write_report(workdir: Workdir) -> None:
    """Write the report, or end the command with the reason why it cannot be written."""
    # What draws is large, and a run that is cut short never needs it.
    from birdie_jax.reporting import write_report

    try:
        print(f"report: {write_report(workdir.root)}")
    except RecordError as error:
        refuse("train", f"training has ended and is saved; its report cannot be written: {error}")


def _prepare_text(config: Config, workdir: Workdir, processes: Processes) -> tuple[TrainingText, Tokenizer]:
    """Return the text of the run, prepared if need be, and the tokenizer that it is made with."""
    folder = processes.broadcast_from_first("text", lambda: str(_text_folder(config)))
    if not processes.first:
        # Processes of a host that shares no folder with the first one's prepare it one after another.
        folder = _text_folder(config, wait=True)
    tokenizer = load_tokenizer(folder)
    sha256 = processes.broadcast_from_first("tokenizer", lambda: _keep_tokenizer(workdir, tokenizer))
    text = TrainingText(
        train=TokenShards(folder, "train", tokenizer_sha256=sha256, mirror_gib=config.data.mirror_gib),
        validation=TokenShards(
            folder, "validation", tokenizer_sha256=tokenizer.sha256, mirror_gib=config.data.mirror_gib
        ),
        vocab_size=tokenizer.vocab_size,
    )
    check_same_text(text.train, text.validation, processes)
    if text.train.not_mirrored:
        logging.warning("%s is read record by record: %s", folder, text.train.not_mirrored)
    if processes.first:
        workdir.keep_text(text.train.manifest.sha256, str(absolute(make_path(folder))))
    return text, tokenizer


def _text_folder(config: Config, wait: bool = False) -> str | Location:
    """Return the folder with the prepared text, after preparing it if it is not there."""
    data = config.data
    if data.prepared:
        return data.prepared
    settings = {
        "tokenizer_model": data.tokenizer,
        "vocab_size": data.vocab_size,
        "text_field": data.text_field,
        "record_tokens": data.record_tokens,
        "validation_fraction": data.validation_fraction,
    }
    root = locate(data.cache_dir) if data.cache_dir else cache_folder() / "data"
    folder = cached_folder(root, data.source, **settings)
    return prepare(data.source, folder, wait=wait, **settings)


def _keep_tokenizer(workdir: Workdir, tokenizer: Tokenizer) -> str:
    """Keep the run's tokenizer in the workdir; return the hash that its text must be made with."""
    if not exists(workdir.tokenizer):
        write_whole(workdir.tokenizer, tokenizer.model_bytes)
    return Tokenizer(str(workdir.tokenizer)).sha256


def main(arguments: list[str]) -> None:
    """Parse flags, train, write the report."""
    logging.set_verbosity(logging.WARNING)
    root = _WORKDIR.value
    cache_compiled_programs()
    if root.startswith("s3://"):
        raise ConfigError(
            f"--workdir: found {root}; allowed: a folder or gs://BUCKET/...: orbax, which writes "
            "checkpoints, does not write s3://; use a file system that the hosts share, and s3:// for "
            "text and exports"
        )
    workdir = Workdir(root)
    try:
        parsed = parse_config(_CONFIG.value)
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
            outcome = run(parsed, workdir, watch)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and is_output_closed():
            raise
        good = workdir.last_good()
        refuse("train", f"{error}. Last good checkpoint: {good}; the same command goes on from it")
    if outcome.stopped_by:
        if processes.first:
            print(
                f"stopped by {outcome.stopped_by} at step {outcome.step}, saved; the same command goes on"
            )
        sys.exit(_EXIT_INTERRUPTED[outcome.stopped_by])


if __name__ == "__main__":
    flags.mark_flags_as_required(["config", "workdir"])
    start("train", main)
