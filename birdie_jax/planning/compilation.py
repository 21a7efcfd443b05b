"""The run's own train step, compiled for a mesh of devices that need not be there."""

import dataclasses
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from birdie_jax.batch import Batch
from birdie_jax.config import Config
from birdie_jax.engine.mesh import batch_sharding, make_mesh
from birdie_jax.engine.state import TrainState
from birdie_jax.finetuning.abstract_run import abstract_stage_step
from birdie_jax.planning.topology import Device
from birdie_jax.pretraining.abstract_run import abstract_step
from hlo_analysis import OutOfMemory, parse_out_of_memory


class CompiledProgram(NamedTuple):
    """A program that was compiled.

    Attributes:
        executable: the executable of JAX.
        hlo_text: the text of its HLO.
    """

    executable: jax.stages.Compiled
    hlo_text: str


class CompiledStep(NamedTuple):
    """A train step that a compiler was given.

    Attributes:
        mesh: the device mesh of the run.
        state: the shapes, types and shardings of the train state.
        outcome: the compiled step, or what the compiler says of memory where it refuses the step.
        seconds: the seconds that lowering and compiling took.
    """

    mesh: Mesh
    state: TrainState
    outcome: CompiledProgram | OutOfMemory
    seconds: float


def compile_step(config: Config, vocab_size: int, devices: Sequence[Device]) -> CompiledStep:
    """Compile the train step of a run of `config` on `devices`.

    Args:
        config: the configuration of the run, its mesh and its batch included.
        vocab_size: the number of rows of the embedding table.
        devices: the devices, all of which the mesh takes.

    Raises:
        ConfigError: devices, rows or model cannot be divided as the mesh asks.
    """
    mesh = make_mesh(config, vocab_size, devices)
    begin = time.monotonic()
    with jax.set_mesh(mesh):
        make = abstract_stage_step if config.finetune.stages else abstract_step
        step = make(config, vocab_size, mesh)
        outcome: CompiledProgram | OutOfMemory
        try:
            lowered = step.update.lower(step.abstract_state, abstract_batch(config, mesh))
            outcome = compile_lowered(lowered, devices[0].platform)
        except jax.errors.JaxRuntimeError as error:
            # The TPU compiler refuses what does not fit; the bytes that it needs are in the message.
            refusal = parse_out_of_memory(str(error))
            if refusal is None:
                raise
            outcome = refusal
    return CompiledStep(mesh, step.abstract_state, outcome, time.monotonic() - begin)


def compile_lowered(lowered: jax.stages.Lowered, platform: str) -> CompiledProgram:
    """Compile a program, and get the text of its HLO.

    JAX cannot always read back the programs of the TPU compiler (it refuses an instruction that runs
    asynchronously with several operands), so that compiler itself writes the text.
    """
    if platform != "tpu":
        executable = lowered.compile()
        return CompiledProgram(executable, _as_text(executable))
    with tempfile.TemporaryDirectory(prefix="birdie_jax_plan_") as folder:
        options: dict[str, str | bool] = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
        executable = lowered.compile(compiler_options=options)
        # Beside the program there are small ones that it runs on other cores.
        written = sorted(Path(folder).glob("*.after_codegen.txt"), key=lambda path: path.stat().st_size)
        if not written:
            return CompiledProgram(executable, _as_text(executable))
        return CompiledProgram(executable, written[-1].read_text(encoding="utf-8"))


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


def replace_rows(config: Config, rows: int) -> Config:
    """Return `config` with another number of rows of the global batch."""
    return dataclasses.replace(config, batching=dataclasses.replace(config.batching, rows=rows))
