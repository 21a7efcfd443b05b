"""For every model, a training step changes every parameter and the loss on the batch falls."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.batching.packing import pack_rows
from birdie_jax.config import ModelConfig, OptimizerConfig
from birdie_jax.engine import TrainState
from birdie_jax.engine.sharded_step import take_step
from birdie_jax.models import build_model
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.griffin import GriffinConfig
from birdie_jax.models.mamba2 import Mamba2Config
from birdie_jax.models.parameters import parameter_policies
from birdie_jax.models.registry import encoder_names, model_names
from birdie_jax.objectives import NO_LABEL, Example
from birdie_jax.optimizers import make_optimizer
from birdie_jax.pretraining.language_model_step import language_model_loss
from tests.quick_jit import quick_jit

LENGTH, VOCAB = 16, 384
SMALL = ModelConfig(
    features=16,
    state=16,
    mlp_features=16,
    dtype="float32",
    remat="none",
    sections=(
        AttentionConfig(heads=2),
        GriffinConfig("recurrent,attention"),
        Mamba2Config(head_features=4, state_size=4),
    ),
)
OPTIMIZER = OptimizerConfig(learning_rate=1e-2, warmup_steps=0)


def batch_of(name):
    """Return two packed rows: contexts with targets, or, for an encoder, texts with masked tokens."""
    random = np.random.default_rng(0)

    def sample(context, target):
        tokens = random.integers(256, VOCAB, context + target).astype(np.int32)
        if name not in encoder_names():
            return Example(tokens[:context], tokens[context:], 0)
        labels = np.where(np.arange(len(tokens)) % 3 == 0, tokens, NO_LABEL).astype(np.int32)
        return Example(tokens, tokens[:0], 0, labels)

    rows = [[sample(4, 6)], [sample(1, 2), sample(2, 3)]]
    return jax.tree.map(jnp.asarray, pack_rows(rows, LENGTH, spacing=4))


def cannot_move(path):
    """A key's bias adds the same value to all scores of a query, so it has no effect."""
    return [part.key for part in path[-2:]] == ["key", "bias"]


@pytest.mark.parametrize("name", model_names())
def test_a_step_moves_every_parameter_and_the_loss_falls(name):
    layers = 2 if name == "griffin" else 1
    model, batch = build_model(dataclasses.replace(SMALL, name=name, layers=layers), VOCAB), batch_of(name)
    optimizer = make_optimizer(OPTIMIZER, 10, parameter_policies(model))
    loss = language_model_loss(model, 1, 8)

    @quick_jit
    def two_steps():
        params = model.init(jax.random.key(0), batch)["params"]
        state = TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), {})
        step = partial(take_step, loss, optimizer, 1)
        after, metrics = jax.lax.scan(lambda state, _: step(state, batch), state, length=2)
        return params, after, metrics.loss

    before, after, losses = two_steps()
    assert losses[0] == pytest.approx(math.log(VOCAB), rel=0.2)
    assert losses[1] < losses[0]
    assert int(after.step) == 2
    moved = jax.tree.map(lambda new, old: float(jnp.abs(new - old).max()), after.params, before)
    still = [path for path, change in jax.tree_util.tree_leaves_with_path(moved) if not change > 0]
    assert [path for path in still if not cannot_move(path)] == []
