"""The schedule's shape, and AdamW against its equations in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from birdie_jax.config import OptimizerConfig
from birdie_jax.engine.optimizer import learning_rate_schedule, make_optimizer

PEAK, FINAL = 1e-3, 1e-5


@pytest.mark.parametrize(
    ("warmup", "num_steps", "step", "expected"),
    [
        (9, 100, 0, PEAK / 10),
        (9, 100, 3, PEAK / 10 + (PEAK - PEAK / 10) * 3 / 9),
        (9, 100, 9, PEAK),
        (10, 110, 60, (PEAK + FINAL) / 2),
        (9, 100, 100, FINAL),
        (9, 100, 500, FINAL),
        (0, 100, 0, PEAK),
        (0, 1, 0, PEAK),
        (640, 10, 0, PEAK / 10),
        (640, 10, 9, PEAK),
    ],
)
def test_learning_rate(warmup, num_steps, step, expected):
    config = OptimizerConfig(learning_rate=PEAK, final_learning_rate=FINAL, warmup_steps=warmup)
    assert learning_rate_schedule(config, num_steps)(step) == pytest.approx(expected, rel=1e-5)


def test_learning_rate_rises_and_then_falls():
    config = OptimizerConfig(learning_rate=PEAK, final_learning_rate=FINAL, warmup_steps=20)
    rates = learning_rate_schedule(config, 100)(jnp.arange(100))
    assert (jnp.diff(rates[:21]) > 0).all()
    assert (jnp.diff(rates[20:]) < 0).all()
    assert FINAL < rates[-1] < 1.2 * FINAL


def test_steps_follow_the_equations_of_adamw():
    config = OptimizerConfig(learning_rate=0.1, final_learning_rate=0.01, warmup_steps=2, clip_norm=1.0)
    num_steps = 6
    random = np.random.default_rng(0)
    params = {"kernel": random.normal(size=(3, 2)), "scale": random.normal(size=3)}
    # Some gradients are longer than clip_norm and some are shorter.
    gradients = [
        {name: size * random.normal(size=value.shape) for name, value in params.items()}
        for size in (3, 0.1, 1, 0.01, 2, 0.3)
    ]

    optimizer = make_optimizer(config, num_steps)
    result = {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}
    state = optimizer.init(result)
    for gradient in gradients:
        updates, state = optimizer.update(
            {name: jnp.asarray(value, jnp.float32) for name, value in gradient.items()}, state, result
        )
        result = optax.apply_updates(result, updates)

    schedule = learning_rate_schedule(config, num_steps)
    first = {name: np.zeros_like(value) for name, value in params.items()}
    second = {name: np.zeros_like(value) for name, value in params.items()}
    for step, gradient in enumerate(gradients):
        norm = np.sqrt(sum(np.sum(value**2) for value in gradient.values()))
        for name, value in gradient.items():
            g = value * min(1, config.clip_norm / norm)
            first[name] = config.beta1 * first[name] + (1 - config.beta1) * g
            second[name] = config.beta2 * second[name] + (1 - config.beta2) * g**2
            mean = first[name] / (1 - config.beta1 ** (step + 1))
            square = second[name] / (1 - config.beta2 ** (step + 1))
            decay = config.weight_decay * params[name] if name == "kernel" else 0
            rate = float(schedule(step))
            params[name] = params[name] - rate * (mean / (np.sqrt(square) + config.epsilon) + decay)
    for name, value in params.items():
        np.testing.assert_allclose(result[name], value, rtol=1e-4, err_msg=name)


def test_an_rg_lru_has_no_weight_decay():
    """Its gates' matrices included, which elsewhere would shrink."""
    optimizer = make_optimizer(OptimizerConfig(warmup_steps=0, weight_decay=0.5), 10)
    gate = {"kernel": jnp.ones((2, 3, 4, 4)), "bias": jnp.ones((2, 12))}
    mixer = {
        "rg_lru": {"decay": jnp.ones((2, 12)), "input_gate": gate},
        "input": {"kernel": jnp.ones((2, 3))},
    }
    params = {"blocks": {"mixer": mixer}}
    nothing = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(nothing, optimizer.init(params), params)
    moved = updates["blocks"]["mixer"]
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(moved["rg_lru"]))
    assert (moved["input"]["kernel"] < 0).all()


def test_weight_decay_shrinks_matrices_and_leaves_vectors():
    config = OptimizerConfig(learning_rate=0.1, final_learning_rate=0.1, warmup_steps=0, weight_decay=0.5)
    params = {
        "embedding": jnp.ones((4, 2)),
        "blocks": {
            "mixer_norm": {"scale": jnp.ones((2, 3))},
            "mixer": {"forget_bias": jnp.ones((2, 3)), "input": {"kernel": jnp.ones((2, 3, 3))}},
        },
        "final_norm": {"scale": jnp.ones(3)},
    }
    optimizer = make_optimizer(config, 10)
    nothing = {
        "embedding": jnp.zeros((4, 2)),
        "blocks": {
            "mixer_norm": {"scale": jnp.zeros((2, 3))},
            "mixer": {"forget_bias": jnp.zeros((2, 3)), "input": {"kernel": jnp.zeros((2, 3, 3))}},
        },
        "final_norm": {"scale": jnp.zeros(3)},
    }
    updates, _ = optimizer.update(nothing, optimizer.init(params), params)
    mixer = updates["blocks"]["mixer"]
    for shrinking in (updates["embedding"], mixer["input"]["kernel"]):
        np.testing.assert_allclose(shrinking, -0.1 * 0.5, rtol=1e-6)
    for kept in (
        updates["final_norm"]["scale"],
        updates["blocks"]["mixer_norm"]["scale"],
        mixer["forget_bias"],
    ):
        assert (kept == 0).all()
