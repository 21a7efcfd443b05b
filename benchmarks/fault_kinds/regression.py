"""A linear regression with the library's engine: a run that starts in a second."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from birdie_jax.command_line import refuse
from birdie_jax.config_sections import CheckpointConfig
from birdie_jax.engine import FunctionBatches, LossFunction, Workdir, make_step, mesh_of, train
from birdie_jax.errors import BirdieError

_WEIGHTS = np.linspace(-1, 1, 48, dtype=np.float32)


def _make_batch(step: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng((0, step)).normal(size=(8, 48)).astype(np.float32)
    return {"x": x, "y": x @ _WEIGHTS}


def _squared_error(params, batch, keys=None):
    noise = jax.vmap(lambda key: jax.random.normal(key, (48,)))(keys)
    predicted = (batch["x"] + 0.1 * noise) @ params["w"] + params["b"]
    error = jnp.sum(jnp.square(predicted - batch["y"]))
    return error, {"squared_error": error}


def _count(batch):
    return jnp.float32(batch["x"].shape[0])


def main(folder: Path | str, steps: int, every_steps: int, keep: int) -> int:
    """Train in a folder, print errors as the verb does, and return the exit status."""
    try:
        mesh = mesh_of()
        step = make_step(
            init_params=lambda key: {"w": jax.random.normal(key, (48,)), "b": jnp.zeros(())},
            loss=LossFunction(_squared_error, weight=_count, tokens=_count, takes_row_keys=True),
            optimizer=optax.adam(0.05),
            mesh=mesh,
        )
        outcome = train(
            step,
            FunctionBatches(_make_batch, mesh),
            workdir=Workdir(folder),
            num_steps=steps,
            log_every_steps=1,
            checkpoint=CheckpointConfig(every_steps=every_steps, keep=keep),
        )
    except (BirdieError, OSError) as error:
        try:
            refuse("train", error)
        except SystemExit as end:
            return int(end.code or 0)
    print(f"ended at step {outcome.step}, {outcome.stopped_by or 'completed'}")
    sys.stdout.flush()
    return 143 if outcome.stopped_by else 0
