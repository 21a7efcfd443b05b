"""Adafactor against its equations, and the size of its state."""

import jax
import jax.numpy as jnp
import numpy as np

from birdie_jax.config import OptimizerConfig
from birdie_jax.models.parameters import ParameterPolicy
from birdie_jax.optimizers import make_optimizer

SETTINGS = OptimizerConfig(
    name="adafactor",
    learning_rate=0.1,
    final_learning_rate=0.1,
    warmup_steps=0,
    weight_decay=0.0,
    clip_norm=0.0,
)
POLICIES = {"kernel": ParameterPolicy((None, None), weight_decay=True)}


def test_second_moments_are_kept_by_rows_and_columns():
    """Algorithm 4 of the paper in float64, applied to each layer of a stack separately."""
    random = np.random.default_rng(0)
    shape = (2, 128, 160)
    params = {"kernel": jnp.zeros(shape)}
    optimizer = make_optimizer(SETTINGS, 10, POLICIES)
    state = optimizer.init(params)
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) < 0.02 * np.prod(shape)
    rows, columns = np.zeros((2, 128)), np.zeros((2, 160))
    for step in range(1, 4):
        gradient = random.normal(size=shape)
        changes, state = optimizer.update({"kernel": jnp.asarray(gradient, jnp.float32)}, state, params)
        decay = 1 - step**-0.8
        rows = decay * rows + (1 - decay) * (gradient**2).mean(2)
        columns = decay * columns + (1 - decay) * (gradient**2).mean(1)
        second = rows[:, :, None] * columns[:, None, :] / rows.mean(1)[:, None, None]
        direction = gradient / np.sqrt(second)
        direction /= max(1, np.sqrt((direction**2).mean()))
        (found,) = jax.tree.leaves(changes)
        np.testing.assert_allclose(found, -0.1 * direction, rtol=1e-3, atol=1e-5)
