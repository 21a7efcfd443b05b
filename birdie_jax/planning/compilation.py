"""The run's own train step, compiled for a mesh of devices that need not be there."""

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from birdie_jax.batch import Batch
from birdie_jax.config import Config
from birdie_jax.engine.mesh import batch_sharding, make_mesh
from birdie_jax.engine.state import TrainState
from birdie_jax.planning.memory import OutOfMemory, out_of_memory
from birdie_jax.pretraining.abstract_run import abstract_step


class CompiledStep(NamedTuple):
    """A train step as a compiler made it, or refused to.

    Attributes:
        mesh: of devices.
        state: shapes, types and shardings of the train state.
        batch: likewise of a batch.
        executable: what was compiled; None if it does not fit.
        text: of the compiled program; empty if it does not fit.
        refused: what the compiler said of memory; None if it did not refuse.
        seconds: that lowering and compiling took.
    """

    mesh: Mesh
    state: TrainState
    batch: Batch
    executable: Any
    text: str
    refused: OutOfMemory | None
    seconds: float


def compile_step(config: Config, vocab_size: int, devices: tuple[Any, ...]) -> CompiledStep:
    """Compile the train step of a run of `config` on `devices`.

    Args:
        config: of the run, its mesh and its batch included.
        vocab_size: rows of the embedding table.
        devices: all of which the mesh takes.

    Raises:
        ConfigError: devices, rows or model cannot be divided so.
    """
    mesh = make_mesh(config, vocab_size, devices)
    begin = time.monotonic()
    with jax.set_mesh(mesh):
        step = abstract_step(config, vocab_size, mesh)
        batch = abstract_batch(config, mesh)
        executable, text, refused = None, "", None
        try:
            executable, text = _compiled(step.update.lower(step.abstract_state, batch), devices)
        except jax.errors.JaxRuntimeError as error:
            # A TPU's compiler refuses what does not fit; how much it would need stands in its message.
            refused = out_of_memory(str(error))
            if refused is None:
                raise
    seconds = time.monotonic() - begin
    return CompiledStep(mesh, step.abstract_state, batch, executable, text, refused, seconds)


def _compiled(lowered: Any, devices: tuple[Any, ...]) -> tuple[Any, str]:
    """Return what is compiled, and its text.

    JAX cannot always read back the programs of a TPU's compiler (an instruction that goes on asynchronously
    with several operands is refused), so that compiler itself is asked to write the text.
    """
    if devices[0].platform != "tpu":
        executable = lowered.compile()
        return executable, executable.as_text()
    with tempfile.TemporaryDirectory(prefix="birdie_jax_plan_") as folder:
        options = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
        executable = lowered.compile(compiler_options=options)
        # Beside the step there are small programs that it offloads to other cores.
        written = sorted(Path(folder).glob("*.after_codegen.txt"), key=lambda path: path.stat().st_size)
        if not written:
            return executable, executable.as_text()
        return executable, written[-1].read_text(encoding="utf-8")


def abstract_batch(config: Config, mesh: Mesh) -> Batch:
    """Return shapes, types and shardings of a batch of `config` on `mesh`."""
    shape, sharding = (config.batching.rows, config.batching.length), batch_sharding(mesh)

    def array(dtype: Any) -> jax.ShapeDtypeStruct:
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


def with_rows(config: Config, rows: int) -> Config:
    """Return `config` with another global batch."""
    return dataclasses.replace(config, batching=dataclasses.replace(config.batching, rows=rows))
