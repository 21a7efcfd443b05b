"""The simplest `Batches`: a function of the step number."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import PyTree

from birdie_jax.engine.mesh import batch_sharding
from birdie_jax.engine.state import TrainState
from birdie_jax.errors import ConfigError


class FunctionBatches:
    """`Batches` (see `protocols.py`) whose batch for step s is `make(s)` in every process.

    Draw random numbers from `np.random.default_rng((seed, step))`, so a resumed run gets the same batches.
    """

    def __init__(
        self,
        make: Callable[[int], PyTree[np.ndarray]],
        mesh: Mesh,
        sharding: NamedSharding | None = None,
    ):
        """Make batches for `mesh`.

        Args:
            make: 0-based number of a train step -> the global batch, a tree of NumPy arrays. The first axis
                of each array is divided over the devices.
            mesh: the device mesh of the run.
            sharding: the sharding of each array; None: rows are divided over `data` and `fsdp`.
        """
        self._make = make
        self._sharding = sharding or batch_sharding(mesh)
        self._step = 0

    def first_position(self) -> PyTree[np.ndarray]:
        """Return the number of the first step."""
        return {"step": np.zeros((), np.int64)}

    def restore(self, position: PyTree[np.ndarray], state: TrainState) -> None:
        """Continue with the batch of the step in `position`."""
        del state
        self._step = int(position["step"])

    def __next__(self) -> tuple[PyTree[jax.Array], int]:
        """Return the next batch and the number of the step after it.

        Raises:
            ConfigError: the rows of an array cannot be divided over the devices.
        """
        batch = jax.tree_util.tree_map_with_path(self._put, self._make(self._step))
        self._step += 1
        return batch, self._step

    def gather(self, position: int) -> PyTree[np.ndarray]:
        """Return the position to save in a checkpoint."""
        return {"step": np.asarray(position, np.int64)}

    def close(self) -> None:
        """Do nothing: no batches are prefetched."""

    def _put(self, path: tuple[Any, ...], array: np.ndarray) -> jax.Array:
        array = np.asarray(array)
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "the batch"
        where = f"make({self._step}): found {array.dtype}{list(array.shape)} for {name}"
        try:
            self._sharding.shard_shape(array.shape)
        except ValueError as error:
            sizes = ", ".join(f"{axis}={size}" for axis, size in self._sharding.mesh.shape.items())
            raise ConfigError(
                f"{where}; allowed: a shape that {self._sharding.spec} divides evenly over the mesh {sizes}"
            ) from error
        return jax.make_array_from_callback(array.shape, self._sharding, lambda index: array[index])
