"""Every mesh gives the loss and the gradients of one device; one that is impossible is refused."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.config import BatchingConfig, Config, MeshConfig, ModelConfig, TrainConfig
from birdie_jax.engine.mesh import check_divisible, mesh_sizes
from birdie_jax.errors import ConfigError
from birdie_jax.models import build_model
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.axes import MESH_AXES, partition_spec
from birdie_jax.models.hawk import HawkConfig
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.models.parameters import parameter_policies
from birdie_jax.models.sequence_parallel import entering_states
from tests.engine.models_on_meshes import (
    AXES,
    MASKED_TABLE,
    RECURRENCE_MESHES,
    TABLE,
    config_of,
    divided,
    loss_of,
    packed_batch,
)
from tests.quick_jit import QUICK_FLAGS, quick_jit

CONFIG = Config(
    batching=BatchingConfig(rows=16, length=64),
    train=TrainConfig(loss_chunk=8),
    model=ModelConfig(
        name="hawk_mlp", features=24, state=32, mlp_features=48, sections=(HawkConfig(heads=8),)
    ),
)
VOCAB = 384


@pytest.mark.slow
def test_every_mesh_gives_the_loss_and_the_gradients_of_one_device():
    """In a process of its own: the number of devices is fixed when JAX starts."""
    flags = f"--xla_force_host_platform_device_count=8 {QUICK_FLAGS}"
    run = subprocess.run(
        [sys.executable, "-m", "tests.engine.models_on_meshes"],
        env=os.environ | {"XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    expected = [
        f"recurrence {name} {both} {sizes}"
        for name, meshes in RECURRENCE_MESHES.items()
        for both in (True, False)
        for sizes in meshes
    ]
    expected += [f"masked {name} {sizes}" for sizes, names in MASKED_TABLE.items() for name in names]
    expected += [f"{name} {sizes} {both}" for sizes, models in TABLE.items() for name, both in models]
    assert run.stdout.splitlines() == expected


def test_two_devices_give_the_loss_and_the_gradients_of_one(two_devices):
    batch = packed_batch()
    kinds = [config_of("gated_ssm_plus", sizes, layers=1) for sizes in ((2, 1, 1, 1), (1, 2, 1, 1))]
    model = build_model(kinds[0].model, VOCAB)
    step = jax.value_and_grad(partial(loss_of, model), has_aux=True)
    params = quick_jit(model.init)(jax.random.key(0), batch)["params"]
    expected = jax.device_get(quick_jit(step)(params, batch))
    for config in kinds:
        compare = partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-6)
        jax.tree.map(compare, divided(config, model, step, params, batch), expected)


def test_states_that_enter_the_shards_of_a_row():
    random = np.random.default_rng(0)
    a, x = random.uniform(0.5, 1, (2, 12, 3)), random.normal(size=(2, 12, 3))
    a[0, 4] = 0
    h = before = random.normal(size=(2, 3))
    entering, products, last = [], [], []
    for shard in np.split(np.arange(12), 4):
        entering.append(h)
        product, own = np.ones((2, 3)), np.zeros((2, 3))
        for t in shard:
            h, own, product = a[:, t] * h + x[:, t], a[:, t] * own + x[:, t], a[:, t] * product
        products.append(product)
        last.append(own)
    arrays = (jnp.asarray(values, jnp.float32) for values in (np.stack(products), np.stack(last), before))
    found, leaving = entering_states(*arrays)
    np.testing.assert_allclose(found, np.stack(entering), rtol=1e-5)
    np.testing.assert_allclose(leaving, h, rtol=1e-5)


def test_sizes_of_a_mesh():
    assert mesh_sizes(MeshConfig(fsdp=1), 8) == {"data": 8, "fsdp": 1, "tensor": 1, "sequence": 1}
    assert mesh_sizes(MeshConfig(2, -1, 2, 1), 8) == {"data": 2, "fsdp": 2, "tensor": 2, "sequence": 1}
    assert mesh_sizes(MeshConfig(fsdp=4), 16, slices=2)["data"] == 4


@pytest.mark.parametrize(
    ("sizes", "such"),
    [
        ((3, 1, 1, 1), "data=8"),
        ((4, 1, 1, 1), "data=8 or fsdp=2 or tensor=2 or sequence=2"),
        ((-1, 1, 16, 1), "tensor=8"),
    ],
)
def test_sizes_that_the_devices_cannot_have(sizes, such):
    with pytest.raises(ConfigError) as error:
        mesh_sizes(MeshConfig(*sizes), 8)
    found = ", ".join(f"{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
    assert str(error.value) == (
        f"config.mesh: found {found}; allowed: sizes whose product is 8, the number of devices, such as "
        f"{such}"
    )
    with pytest.raises(
        ConfigError, match=r"config.mesh.data: found 1; allowed: a multiple of the 2 slices"
    ):
        mesh_sizes(MeshConfig(1, 8, 1, 1), 8, 2)


def changed(config, **sections):
    return replace(
        config, **{name: replace(getattr(config, name), **fields) for name, fields in sections.items()}
    )


KV_HEADS = (AttentionConfig(heads=8, kv_heads=2),)


@pytest.mark.parametrize(
    ("axis", "size", "sections", "allowed"),
    [
        ("fsdp", 16, {}, "1, 2, 4, 8 (it must divide model.features = 24)"),
        ("tensor", 16, {}, "1, 2, 4, 8 (it must divide model.hawk.heads = 8)"),
        (
            *("tensor", 8, {"model": {"state": 20, "name": "gated_ssm"}}),
            "1, 2, 4 (it must divide model.state = 20)",
        ),
        (
            *("tensor", 8, {"model": {"mlp_features": 12, "name": "gated_ssm_mlp"}}),
            "1, 2, 4 (it must divide model.mlp_features = 12)",
        ),
        (
            *("tensor", 4, {"model": {"name": "transformer", "sections": KV_HEADS}}),
            "1, 2 (it must divide model.attention.kv_heads = 2)",
        ),
        (
            *("sequence", 16, {"batching": {"length": 72}, "train": {"loss_chunk": 3}}),
            "1, 2, 4, 8 (it must divide batching.length = 72)",
        ),
        (
            *("sequence", 16, {"batching": {"length": 32}}),
            "1, 2, 4, 8 (a device needs model.hawk.conv_width - 1 = 3 positions of a row)",
        ),
        (
            *("sequence", 4, {"batching": {"length": 48}}),
            "1, 2, 8, 16 (the positions of a row that a device has must be a multiple of "
            "train.loss_chunk = 8)",
        ),
    ],
)
def test_what_a_mesh_cannot_divide(axis, size, sections, allowed):
    with pytest.raises(ConfigError) as error:
        sizes = dict.fromkeys(AXES, 1) | {"data": 16 // size, axis: size}
        check_divisible(changed(CONFIG, **sections), VOCAB, sizes, 16)
    assert str(error.value) == f"config.mesh.{axis}: found {size}; allowed: {allowed}"


@pytest.mark.parametrize(("rows", "more"), [(16, ", or train.accumulation_steps of 1"), (24, "")])
def test_rows_that_the_devices_cannot_share(rows, more):
    config = changed(CONFIG, batching={"rows": rows}, train={"accumulation_steps": 2})
    with pytest.raises(ConfigError) as error:
        check_divisible(config, VOCAB, dict.fromkeys(AXES, 1) | {"data": 8, "fsdp": 2}, 16)
    assert str(error.value) == (
        f"config.batching.rows: found {rows}; allowed: a multiple of mesh.data * mesh.fsdp * "
        f"train.accumulation_steps = 16 * 2 = 32{more}"
    )


def test_two_directions_need_an_even_number_of_devices():
    config = changed(CONFIG, model={"name": "gated_ssm", "state": 18})
    sizes = dict.fromkeys(AXES, 1) | {"data": 2, "tensor": 3}
    with pytest.raises(ConfigError) as error:
        check_divisible(config, VOCAB, sizes, 6)
    assert str(error.value) == (
        "config.mesh.tensor: found 3; allowed: 1, 2, 6 (1 or even: half of the recurrent channels is read "
        "in reverse)"
    )
    check_divisible(changed(config, model={"bidirectional": False}), VOCAB, sizes, 6)


@pytest.mark.parametrize("name", ["gated_ssm_plus", "hawk_mlp", "birdie_ssm", "transformer"])
def test_every_large_parameter_is_divided_both_ways(name):
    """A new parameter that each device would hold whole shows here."""
    config = ModelConfig(
        name=name, layers=2, features=256, state=256, mlp_features=256, tie_embeddings=False
    )
    model = build_model(config, VOCAB)
    policies = parameter_policies(model)

    def check(path, leaf, policy):
        spec = partition_spec(policy.axes, leaf.shape, dict.fromkeys(MESH_AXES, 2))
        axes = [axis for one in spec if one for axis in ((one,) if isinstance(one, str) else one)]
        matrix = leaf.size >= VOCAB * 256
        assert (sorted(axes) == ["fsdp", "tensor"]) == matrix, path

    jax.tree_util.tree_map_with_path(check, parameter_shapes(model), policies)
