"""Which rows of a batch this process makes, and how they come onto its devices."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from birdie_jax.batch import Batch
from birdie_jax.batching.pipeline import StreamStates
from birdie_jax.config import Config, ConfigError
from birdie_jax.training.sharding import of_batch, replicated


class RowsHere:
    """The rows of the global batch that lie, whole or in part, on devices of this process.

    Each process makes its own and no others; a row that lies on devices of several processes, in parts or
    in copies, is made by each of them, and comes out the same.

    Attributes:
        numbers: of the rows, in order.
    """

    def __init__(self, config: Config, mesh: Mesh):
        """Find the rows of `config.batching` that `mesh` gives this process.

        Raises:
            ConfigError: they cannot be divided among the workers that make them.
        """
        shape = (config.batching.rows, config.batching.length)
        self._whole_rows = shape[0]
        self._sharding = of_batch(mesh)
        self._by_row = NamedSharding(mesh, PartitionSpec(self._sharding.spec[0]))
        self._gather = jax.jit(lambda array: array, out_shardings=replicated(mesh))
        indices = self._sharding.addressable_devices_indices_map(shape).values()
        self.numbers = sorted({row for rows, *_ in indices for row in range(*rows.indices(shape[0]))})
        workers = config.batching.workers
        if workers and len(self.numbers) % workers:
            raise ConfigError(
                f"config.batching.workers: found {workers}; allowed: 0 or a divisor of "
                f"{len(self.numbers)}, the rows that a process makes"
            )

    def put(self, batch: Batch) -> Batch:
        """Return the global batch, on the devices, of this process's rows on the host."""
        return Batch(*(self._put(field, self._sharding) for field in batch))

    def put_whole(self, batch: Batch) -> Batch:
        """Return a batch on the devices that every process has all of on the host."""

        def put(field: np.ndarray) -> jax.Array:
            return jax.make_array_from_callback(field.shape, self._sharding, lambda index: field[index])

        return Batch(*(put(field) for field in batch))

    def gather(self, positions: StreamStates) -> StreamStates:
        """Return the positions of all rows, from those that each process has of its own.

        All processes have to call this at the same place.
        """
        # Two halves: the device has no 64-bit integers.
        halves = np.ascontiguousarray(positions).view(np.uint32)
        everywhere = self._gather(self._put(halves, self._by_row))
        return np.asarray(everywhere).view(np.int64)

    def own(self, positions: StreamStates) -> StreamStates:
        """Return this process's part of the positions of all rows."""
        return positions[self.numbers]

    def _put(self, own: np.ndarray, sharding: NamedSharding) -> jax.Array:
        def block(index: tuple[slice, ...]) -> np.ndarray:
            begin, end, _ = index[0].indices(self._whole_rows)
            first = self.numbers.index(begin)
            return own[(slice(first, first + end - begin), *index[1:])]

        return jax.make_array_from_callback((self._whole_rows, *own.shape[1:]), sharding, block)
