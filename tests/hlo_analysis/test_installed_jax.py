"""Costs of programs that the installed JAX compiles."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hlo_analysis import StepCosts, read_step_costs


def compile_and_read(function: Callable[..., Any], *arguments: Any) -> tuple[StepCosts, dict[str, float]]:
    """Return the costs of a function on one device, and XLA's cost analysis."""
    compiled = jax.jit(function).lower(*arguments).compile()
    text, xla = compiled.as_text(), compiled.cost_analysis()
    assert text is not None
    assert xla is not None
    return read_step_costs(text, {"data": 1, "fsdp": 1, "tensor": 1, "sequence": 1}), xla


def test_costs_without_loops_match_xla():
    def layer(x, w, v):
        h = jax.nn.relu(x @ w) / jnp.sqrt(x.shape[-1])
        return jnp.sum((h @ v + x) ** 2)

    x, w = jnp.ones((16, 32)), jnp.ones((32, 64))
    costs, xla = compile_and_read(jax.grad(layer, argnums=(1, 2)), x, w, w.T)
    assert costs.flops.dot == 2 * 16 * 32 * 64 * 5
    assert sum(costs.flops) == pytest.approx(xla["flops"], rel=0.02)
    assert costs.traffic_bytes == pytest.approx(xla["bytes accessed"], rel=0.05)


def test_a_window_counts_as_xla_counts_it():
    def sums(x):
        return jax.lax.reduce_window(x, 0.0, jax.lax.add, (2, 3), (1, 1), "VALID")

    costs, xla = compile_and_read(sums, jnp.ones((4, 32)))
    assert costs.flops == (0, 3 * 30 * 5)
    assert xla["flops"] == 3 * 30 * 5


def test_a_loop_gives_its_flops_and_activations():
    def loss(ws, x):
        return jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, ws)[0].sum()

    x, ws = jnp.ones((32, 64)), jnp.ones((6, 64, 64))
    costs, _ = compile_and_read(jax.grad(loss), ws, x)
    product = 2 * 32 * 64 * 64
    # The first layer's input needs no gradient, so a compiler may remove its product.
    assert 3 * 6 * product - product <= costs.flops.dot <= 3 * 6 * product
    assert costs.activation_bytes == 2 * 6 * 32 * 64 * 4
