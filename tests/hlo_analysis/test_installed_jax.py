"""Programs compiled by the JAX that is installed: its texts are read as the recorded ones are."""

import jax
import jax.numpy as jnp
import pytest

from hlo_analysis import read_step_costs

ONE_DEVICE = {"data": 1, "fsdp": 1, "tensor": 1, "sequence": 1}


def test_a_layer_without_loops_counts_as_xla_counts():
    def layer(x, w, v):
        h = jax.nn.relu(x @ w) / jnp.sqrt(x.shape[-1])
        return jnp.sum((h @ v + x) ** 2)

    x, w = jnp.ones((16, 32)), jnp.ones((32, 64))
    compiled = jax.jit(jax.grad(layer, argnums=(1, 2))).lower(x, w, w.T).compile()
    found = read_step_costs(compiled.as_text(), ONE_DEVICE).flops
    assert found.dot == 2 * 16 * 32 * 64 * 5
    assert sum(found) == pytest.approx(compiled.cost_analysis()["flops"], rel=0.02)


def test_bytes_without_loops_are_those_that_xla_counts():
    x, w = jnp.ones((256, 128)), jnp.ones((128, 512))
    compiled = jax.jit(lambda x, w: jax.nn.gelu(x @ w) @ w.T + x).lower(x, w).compile()
    moved = read_step_costs(compiled.as_text(), ONE_DEVICE).traffic_bytes
    assert moved == pytest.approx(compiled.cost_analysis()["bytes accessed"], rel=0.05)


def test_loops_and_what_they_keep():
    def loss(ws, x):
        return jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, ws)[0].sum()

    x, ws = jnp.ones((32, 64)), jnp.ones((6, 64, 64))
    costs = read_step_costs(jax.jit(jax.grad(loss)).lower(ws, x).compile().as_text(), ONE_DEVICE)
    product = 2 * 32 * 64 * 64
    # The first layer's input needs no gradient; a compiler may leave out its product.
    assert 3 * 6 * product - product <= costs.flops.dot <= 3 * 6 * product
    assert costs.activation_bytes == 2 * 6 * 32 * 64 * 4
