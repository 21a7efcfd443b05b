"""Which rows of a global batch this process makes, and how they come onto its devices."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int64, PyTree

from birdie_jax.engine.mesh import batch_sharding, replicated


class LocalRows:
    """The rows of the global batch of which devices of this process hold a part.

    Each process makes its own rows and no others; a row of which devices of several processes hold parts or
    copies is made by each of them, and comes out the same.

    Attributes:
        numbers: the numbers of the rows within the global batch, in order.
    """

    def __init__(self, rows: int, length: int, mesh: Mesh):
        """Find the rows of a global batch of [rows, length] that `mesh` gives this process."""
        shape = (rows, length)
        self._global_rows = rows
        self._sharding = batch_sharding(mesh)
        self._by_row = NamedSharding(mesh, PartitionSpec(self._sharding.spec[0]))
        self._gather = jax.jit(lambda array: array, out_shardings=replicated(mesh))
        indices = filter(None, self._sharding.addressable_devices_indices_map(shape).values())
        self.numbers = sorted({row for held, *_ in indices for row in range(*held.indices(rows))})

    def put(self, batch: PyTree[np.ndarray]) -> PyTree[jax.Array]:
        """Return the global batch, on the devices, of this process's rows on the host."""
        return jax.tree.map(lambda field: self._put(field, self._sharding), batch)

    def put_replicated(self, batch: PyTree[np.ndarray]) -> PyTree[jax.Array]:
        """Return a batch on the devices that every process has all of on the host."""

        def put(field: np.ndarray) -> jax.Array:
            return jax.make_array_from_callback(field.shape, self._sharding, lambda index: field[index])

        return jax.tree.map(put, batch)

    def gather(self, states: Int64[np.ndarray, "local_rows size"]) -> Int64[np.ndarray, "rows size"]:
        """Return some integers of every row, from those of this process's rows in each process.

        All processes have to call this at the same place.
        """
        # Two halves: the device has no 64-bit integers.
        halves = np.ascontiguousarray(states).view(np.uint32)
        everywhere = self._gather(self._put(halves, self._by_row))
        return np.asarray(everywhere).view(np.int64)

    def select(self, states: Int64[np.ndarray, "rows size"]) -> Int64[np.ndarray, "local_rows size"]:
        """Return this process's part of some integers of every row."""
        return states[self.numbers]

    def _put(self, own: np.ndarray, sharding: NamedSharding) -> jax.Array:
        def block(index: Any) -> np.ndarray:
            begin, end, _ = index[0].indices(self._global_rows)
            first = self.numbers.index(begin)
            return own[(slice(first, first + end - begin), *index[1:])]

        return jax.make_array_from_callback((self._global_rows, *own.shape[1:]), sharding, block)
