"""Bytes of a train state on a device."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from birdie_jax.engine.state import TrainState
from birdie_jax.planning.model_flops import state_bytes


def test_state_bytes_are_those_of_a_shard():
    mesh = Mesh(np.array(jax.devices()[:1]), ("fsdp",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("fsdp"))

    def array(shape, dtype):
        return jax.device_put(jnp.zeros(shape, dtype), sharding)

    state = TrainState(
        step=jnp.zeros((), jnp.int32),
        params={"a": array((8, 3), jnp.float32)},
        optimizer=[array((8, 3), jnp.float32), array((4,), jnp.bfloat16)],
        sections={"bandit": jax.random.key(0)},
    )
    found = state_bytes(state)
    assert (found.parameters, found.optimizer) == (96, 104)
    assert found.other == 4 + state.sections["bandit"].dtype.itemsize
