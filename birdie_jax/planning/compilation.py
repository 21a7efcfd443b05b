"""The run's own train step, compiled for a mesh of devices that may be absent."""

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from birdie_jax.batch import Batch
from birdie_jax.config import Config
from birdie_jax.engine import ShardedStep, sections_of
from birdie_jax.engine.hook_registry import configured_average
from birdie_jax.engine.mesh import batch_sharding
from birdie_jax.engine.state import TrainState
from birdie_jax.finetuning.staged_step import make_stage_step
from birdie_jax.pretraining.arm_validation import SECTION
from birdie_jax.pretraining.language_model_step import make_language_model_step
from birdie_jax.resolve import ResolvedRun, create_bandit
from hlo_analysis import OutOfMemory, parse_out_of_memory


class CompiledProgram(NamedTuple):
    """A compiled program.

    Attributes:
        executable: the executable of JAX.
        hlo_text: the text of its HLO.
    """

    executable: jax.stages.Compiled
    hlo_text: str


class CompiledStep(NamedTuple):
    """The result of compiling a train step.

    Attributes:
        mesh: the device mesh of the run.
        state: the shapes, types and shardings of the train state.
        outcome: the compiled step, or the memory that the compiler reports if it refuses the step.
        seconds: the time of lowering and compiling.
    """

    mesh: Mesh
    state: TrainState
    outcome: CompiledProgram | OutOfMemory
    seconds: float


def compile_step(run: ResolvedRun) -> CompiledStep:
    """Compile the train step of a run for its devices, which may be absent."""
    mesh, platform = run.mesh, run.mesh.devices.flat[0].platform
    begin = time.monotonic()
    with jax.set_mesh(mesh):
        step = abstract_step(run)
        outcome: CompiledProgram | OutOfMemory
        try:
            batch = abstract_batch(run.config, mesh)
            lowered = step.update.lower(step.abstract_state, batch, *step.frozen)
            outcome = compile_lowered(lowered, platform)
        except jax.errors.JaxRuntimeError as error:
            # The TPU compiler refuses a program that does not fit, and reports the bytes that it needs.
            refusal = parse_out_of_memory(str(error))
            if refusal is None:
                raise
            outcome = refusal
    return CompiledStep(mesh, step.abstract_state, outcome, time.monotonic() - begin)


def abstract_step(run: ResolvedRun) -> ShardedStep:
    """Return the train step of a run or of a stage, with the sections of its state that take memory.

    They are those of the bandit and of the average of the parameters. Hooks of other packages are not
    made, because they may read the workdir.
    """
    sections = sections_of(configured_average(run.config, run.model))
    if run.config.finetune.stages:
        return make_stage_step(run, sections, summarise=lambda _: {})
    bandit = partial(create_bandit, run.config, run.mixture)
    return make_language_model_step(run, {SECTION: bandit, **sections})


def compile_lowered(lowered: jax.stages.Lowered, platform: str) -> CompiledProgram:
    """Compile a program and return it with its HLO text.

    The TPU compiler itself writes the text, because JAX cannot always read its programs back: it refuses an
    asynchronous instruction with several operands.
    """
    if platform != "tpu":
        executable = lowered.compile()
        return CompiledProgram(executable, _as_text(executable))
    with tempfile.TemporaryDirectory(prefix="birdie_jax_plan_") as folder:
        options: dict[str, str | bool] = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
        executable = lowered.compile(compiler_options=options)
        # The folder also contains small programs for other cores.
        written = sorted(Path(folder).glob("*.after_codegen.txt"), key=lambda path: path.stat().st_size)
        if not written:
            return CompiledProgram(executable, _as_text(executable))
        return CompiledProgram(executable, written[-1].read_text(encoding="utf-8"))


class ProgramBytes(NamedTuple):
    """The bytes of memory that a program needs.

    Attributes:
        temporaries: the bytes of arrays that exist only while it runs.
        others: the bytes of its arguments, of results that reuse no argument's memory, and of its code.
    """

    temporaries: int
    others: int


def program_bytes(program: CompiledProgram) -> ProgramBytes:
    """Return the bytes of memory that a program needs, from its compiler."""
    memory = program.executable.memory_analysis()
    if memory is None:
        raise RuntimeError("the compiler does not state the memory of the program that it compiled")
    others = memory.argument_size_in_bytes + memory.output_size_in_bytes
    others += memory.generated_code_size_in_bytes - memory.alias_size_in_bytes
    return ProgramBytes(memory.temp_size_in_bytes, others)


def _as_text(executable: jax.stages.Compiled) -> str:
    text = executable.as_text()
    if text is None:
        raise RuntimeError("the compiler gives no text of the program that it compiled; expected HLO text")
    return text


def abstract_batch(config: Config, mesh: Mesh) -> Batch:
    """Return shapes, types and shardings of a batch of `config` on `mesh`."""
    shape, sharding = (config.batching.rows, config.batching.length), batch_sharding(mesh)

    def array(dtype: DTypeLike) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    number, flag = array(jnp.int32), array(jnp.bool_)
    return Batch(
        tokens=number,
        targets=number,
        loss_mask=flag,
        segment_ids=number,
        positions=number,
        bidirectional=flag,
        arm_ids=number,
    )
