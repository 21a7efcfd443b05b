"""Gradient gains equal those from automatic differentiation, on a model with known loss functions."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from birdie_jax.batch import Batch
from birdie_jax.config_sections import OptimizerConfig
from birdie_jax.engine import TrainState
from birdie_jax.models.parameters import ParameterPolicy
from birdie_jax.optimizers import make_optimizer
from birdie_jax.pretraining.gradient_gains import GradientGains
from birdie_jax.pretraining.language_model_step import ArmSums

ARMS = 3
TOKENS = np.array([4.0, 2.0, 8.0], np.float32)
CLASS_SCALE = np.array([1.0, 0.5, 0.5], np.float32)
FACTOR = 0.25


SETTINGS = OptimizerConfig(learning_rate=1e-2)
POLICIES = {
    "weights": ParameterPolicy((None,), weight_decay=True),
    "bias": ParameterPolicy((None,), weight_decay=False, learning_rate_factor=FACTOR),
}


def measure(params, batch):
    """Return losses that are smooth functions of the parameters and of the tokens, [arms, features]."""
    losses = jnp.sin(batch.tokens / 100 @ params["weights"]) + jnp.square(params["bias"])
    return ArmSums(losses, jnp.zeros(ARMS), jnp.asarray(TOKENS) / 2)


@pytest.fixture(scope="module")
def parts():
    rng = np.random.default_rng(0)
    params = {
        "weights": jnp.asarray(rng.normal(size=4), jnp.float32),
        "bias": jnp.asarray(rng.normal(size=ARMS), jnp.float32),
    }
    rows = [jnp.asarray(rng.integers(-100, 100, (ARMS, 4)), jnp.int32) for _ in range(2)]
    batches = [Batch(each, each, each > 0, each, each, each > 0, each) for each in rows]
    return params, batches


def direction_of(params, batches, moments, steps):
    """Return the optimizer's direction for the objective, from its definition."""
    scale = CLASS_SCALE / (CLASS_SCALE.sum() * TOKENS)
    total = jax.grad(lambda at: sum(jnp.sum(scale * measure(at, batch).loss) for batch in batches))(params)
    factors = {"weights": 1.0, "bias": FACTOR}
    found = {}
    for name, slope in total.items():
        square = moments[name] / (1 - SETTINGS.beta2**steps) if steps else slope**2
        found[name] = factors[name] * slope / (np.sqrt(square) + SETTINGS.epsilon)
    return found


@pytest.mark.parametrize("steps", [0, 3])
def test_a_gain_is_the_derivative_along_the_optimizers_direction(parts, steps):
    params, batches = parts
    optimizer = make_optimizer(SETTINGS, 10, POLICIES)
    state = optimizer.init(params)
    for number in range(steps):
        slope = jax.tree.map(lambda leaf, n=number: jnp.cos(leaf * (n + 1)), params)
        _, state = optimizer.update(slope, state, params)
    moments = optax.tree_utils.tree_get(state, "nu")
    direction = direction_of(params, batches, moments, steps)

    def losses(at):
        return sum(measure(at, batch).loss for batch in batches) / TOKENS

    _, expected = jax.jvp(losses, (params,), (direction,))
    names = []

    def rows(name):
        names.append(name)
        return batches

    gains = GradientGains(SETTINGS, POLICIES, measure)
    train_state = TrainState(jnp.int32(steps), params, state, {})
    found = gains(train_state, rows, jnp.asarray(TOKENS), jnp.asarray(CLASS_SCALE))
    np.testing.assert_allclose(found, expected, rtol=5e-3, atol=2e-4)
    assert names == ["gradient", "a step up", "a step down"]
    # A step along the direction raises the objective; an arm's gain is what a step against it gains.
    assert float(jnp.sum(CLASS_SCALE * found)) > 0
