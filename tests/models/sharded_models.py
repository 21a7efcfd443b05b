"""Run by test_sharding.py: compares losses, gradients and token scores on one device and on eight."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from birdie_jax.config import ModelConfig
from birdie_jax.cpu_threads import start_enough_threads
from birdie_jax.models import build_model
from birdie_jax.models.influence import InfluenceRequest, recurrence_influence
from birdie_jax.models.recurrence_influence import RecurrenceArrays
from birdie_jax.models.selective_influence import SelectiveArrays
from tests.models.conftest import BY_MIXER, LENGTH, SECTIONS, VOCAB, pack
from tests.quick_jit import quick_jit

NAMES = (*BY_MIXER.values(), "bigs", "stack_attention")


def main():
    start_enough_threads()
    devices = jax.devices()
    assert len(devices) == 8
    mesh = Mesh(np.array(devices), ("data",))
    batch = pack([[(5, 3), (2 + row % 3, 4)] for row in range(8)])
    for name in NAMES:
        model = build_model(
            ModelConfig(
                name=name,
                layers=2 if name == "griffin" else 1,
                features=16,
                state=16,
                mlp_features=16,
                sections=SECTIONS,
                dtype="float32",
                remat="none",
            ),
            VOCAB,
        )
        params = quick_jit(model.init)(jax.random.key(0), batch)["params"]

        def loss(params, batch, model=model):
            return jnp.mean(jnp.square(model.apply({"params": params}, batch)))

        step = jax.value_and_grad(loss)
        expected = quick_jit(step)(params, batch)
        with jax.set_mesh(mesh):
            spread = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
            copied = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
            program = quick_jit(step).lower(copied, spread).compile()
            result = program(copied, spread)
        # Each device has its own rows, so devices may exchange only the sum of the gradients.
        text = program.as_text()
        assert "all-gather" not in text and "all-to-all" not in text, name
        assert "all-reduce" in text, name
        assert len(spread.tokens.sharding.device_set) == 8
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), result, expected)
        print("same", name)
    check_scores(mesh)
    print("same scores")


def check_scores(mesh):
    random = np.random.default_rng(0)
    sequences = [jnp.asarray(random.uniform(low, 1, (8, LENGTH, 16)), jnp.float32) for low in (0.2, -1, -1)]
    of_states = [jnp.asarray(random.normal(size=(8, LENGTH, 4)), jnp.float32) for _ in range(2)]
    rates = jnp.asarray(random.uniform(-1, 0, (16, 4)), jnp.float32)
    check_scores_of(mesh, RecurrenceArrays(*sequences, readout=jnp.tanh), batched=lambda path: True)
    check_scores_of(
        mesh, SelectiveArrays(*sequences[:2], rates, *of_states), batched=lambda path: path[-1].name != "A"
    )


def check_scores_of(mesh, arrays, batched):
    last = jnp.arange(LENGTH)[None].repeat(8, axis=0) == LENGTH - 1
    nowhere = jnp.zeros_like(last)
    score = quick_jit(
        lambda arrays, last, reset: recurrence_influence(InfluenceRequest(last), arrays, (reset,))
    )
    expected = score(arrays, last, nowhere)
    assert np.min(expected[:, -1]) > 0
    with jax.set_mesh(mesh):
        rows, whole = (NamedSharding(mesh, spec) for spec in (PartitionSpec("data"), PartitionSpec()))
        of_arrays = jax.tree.map_with_path(lambda path, _: rows if batched(path) else whole, arrays)
        spread = jax.device_put((arrays, last, nowhere), (of_arrays, rows, rows))
        found = score(*spread)
    assert len(found.sharding.device_set) == 8
    np.testing.assert_allclose(found, expected, rtol=1e-5)


if __name__ == "__main__":
    main()
