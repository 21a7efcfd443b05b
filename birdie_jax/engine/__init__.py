"""The engine of a run: the train loop, its state, checkpoints and monitoring.

The engine depends on three protocols (`protocols.py`), and on no objective. `Batches` returns batches and
their position. `Step` turns (state, batch) into (state, metrics). A `Hook` runs every few steps, and may
keep arrays in the train state. docs/library.md shows how to train your own model with the engine.
"""

from birdie_jax.engine.bad_steps import BadStepRule
from birdie_jax.engine.checkpoint import Checkpoints
from birdie_jax.engine.function_batches import FunctionBatches
from birdie_jax.engine.loop import Outcome, train
from birdie_jax.engine.mesh import mesh_of
from birdie_jax.engine.protocols import Batches, Hook, HookCall, HookResult, IdentifiedBatches, Step
from birdie_jax.engine.sharded_step import LossFunction, ShardedStep, make_step, sections_of
from birdie_jax.engine.state import StepMetrics, StepTotals, TrainState
from birdie_jax.storage.workdir import Workdir

__all__ = [
    "BadStepRule",
    "Batches",
    "Checkpoints",
    "FunctionBatches",
    "Hook",
    "HookCall",
    "HookResult",
    "IdentifiedBatches",
    "LossFunction",
    "Outcome",
    "ShardedStep",
    "Step",
    "StepMetrics",
    "StepTotals",
    "TrainState",
    "Workdir",
    "make_step",
    "mesh_of",
    "sections_of",
    "train",
]
