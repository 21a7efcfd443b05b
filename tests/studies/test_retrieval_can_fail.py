"""Tests that models fail if they train without the reversed half or without queries."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax import vocabulary
from birdie_jax.batching import pack_rows, packed_length
from birdie_jax.config import ModelConfig, OptimizerConfig
from birdie_jax.engine.sharded_step import take_step
from birdie_jax.engine.state import TrainState
from birdie_jax.models import build_model
from birdie_jax.models.parameters import parameter_policies
from birdie_jax.objectives import Example
from birdie_jax.optimizers import make_optimizer
from birdie_jax.pretraining.language_model_step import language_model_loss

CLASSES, VALUES = 8, 4
# Training stops before the end of its schedule: with all steps the damaged model also learns the task.
SCHEDULED, STEPS, JUDGED = 400, 240, 40
ROWS, LENGTH, SPACING = 16, 64, 3
VOCABULARY = 384
TEXT = vocabulary.NUM_SPECIAL_TOKENS
QUERY, ANSWER = TEXT + 44, TEXT + 64
MODEL = ModelConfig(
    name="gated_ssm", layers=2, features=32, state=16, mlp_features=32, dtype="float32", remat="none"
)


class Damage(NamedTuple):
    """The parts removed from training."""

    reversed_half: bool = False
    queries: bool = False


def draw_example(rng, damage):
    classes = rng.permutation(CLASSES)
    values = rng.integers(VALUES, size=CLASSES)
    queried = int(rng.integers(CLASSES))
    answer = values[list(classes).index(queried)]
    named = int(rng.integers(CLASSES)) if damage.queries else queried
    context = np.append(TEXT + classes * VALUES + values, QUERY + named).astype(np.int32)
    return Example(context, np.array([ANSWER + answer], np.int32), 0)


def draw_batch(step, damage):
    rng = np.random.default_rng([0, step])
    rows = []
    for _ in range(ROWS):
        examples, room = [], LENGTH
        while True:
            example = draw_example(rng, damage)
            room -= packed_length(example) + SPACING
            if room < 0:
                break
            examples.append(example)
        rows.append(examples)
    batch = pack_rows(rows, LENGTH, SPACING)
    if damage.reversed_half:
        batch = batch._replace(bidirectional=np.zeros_like(batch.bidirectional))
    return batch


@pytest.fixture(scope="module")
def trained_accuracy():
    """Return a function that trains with a `Damage` and returns the accuracy over the last steps."""
    model = build_model(MODEL, VOCABULARY)
    settings = OptimizerConfig(learning_rate=1e-2, warmup_steps=20, weight_decay=0.0)
    optimizer = make_optimizer(settings, SCHEDULED, parameter_policies(model))
    step_function = jax.jit(
        functools.partial(take_step, language_model_loss(model, 1, LENGTH), optimizer, 1), donate_argnums=0
    )
    initial = jax.jit(model.init)(jax.random.key(0), draw_batch(0, Damage()))["params"]

    def train(damage):
        params = jax.tree.map(jnp.copy, initial)
        state = TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), {})
        right = total = 0.0
        for step in range(1, STEPS + 1):
            state, metrics = step_function(state, draw_batch(step, damage))
            if step > STEPS - JUDGED:
                right += float(metrics.sums["correct"].sum())
                total += float(metrics.sums["tokens"].sum())
        return right / total

    return train


def test_the_model_requires_the_reversed_half_and_queries(trained_accuracy):
    """With this seed the measured accuracy is 1.00 intact and 0.77 without the reversed half.

    Without queries the best answer is the most frequent value of the text, with an accuracy of about 0.42.
    """
    intact = trained_accuracy(Damage())
    without_reversed_half = trained_accuracy(Damage(reversed_half=True))
    without_queries = trained_accuracy(Damage(queries=True))
    assert intact > 0.9
    assert without_reversed_half < intact - 0.1
    assert without_queries < intact - 0.3
