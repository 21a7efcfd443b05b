"""Tests programs for CPUs: they trace no kernels for TPUs, and unrolled layers match the loop."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from birdie_jax.batch import Batch
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models import build_model, layer_stacks
from birdie_jax.models.layer_stacks import MAX_UNROLLED_LAYERS, layers_at_a_time
from birdie_jax.models.parameters import one_token_batch
from tests.quick_jit import quick_jit

CONFIG = ModelConfig(
    layers=3, features=8, state=8, mlp_features=8, dtype="float32", remat="none", dropout=0.0
)


def test_a_shallow_model_is_unrolled_only_on_a_cpu(monkeypatch):
    monkeypatch.setattr(layer_stacks, "MAX_UNROLLED_LAYERS", MAX_UNROLLED_LAYERS)
    tpu = AbstractDevice(device_kind="TPU v5p", num_cores=1, platform="tpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("data",), abstract_device=tpu)):
        assert layers_at_a_time(CONFIG) == 1
    # The mesh determines the platform, not this machine.
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    cpu = AbstractDevice(device_kind="cpu", num_cores=None, platform="cpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("data",), abstract_device=cpu)):
        assert layers_at_a_time(CONFIG) == CONFIG.layers
        assert layers_at_a_time(replace(CONFIG, layers=MAX_UNROLLED_LAYERS + 1)) == 1
        assert layers_at_a_time(replace(CONFIG, remat="full")) == 1


@pytest.mark.parametrize("name", ["gated_ssm_plus", "transformer"])
def test_kernels_for_tpus_are_traced_only_where_a_tpu_may_run(name):
    model = build_model(replace(CONFIG, name=name, features=256, state=256), 16)
    batch = one_token_batch()
    batch = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (1, 128)), batch)
    variables = jax.eval_shape(model.init, jax.random.key(0), batch)

    def kernels(platform):
        device = AbstractDevice(device_kind=platform, num_cores=None, platform=platform)
        with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("data",), abstract_device=device)):
            return str(jax.make_jaxpr(model.apply)(variables, batch)).count("pallas_call")

    assert str(jax.make_jaxpr(model.apply)(variables, batch)).count("pallas_call") == kernels("tpu") > 0
    assert kernels("cpu") == kernels("gpu") == 0


@pytest.fixture(scope="module")
def batch():
    random = np.random.default_rng(0)
    tokens = jnp.asarray(random.integers(0, 16, (2, 6)), jnp.int32)
    segments = jnp.asarray([[1, 1, 1, 2, 2, 0], [1] * 6], jnp.int32)
    positions = jnp.asarray([[0, 1, 2, 0, 1, 0], list(range(6))], jnp.int32)
    return Batch(tokens, tokens, segments > 0, segments, positions, positions < 2, segments - 1)


@pytest.mark.slow
def test_values_and_gradients_match_the_loop(batch, monkeypatch):
    def results(max_unrolled):
        monkeypatch.setattr(layer_stacks, "MAX_UNROLLED_LAYERS", max_unrolled)
        model = build_model(CONFIG, 16)
        params = quick_jit(model.init)(jax.random.key(0), batch)["params"]
        weights = jnp.cos(jnp.arange(2.0 * 6 * 16)).reshape(2, 6, 16)

        def total(params):
            logits = model.apply({"params": params}, batch)
            return jnp.sum(weights * logits), logits

        program = quick_jit(jax.value_and_grad(total, has_aux=True)).lower(params)
        (_, logits), gradient = program.compile()(params)
        return program.as_text().count("stablehlo.while"), params, logits, gradient

    loops, *looped = results(0)
    unrolled_loops, *unrolled = results(MAX_UNROLLED_LAYERS)
    assert unrolled_loops != loops, "the two programs must differ"
    assert jax.tree.structure(looped) == jax.tree.structure(unrolled)
    for expected, found in zip(jax.tree.leaves(looped), jax.tree.leaves(unrolled), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
