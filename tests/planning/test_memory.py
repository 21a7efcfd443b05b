"""Bytes of a train state on a device, and what compilers tell of memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from birdie_jax.engine.state import TrainState
from birdie_jax.planning.memory import OutOfMemory, out_of_memory, state_bytes


def test_state_bytes_are_those_of_a_shard():
    mesh = Mesh(np.array(jax.devices()[:1]), ("fsdp",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("fsdp"))

    def array(shape, dtype):
        return jax.device_put(jnp.zeros(shape, dtype), sharding)

    state = TrainState(
        step=jnp.zeros((), jnp.int32),
        params={"a": array((8, 3), jnp.float32)},
        optimizer=[array((8, 3), jnp.float32), array((4,), jnp.bfloat16)],
        bandit=jax.random.key(0),
    )
    found = state_bytes(state)
    assert (found.parameters, found.optimizer) == (96, 104)
    assert found.rest == 4 + state.bandit.dtype.itemsize


MESSAGES = {
    "Ran out of memory in memory space hbm. Used 24.3G of 15.75G hbm. Exceeded": (24.3, 15.75),
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for "
    "HLO temporaries (384.00G) exceeds available HBM (30.75G). HLO module: jit_step.": (384.0, 30.75),
}


@pytest.mark.parametrize("message", MESSAGES)
def test_what_a_compiler_tells(message):
    needed, available = MESSAGES[message]
    assert out_of_memory(message) == OutOfMemory(needed * 2**30, available * 2**30)


def test_another_error_is_not_taken_for_it():
    assert out_of_memory("INTERNAL: 12.3G of nothing") is None
