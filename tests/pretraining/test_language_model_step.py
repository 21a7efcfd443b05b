"""The train step: accumulation only saves memory, padding has no effect, metrics are correct."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from birdie_jax.batching.packing import empty_rows, pack_rows
from birdie_jax.config import ModelConfig, OptimizerConfig
from birdie_jax.engine import TrainState
from birdie_jax.engine.sharded_step import take_step
from birdie_jax.models import build_model
from birdie_jax.models.parameters import parameter_policies
from birdie_jax.objectives import Example
from birdie_jax.optimizers import make_optimizer
from birdie_jax.pretraining.language_model_step import arm_sums, language_model_loss
from tests.quick_jit import quick_jit

LENGTH, VOCAB, ARMS = 24, 384, 3
MODEL = build_model(
    ModelConfig(
        name="gated_ssm", layers=1, features=16, state=16, mlp_features=16, dtype="float32", remat="none"
    ),
    VOCAB,
)
POLICIES = parameter_policies(MODEL)
# Context, target and arm of each sample: rows with 20, 1, 3 and 2 + 6 target tokens.
ROWS = ([(1, 20, 0)], [(20, 1, 2)], [(0, 3, 2)], [(2, 2, 0), (4, 6, 2)])


@pytest.fixture(scope="module")
def batch():
    random = np.random.default_rng(0)

    def sample(context, target, arm):
        tokens = random.integers(256, VOCAB, context + target).astype(np.int32)
        return Example(tokens[:context], tokens[context:], arm)

    rows = [[sample(*lengths) for lengths in row] for row in ROWS]
    return jax.tree.map(jnp.asarray, pack_rows(rows, LENGTH, spacing=3))


@pytest.fixture(scope="module")
def params(batch):
    return quick_jit(MODEL.init)(jax.random.key(0), batch)["params"]


def start(params, optimizer):
    sections = {"bandit": {"untouched": jnp.ones(2)}}
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), sections)


def compiled(parts, optimizer):
    return quick_jit(partial(take_step, language_model_loss(MODEL, ARMS, 8), optimizer, parts))


# Plain descent: AdamW divides a gradient by its own size, which would amplify rounding of tiny ones.
DESCENT = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0))


@pytest.fixture(scope="module")
def whole(params, batch):
    return compiled(1, DESCENT)(start(params, DESCENT), batch)


@pytest.mark.sampled
@pytest.mark.parametrize("parts", [2, 4])
def test_accumulation_changes_only_rounding(parts, params, batch, whole):
    state, metrics = compiled(parts, DESCENT)(start(params, DESCENT), batch)
    expected_state, expected_metrics = whole
    close = partial(np.testing.assert_allclose, rtol=1e-5)
    jax.tree.map(close, metrics, expected_metrics)
    jax.tree.map(partial(close, atol=1e-6), state.params, expected_state.params)
    moved = jax.tree.map(lambda new, old: float(jnp.abs(new - old).max()), state.params, params)
    assert min(jax.tree.leaves(moved)) > 1e-4, "every parameter must have moved by more than rounding"


def test_the_loss_is_the_mean_over_target_tokens(params, batch, whole):
    scores = jax.nn.log_softmax(quick_jit(MODEL.apply)({"params": params}, batch))
    by_arm = {arm: [] for arm in range(ARMS)}
    correct = {arm: 0 for arm in range(ARMS)}
    for row, position in zip(*np.nonzero(batch.loss_mask), strict=True):
        arm, label = int(batch.arm_ids[row, position]), int(batch.targets[row, position])
        by_arm[arm].append(-float(scores[row, position, label]))
        correct[arm] += int(scores[row, position].argmax()) == label
    _, metrics = whole
    assert [len(by_arm[arm]) for arm in range(ARMS)] == [22, 0, 10]
    np.testing.assert_array_equal(metrics.sums["tokens"], [22, 0, 10])
    np.testing.assert_array_equal(metrics.sums["correct"], list(correct.values()))
    np.testing.assert_allclose(metrics.sums["loss"], [sum(by_arm[arm]) for arm in range(ARMS)], rtol=1e-5)
    assert metrics.loss == pytest.approx(sum(sum(losses) for losses in by_arm.values()) / 32, rel=1e-5)
    assert metrics.tokens == sum(context + target for row in ROWS for context, target, _ in row)


def test_the_step_descends_the_clipped_gradient(params, batch, whole):
    def loss(params):
        sums = arm_sums(MODEL, ARMS, LENGTH, params, batch)
        return jnp.sum(sums.loss) / 32

    gradient = quick_jit(jax.grad(loss))(params)
    norm = np.sqrt(
        sum(np.sum(np.square(np.asarray(leaf, np.float64))) for leaf in jax.tree.leaves(gradient))
    )
    state, metrics = whole
    assert metrics.grad_norm == pytest.approx(norm, rel=1e-4)
    factor = min(1, 1 / norm)
    jax.tree.map(
        lambda new, old, g: np.testing.assert_allclose(new, old - factor * g, rtol=1e-4, atol=1e-6),
        state.params,
        params,
        gradient,
    )


def test_the_step_increases_the_count_and_keeps_the_sections(whole):
    state, _ = whole
    assert state.step == 1
    np.testing.assert_array_equal(state.sections["bandit"]["untouched"], [1, 1])


def test_validation_computes_the_same_sums(params, batch, whole):
    sums = quick_jit(partial(arm_sums, MODEL, ARMS, 8))(params, batch)
    of_loss = {name: whole[1].sums[name] for name in sums._fields}
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), sums._asdict(), of_loss)


@pytest.mark.sampled
@pytest.mark.parametrize("parts", [1, 2])
def test_a_batch_of_padding_gives_finite_zeros(params, parts):
    optimizer = make_optimizer(OptimizerConfig(), 100, POLICIES)
    padding = jax.tree.map(jnp.asarray, empty_rows(4, LENGTH))
    state, metrics = compiled(parts, optimizer)(start(params, optimizer), padding)
    assert (metrics.loss, metrics.grad_norm, metrics.tokens) == (0, 0, 0)
    assert not metrics.sums["tokens"].any()
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((state.params, state.optimizer)))


@pytest.mark.slow
def test_accumulation_saves_memory(params):
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((32, LENGTH), x.dtype), empty_rows(1, LENGTH))
    state = jax.eval_shape(lambda: start(params, DESCENT))

    def temporary_bytes(parts):
        return compiled(parts, DESCENT).lower(state, batch).compile().memory_analysis().temp_size_in_bytes

    assert temporary_bytes(8) < temporary_bytes(1) / 3


@pytest.mark.slow
def test_the_loss_falls_on_a_repeated_batch(params, batch):
    optimizer = make_optimizer(OptimizerConfig(learning_rate=0.02, warmup_steps=0), 60, POLICIES)
    step, state = compiled(2, optimizer), start(params, optimizer)
    losses = []
    for _ in range(60):
        state, metrics = step(state, batch)
        losses.append(float(metrics.loss))
    # A tied head starts with scores of unit variance, and with a bias to the token just read.
    assert np.log(VOCAB) < losses[0] < np.log(VOCAB) + 2
    assert losses[-1] < 0.2
