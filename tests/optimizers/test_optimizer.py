"""The schedule's shape, and AdamW against its equations in float64."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from birdie_jax.config import ModelConfig, OptimizerConfig
from birdie_jax.models import build_model
from birdie_jax.models.parameters import ParameterPolicy, parameter_policies
from birdie_jax.optimizers import learning_rate_schedule, make_optimizer, warn_of_a_cut_warmup
from tests.quick_jit import quick_jit

PEAK, FINAL = 1e-3, 1e-5
DECAYED = ParameterPolicy((None, None), weight_decay=True)
KEPT = ParameterPolicy((None,), weight_decay=False)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize(
    ("warmup", "num_steps", "step", "expected"),
    [
        (9, 100, 0, PEAK / 10),
        (9, 100, 3, PEAK / 10 + (PEAK - PEAK / 10) * 3 / 9),
        (9, 100, 9, PEAK),
        (10, 110, 35, None),
        (10, 110, 60, (PEAK + FINAL) / 2),
        (9, 100, 100, FINAL),
        (9, 100, 500, FINAL),
        (0, 100, 0, PEAK),
        (0, 1, 0, PEAK),
        (640, 10, 0, PEAK / 10),
        (640, 10, 9, PEAK),
    ],
)
def test_learning_rates_follow_the_schedule(schedule, warmup, num_steps, step, expected):
    rates = {"learning_rate": PEAK, "final_learning_rate": FINAL, "warmup_steps": warmup}
    rate = learning_rate_schedule(OptimizerConfig(schedule=schedule, **rates), num_steps)
    # The two schedules differ at a quarter of the decay.
    quarter = {"linear": PEAK + (FINAL - PEAK) / 4, "cosine": FINAL + (PEAK - FINAL) * (2 + 2**0.5) / 4}
    assert rate(step) == pytest.approx(quarter[schedule] if expected is None else expected, rel=1e-5)
    falling = rate(jnp.arange(warmup + 1, num_steps))
    assert (jnp.diff(falling) < 0).all()


@pytest.mark.parametrize(
    ("warmup", "said"), [(7, ""), (8, "found 8 for a run of 8 steps; cut to 7"), (20, "7")]
)
@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_a_cut_warmup_is_named(caplog, schedule, warmup, said):
    config = OptimizerConfig(schedule=schedule, warmup_steps=warmup)
    warn_of_a_cut_warmup(config, 8)
    assert len(caplog.records) == bool(said) and said in caplog.text
    np.testing.assert_allclose(learning_rate_schedule(config, 8)(7), config.learning_rate, rtol=1e-6)


# The second set has the published betas and epsilon of masked LM, without clipping.
@pytest.mark.parametrize(
    "fields", [{"clip_norm": 1.0}, {"clip_norm": 0.0, "beta2": 0.98, "epsilon": 1e-6, "schedule": "linear"}]
)
def test_steps_follow_the_equations_of_adamw(fields):
    config = OptimizerConfig(learning_rate=0.1, final_learning_rate=0.01, warmup_steps=2, **fields)
    num_steps = 6
    random = np.random.default_rng(0)
    params = {"kernel": random.normal(size=(3, 2)), "scale": random.normal(size=3)}
    # Some gradients are longer than clip_norm and some are shorter.
    gradients = [
        {name: size * random.normal(size=value.shape) for name, value in params.items()}
        for size in (3, 0.1, 1, 0.01, 2, 0.3)
    ]

    optimizer = make_optimizer(config, num_steps, {"kernel": DECAYED, "scale": KEPT})
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
            g = value * min(1, config.clip_norm / norm) if config.clip_norm else value
            first[name] = config.beta1 * first[name] + (1 - config.beta1) * g
            second[name] = config.beta2 * second[name] + (1 - config.beta2) * g**2
            mean = first[name] / (1 - config.beta1 ** (step + 1))
            square = second[name] / (1 - config.beta2 ** (step + 1))
            decay = config.weight_decay * params[name] if name == "kernel" else 0
            rate = float(schedule(step))
            params[name] = params[name] - rate * (mean / (np.sqrt(square) + config.epsilon) + decay)
    for name, value in params.items():
        np.testing.assert_allclose(result[name], value, rtol=1e-4, err_msg=name)


def test_clipping_does_not_change_the_state():
    """Checkpoints are then the same too."""
    params = {"kernel": jnp.ones((2, 3)), "scale": jnp.ones(3)}
    policies = {"kernel": DECAYED, "scale": KEPT}
    states = [
        make_optimizer(OptimizerConfig(clip_norm=norm, schedule=schedule), 10, policies).init(params)
        for norm, schedule in ((1.0, "cosine"), (0.0, "linear"))
    ]
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])


def changes(config, policies, gradient):
    """Return the change of one step to parameters of ones."""
    params = jax.tree.map(lambda _: jnp.ones((2, 3)), policies)
    optimizer = make_optimizer(config, 10, policies)
    gradients = jax.tree.map(lambda leaf: gradient * jnp.ones_like(leaf), params)
    return quick_jit(optimizer.update)(gradients, optimizer.init(params), params)[0]


def test_an_rg_lru_has_no_weight_decay():
    """This includes the matrices of its gates, which have weight decay in other layers."""
    config = ModelConfig(name="hawk", layers=2, features=16, state=16)
    policies = parameter_policies(build_model(config, 384))
    config = OptimizerConfig(learning_rate=0.1, final_learning_rate=0.1, warmup_steps=0, weight_decay=0.5)
    moved = changes(config, policies, gradient=0.0)["blocks"]["mixer"]
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(moved["rg_lru"]))
    assert (moved["input"]["kernel"] < 0).all()


def test_state_space_parameters_learn_slowly_without_decay():
    """A, dt and D of BiGS. The published code declares these settings but does not apply them."""
    model = ModelConfig(name="bigs", layers=2, features=16, mlp_features=16)
    policies = parameter_policies(build_model(model, 384))
    config = OptimizerConfig(learning_rate=0.1, final_learning_rate=0.1, warmup_steps=0, weight_decay=0.5)
    for gradient, expected in ((0.0, 0.0), (1.0, -0.01)):
        moved = jax.tree_util.tree_leaves_with_path(changes(config, policies, gradient))
        found = {path[-1].key for path, _ in moved}
        assert {"A_re", "A_im", "log_step", "D"} <= found
        for path, leaf in moved:
            if path[-1].key in ("A_re", "A_im", "log_step", "D"):
                np.testing.assert_allclose(leaf, expected, rtol=1e-5, err_msg=str(path))


def test_weight_decay_shrinks_matrices_and_leaves_vectors():
    config = ModelConfig(name="gated_ssm_plus", layers=2, features=16, state=16, mlp_features=16)
    policies = parameter_policies(build_model(config, 384))
    config = OptimizerConfig(learning_rate=0.1, final_learning_rate=0.1, warmup_steps=0, weight_decay=0.5)
    moved = changes(config, policies, gradient=0.0)
    for path, leaf in jax.tree_util.tree_leaves_with_path(moved):
        shrinks = path[-1].key in ("kernel", "embedding")
        np.testing.assert_allclose(leaf, -0.1 * 0.5 if shrinks else 0.0, rtol=1e-6, err_msg=str(path))


def test_a_learning_rate_factor_scales_the_step_and_its_weight_decay():
    config = OptimizerConfig(learning_rate=0.1, final_learning_rate=0.1, warmup_steps=0, weight_decay=0.5)
    policies = {
        "whole": DECAYED,
        "half": replace(DECAYED, learning_rate_factor=0.5),
        "half, not decayed": replace(KEPT, learning_rate_factor=0.5),
        "frozen": replace(DECAYED, learning_rate_factor=0.0),
    }
    moved = changes(config, policies, gradient=1.0)
    # Adam's first step has size 1 for any gradient.
    for name, expected in {"whole": -0.15, "half": -0.075, "half, not decayed": -0.05}.items():
        np.testing.assert_allclose(moved[name], expected, rtol=1e-5, err_msg=name)
    np.testing.assert_array_equal(moved["frozen"], 0.0)


def test_learning_rate_factors_of_one_add_no_operation():
    """The program equals the program of optax alone with the same weight decay."""
    config = OptimizerConfig()
    params = {"kernel": jnp.ones((2, 3)), "scale": jnp.ones(3)}
    plain = optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            learning_rate_schedule(config, 10),
            b1=config.beta1,
            b2=config.beta2,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            mask={"kernel": True, "scale": False},
        ),
    )
    ours = make_optimizer(config, 10, {"kernel": DECAYED, "scale": KEPT})
    texts = [
        str(jax.make_jaxpr(optimizer.update)(params, optimizer.init(params), params))
        for optimizer in (plain, ours)
    ]
    assert texts[0] == texts[1]
