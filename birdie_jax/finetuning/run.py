"""Fine-tuning: the parts, put together and given to the engine."""

from collections.abc import Callable, Sequence

import jax
from jaxtyping import PyTree

from birdie_jax.config import Config
from birdie_jax.engine import Outcome, Workdir, sections_of, train
from birdie_jax.engine.coordination import Processes
from birdie_jax.engine.hook_registry import HookParts, configured_hooks
from birdie_jax.engine.lease import Lease
from birdie_jax.engine.memory_check import check_memory
from birdie_jax.engine.mesh import check_mesh, fill_in_sizes, make_mesh
from birdie_jax.engine.protocols import Hook
from birdie_jax.engine.watch import Watch
from birdie_jax.errors import ConfigError, DataError
from birdie_jax.finetuning.stage_sequence import StageSequence, make_stage_sequence
from birdie_jax.finetuning.staged_step import make_staged_step
from birdie_jax.finetuning.stages import Stage, stage_config, stage_errors
from birdie_jax.finetuning.task_batches import TaskBatches
from birdie_jax.interop.initialization import tokenizer_of_source
from birdie_jax.models.computation import told_differences
from birdie_jax.storage import exists, write_whole
from birdie_jax.text import Tokenizer


def check_stages(config: Config, stages: Sequence[Stage]) -> None:
    """Check that every stage of a run fits the devices and the memory that there are.

    Raises:
        ConfigError: one does not; the message names the field.
    """
    for stage in stages:
        with stage_errors(stage):
            own = stage_config(config, stage)
            check_memory(own, 0, check_mesh(own, 0, jax.devices()))


def check_start(config: Config, workdir: Workdir) -> None:
    """Check that a run that has no checkpoint yet is told what to start from.

    Raises:
        ConfigError: it is not.
    """
    if not config.init.from_ and not workdir.saved_steps():
        raise ConfigError(
            "config.init.from: found ''; allowed: with config.finetune.stages a workdir, a checkpoint or "
            "an exported folder, from whose parameters fine-tuning starts"
        )


def check_same_computation(config: Config, source: Config) -> None:
    """Check that a run computes of its parameters what the run that it starts from has taught them.

    Their names and shapes are compared where they are read.

    Args:
        config: the configuration of the run.
        source: the configuration of the run that it starts from.

    Raises:
        ConfigError: it does not; the message names every field that differs.
    """
    if different := told_differences(source.model, config.model):
        raise ConfigError(
            f"config.init.from: found {config.init.from_}, a model of another architecture: {different}; "
            "allowed: a model of the same config.model"
        )


def keep_tokenizer(config: Config, source: str, workdir: Workdir, processes: Processes) -> Tokenizer:
    """Return the tokenizer of a run, which the first process keeps in the workdir.

    It is the one that is kept there already, or else `data.tokenizer`, or else that of `init.from`.

    Args:
        config: the configuration of the run.
        source: what the run starts from, `init.from`; not read once the workdir has the tokenizer.
        workdir: the folder of the run.
        processes: the processes of the run.

    Raises:
        DataError: there is no tokenizer, or it cannot be read.
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
        raise DataError(f"{workdir.tokenizer}: process {processes.index} reads another file than process 0")
    return tokenizer


def read_examples(
    config: Config, stages: Sequence[Stage], tokenizer: Tokenizer, processes: Processes
) -> StageSequence:
    """Read and pack the examples of all stages, in every process; the first one says what they are.

    Raises:
        ConfigError: a stage does not fit its examples.
        DataError: examples cannot be read, or are not those of the first process.
    """
    sequence = make_stage_sequence(config, stages, tokenizer)
    first = processes.broadcast_from_first("examples", lambda: sequence.identity)
    if first != sequence.identity:
        raise DataError(
            f"config.finetune.stages: process {processes.index} has read other examples than process 0; "
            "allowed: the same files on every host"
        )
    if processes.first:
        print(sequence.describe(), flush=True)
    return sequence


def finetune(
    config: Config,
    workdir: Workdir,
    sequence: StageSequence,
    vocab_size: int,
    watch: Watch,
    *,
    lease: Lease | None = None,
    initial_params: Callable[[PyTree[jax.ShapeDtypeStruct]], Callable[[PyTree], PyTree]],
    more_hooks: Callable[[HookParts], Sequence[Hook]] = configured_hooks,
) -> Outcome:
    """Train through all stages, or until asked to stop; see `birdie_jax.engine.train`.

    Args:
        config: the configuration of the run.
        workdir: the folder of the run.
        sequence: the stages with their rows.
        vocab_size: the number of rows of the embedding table.
        watch: notices processes that are lost or hang.
        lease: held on the workdir in the first process.
        initial_params: shapes and shardings of the parameters -> a function from new parameters to those
            that the run starts with. Not called where a checkpoint is resumed.
        more_hooks: makes the hooks.

    Raises:
        ConfigError: a batch or the model cannot be divided among the devices.
        TrainingDiverged: the loss, or what a hook measures, became NaN or infinite.
        CheckpointError: a checkpoint could not be written or read, or all are damaged.
    """
    first = sequence.stages[0]
    with stage_errors(first):
        sized = fill_in_sizes(stage_config(config, first, sequence.num_steps), vocab_size, jax.devices())
        mesh = make_mesh(sized.config, vocab_size)
    if watch.processes.first and sized.explanation:
        print(sized.explanation, flush=True)
    with jax.set_mesh(mesh):
        batches = TaskBatches(config, sequence, mesh)
        hooks = more_hooks(HookParts(config, workdir, mesh, vocab_size))
        step = make_staged_step(config, vocab_size, sequence, mesh, sections_of(hooks))
        return train(
            step.starting_from(initial_params),
            batches,
            hooks,
            workdir=workdir,
            num_steps=sequence.num_steps,
            log_every_steps=config.train.log_every_steps,
            checkpoint=config.checkpoint,
            watch=watch,
            lease=lease,
        )
