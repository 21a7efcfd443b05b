"""Tests the statistics of gates and states that layers record on request."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.config import ModelConfig
from birdie_jax.models import build_model
from birdie_jax.models.gate_statistics import COLLECTION, sow_gate_statistics
from birdie_jax.models.layout import batch_layout, causal_layout
from birdie_jax.pretraining.gate_statistics import gate_statistics
from tests.engine.models_on_meshes import packed_batch
from tests.quick_jit import quick_jit


def small_model(name, layers):
    sizes = {"layers": layers, "features": 64, "state": 128, "mlp_features": 16}
    return build_model(ModelConfig(name=name, dtype="float32", **sizes), 384)


class Layer(nn.Module):
    @nn.compact
    def __call__(self, decay, last, layout):
        sow_gate_statistics(self, decay, last, layout)


@pytest.mark.parametrize("numbers", [(), (3,)])
def test_shares_exclude_padding(numbers):
    batch = jax.tree.map(jnp.asarray, packed_batch())
    random = np.random.default_rng(0)
    decay = random.choice([0.0, 0.5, 1.0], size=(*batch.tokens.shape, 4, *numbers)).astype(np.float32)
    last = random.normal(size=(batch.tokens.shape[0], 4, 5)).astype(np.float32)
    given = jnp.asarray(decay), jnp.asarray(last), batch_layout(batch)
    _, left = Layer().apply({}, *given, mutable=[COLLECTION])
    of_tokens = decay[np.asarray(batch.segment_ids) > 0]
    assert of_tokens.size < decay.size
    found = left[COLLECTION]
    assert found["open_share"] == pytest.approx((of_tokens == 0).mean(), rel=1e-5)
    assert found["closed_share"] == pytest.approx((of_tokens == 1).mean(), rel=1e-5)
    assert found["state_rms"] == pytest.approx(np.sqrt((last**2).mean()), rel=1e-5)


def test_more_decays_than_int32_counts_have_shares():
    """A batch of a large preset has more decays than int32 counts; here they are never in memory."""
    rows, channels = 1 << 16, (1 << 15) + 2

    @jax.jit
    def record(gate):
        decay, last = jnp.broadcast_to(gate, (rows, 1, channels)), jnp.ones((rows, 1))
        return Layer().apply({}, decay, last, causal_layout(rows, 1), mutable=[COLLECTION])[1]

    gate = np.array([0.0, 1.0, 1.0, 1.0] * (rows // 4), np.float32)
    found = record(gate[:, None, None])[COLLECTION]
    assert (found["open_share"], found["closed_share"]) == pytest.approx((0.25, 0.75), rel=1e-5)


# Mixers with one number per channel share the code, and griffin has one of them in a hybrid.
@pytest.mark.parametrize("name", ["gated_ssm_plus", "mamba", "gated_deltanet", "griffin"])
def test_every_recurrent_layer_records_statistics(name):
    model = build_model(
        ModelConfig(name=name, layers=3, features=64, state=128, mlp_features=16, dtype="float32"), 384
    )
    batch = jax.tree.map(jnp.asarray, packed_batch())
    params = quick_jit(model.init)(jax.random.key(0), batch)["params"]
    found = quick_jit(lambda params: gate_statistics(model, params, batch))(params)
    leaves = jax.tree_util.tree_leaves_with_path(found)
    by_name = {}
    for path, value in leaves:
        by_name.setdefault(path[-1].key, []).append(np.atleast_1d(value))
    layers = 3 if name != "griffin" else 2
    assert {part: sum(map(len, values)) for part, values in by_name.items()} == dict.fromkeys(
        ("open_share", "closed_share", "state_rms"), layers
    )
    for part in ("open_share", "closed_share"):
        assert all(((value >= 0) & (value <= 1)).all() for value in by_name[part])
    assert all((value > 0).all() for value in by_name["state_rms"])


def test_saturated_decays_of_mamba_2_are_recorded():
    model = build_model(
        ModelConfig(name="mamba2", layers=2, features=64, state=128, mlp_features=16, dtype="float32"), 384
    )
    batch = jax.tree.map(jnp.asarray, packed_batch())
    params = quick_jit(model.init)(jax.random.key(0), batch)["params"]
    measure = quick_jit(lambda params: gate_statistics(model, params, batch))

    def with_bias(bias, path, leaf):
        return jnp.full_like(leaf, bias) if path[-1].key == "step_bias" else leaf

    for bias, statistic in ((-30.0, "closed_share"), (30.0, "open_share")):
        found = measure(jax.tree_util.tree_map_with_path(partial(with_bias, bias), params))
        np.testing.assert_array_equal(found["blocks"]["mixer"][statistic], [1, 1])
