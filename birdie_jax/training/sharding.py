"""The device mesh, and how batches and state lie on it."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from birdie_jax.config import ConfigError, MeshConfig


def make_mesh(config: MeshConfig, rows: int, accumulation_steps: int) -> Mesh:
    """Return a mesh of all devices along `data`.

    Raises:
        ConfigError: the devices, or the rows of a batch, cannot be divided so.
    """
    devices = jax.devices()
    if config.data not in (-1, len(devices)):
        raise ConfigError(
            f"config.mesh.data: found {config.data}; allowed: -1 or {len(devices)}, the devices there are"
        )
    if rows % (len(devices) * accumulation_steps):
        raise ConfigError(
            f"config.batching.rows: found {rows}; allowed: a multiple of devices * train.accumulation_steps"
            f" = {len(devices) * accumulation_steps}"
        )
    return Mesh(np.array(devices), ("data",))


def by_rows(mesh: Mesh) -> NamedSharding:
    """Return the sharding of a batch: each device has rows of its own."""
    return NamedSharding(mesh, PartitionSpec("data"))


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding of the train state: each device has all of it."""
    return NamedSharding(mesh, PartitionSpec())
