"""Dropout in the train step: accumulation changes only rounding; steps and seeds change the masks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from birdie_jax.batching.packing import pack_rows
from birdie_jax.config import ModelConfig
from birdie_jax.engine import TrainState
from birdie_jax.engine.sharded_step import take_step
from birdie_jax.models import build_model
from birdie_jax.objectives import Example
from birdie_jax.pretraining.language_model_step import language_model_loss
from tests.quick_jit import quick_jit

pytestmark = pytest.mark.slow

LENGTH, VOCAB = 24, 384
OPTIMIZER = optax.sgd(1.0)


def make_model(rate):
    settings = {"layers": 2, "features": 16, "state": 16, "mlp_features": 16, "dtype": "float32"}
    return build_model(ModelConfig(name="gated_ssm_mlp", remat="none", dropout=rate, **settings), VOCAB)


@pytest.fixture(scope="module")
def batch():
    """Equal rows, which differ only in their dropout masks."""
    tokens = np.random.default_rng(0).integers(256, VOCAB, LENGTH).astype(np.int32)
    return jax.tree.map(jnp.asarray, pack_rows([[Example(tokens[:10], tokens[10:])]] * 4, LENGTH, 3))


@pytest.fixture(scope="module")
def params(batch):
    return quick_jit(make_model(0.0).init)(jax.random.key(0), batch)["params"]


def stepped(parts, params, batch, *, rate=0.25, seed=0, step=0):
    loss = language_model_loss(make_model(rate), 1, 8)
    compiled = quick_jit(partial(take_step, loss, OPTIMIZER, parts, seed=seed))
    return compiled(TrainState(jnp.int32(step), params, OPTIMIZER.init(params), {}), batch)


@pytest.fixture(scope="module")
def whole(params, batch):
    return stepped(1, params, batch)


@pytest.mark.parametrize("parts", [2, 4])
def test_accumulation_changes_only_rounding(parts, params, batch, whole):
    state, metrics = stepped(parts, params, batch)
    close = partial(np.testing.assert_allclose, rtol=1e-5)
    jax.tree.map(close, metrics, whole[1])
    jax.tree.map(partial(close, atol=1e-6), state.params, whole[0].params)


def test_masks_are_those_of_the_seed_and_the_step(params, batch, whole):
    assert float(stepped(1, params, batch)[1].loss) == float(whole[1].loss)
    others = [stepped(1, params, batch, step=1), stepped(1, params, batch, seed=1)]
    losses = {float(metrics.loss) for _, metrics in (whole, *others)}
    assert len(losses) == 3
    assert np.ptp(list(losses)) > 1e-3


def test_a_step_without_dropout_draws_no_random_numbers(params, batch):
    loss = language_model_loss(make_model(0.0), 1, 8)
    state = TrainState(jnp.int32(0), params, OPTIMIZER.init(params), {})
    text = jax.jit(partial(take_step, loss, OPTIMIZER, 1)).lower(state, batch).as_text()
    assert "threefry" not in text and "rng" not in text
    drawing = language_model_loss(make_model(0.5), 1, 8)
    assert "threefry" in jax.jit(partial(take_step, drawing, OPTIMIZER, 1)).lower(state, batch).as_text()
