"""Muon against its equations in float64, with stacked layers, and on several devices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from birdie_jax.config import MeshConfig, ModelConfig, OptimizerConfig
from birdie_jax.engine.mesh import mesh_of, state_sharding
from birdie_jax.engine.state import TrainState
from birdie_jax.models import build_model
from birdie_jax.models.parameters import ParameterPolicy, parameter_policies
from birdie_jax.optimizers import make_optimizer
from hlo_analysis.module import COLLECTIVE_OPCODES
from hlo_analysis.parser import parse_hlo
from tests.quick_jit import quick_jit

SETTINGS = OptimizerConfig(
    name="muon", learning_rate=0.1, final_learning_rate=0.1, warmup_steps=0, weight_decay=0.0, clip_norm=0.0
)
MATRIX = ParameterPolicy(("features", "inner"), weight_decay=True, hidden_matrix=True)
TABLE = ParameterPolicy(("vocab", "features"), weight_decay=True)


def orthogonalized(matrix):
    """Apply the five iterations to the singular values of a matrix."""
    u, values, v = np.linalg.svd(np.asarray(matrix, np.float64), full_matrices=False)
    values /= np.linalg.norm(values)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return u * values @ v


def steps_of(policies, gradients):
    """Return the changes of each step to parameters of zeros."""
    optimizer = make_optimizer(SETTINGS, 10, policies)
    params = jax.tree.map(jnp.zeros_like, gradients[0])
    state = optimizer.init(params)
    update = quick_jit(optimizer.update)
    for gradient in gradients:
        changes, state = update(gradient, state, params)
        yield changes


@pytest.mark.parametrize("shape", [(3, 8, 12), (2, 12, 8), (8, 8)])
def test_matrices_follow_orthogonalized_nesterov_momentum(shape):
    random = np.random.default_rng(0)
    gradients = [random.normal(size=shape).astype(np.float32) for _ in range(3)]
    found = steps_of({"kernel": MATRIX}, [{"kernel": gradient} for gradient in gradients])
    momentum = np.zeros(shape)
    for gradient, changes in zip(gradients, found, strict=True):
        momentum = SETTINGS.momentum * momentum + gradient
        ahead = (gradient + SETTINGS.momentum * momentum).reshape(-1, *shape[-2:])
        expected = np.stack([orthogonalized(matrix) for matrix in ahead]).reshape(shape)
        size = 0.2 * max(shape[-2:]) ** 0.5
        np.testing.assert_allclose(changes["kernel"], -0.1 * size * expected, rtol=5e-3, atol=1e-4)


def test_other_parameters_follow_adamw():
    random = np.random.default_rng(1)
    gradients = [{"table": random.normal(size=(6, 4)).astype(np.float32)} for _ in range(3)]
    with_kernel = [gradient | {"kernel": np.ones((4, 4), np.float32)} for gradient in gradients]
    both = [changes["table"] for changes in steps_of({"table": TABLE, "kernel": MATRIX}, with_kernel)]
    adamw = make_optimizer(dataclasses.replace(SETTINGS, name="adamw"), 10, {"table": TABLE})
    params = {"table": jnp.zeros((6, 4))}
    state = adamw.init(params)
    for gradient, found in zip(gradients, both, strict=True):
        changes, state = adamw.update(gradient, state, params)
        np.testing.assert_allclose(found, changes["table"], rtol=1e-5)


@pytest.mark.parametrize("name", ["gated_ssm_plus", "mamba2", "gated_deltanet", "hawk", "bigs", "griffin"])
def test_hidden_matrices_are_the_kernels_of_maps_inside_the_model(name):
    model = build_model(ModelConfig(name=name, layers=3, features=64, state=128, mlp_features=16), 384)
    policies = jax.tree_util.tree_leaves_with_path(parameter_policies(model))
    hidden = {tuple(part.key for part in path) for path, policy in policies if policy.hidden_matrix}
    kernels = {
        tuple(part.key for part in path)
        for path, policy in policies
        if path[-1].key == "kernel" and not any("convolution" in part.key for part in path)
    }
    assert hidden == kernels
    assert hidden


@pytest.mark.parametrize("count", [4, 3, 1])
def test_each_device_orthogonalizes_whole_matrices(count, two_devices):
    """The result matches one device, with two exchanges of shards and no sum over devices."""
    mesh = mesh_of(MeshConfig(data=1, fsdp=2))
    policies = {"kernel": MATRIX}
    optimizer = make_optimizer(SETTINGS, 10, policies)
    random = np.random.default_rng(2)
    params = {"kernel": random.normal(size=(count, 8, 12)).astype(np.float32)}
    gradients = {"kernel": random.normal(size=(count, 8, 12)).astype(np.float32)}
    shapes = TrainState(jnp.int32(0), params, jax.eval_shape(optimizer.init, params), {})
    shardings = state_sharding(mesh, shapes, policies)
    momentum = [leaf.spec for leaf in jax.tree.leaves(shardings.optimizer) if leaf.spec != PartitionSpec()]
    assert momentum == [PartitionSpec(None, "fsdp", "tensor")]

    with jax.set_mesh(mesh):
        placed = jax.device_put(params, shardings.params)
        state = jax.jit(optimizer.init, out_shardings=shardings.optimizer)(placed)
        update = jax.jit(
            optimizer.update,
            in_shardings=(shardings.params, shardings.optimizer, shardings.params),
            out_shardings=(shardings.params, shardings.optimizer),
        )
        given = jax.device_put(gradients, shardings.params), state, placed
        program = update.lower(*given).compile()
        changes, _ = program(*given)
    assert isinstance(changes["kernel"].sharding, NamedSharding)
    alone, _ = optimizer.update(gradients, optimizer.init(params), params)
    np.testing.assert_allclose(changes["kernel"], alone["kernel"], rtol=5e-3, atol=1e-6)
    module = parse_hlo(program.as_text() or "")
    instructions = [one for part in module.computations.values() for one in part.instructions.values()]
    kinds = [one.opcode for one in instructions if one.opcode.removesuffix("-start") in COLLECTIVE_OPCODES]
    assert "all-reduce" not in kinds
    assert 1 <= len(kinds) <= 2
