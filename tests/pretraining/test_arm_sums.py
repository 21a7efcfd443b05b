"""Sums by arm against a loop over the tokens."""

import jax.numpy as jnp
import numpy as np

from birdie_jax.batching.packing import pack_rows
from birdie_jax.objectives import Example
from birdie_jax.pretraining.language_model_step import counts_by_arm, sums_by_arm


def test_sums_equal_a_loop_over_tokens():
    random = np.random.default_rng(0)
    arms = random.integers(-1, 4, (3, 10)).astype(np.int32)
    mask = (random.uniform(size=(3, 10)) < 0.6) & (arms >= 0)
    losses = np.where(mask, random.uniform(1, 5, (3, 10)), 0).astype(np.float32)
    correct = mask & (random.uniform(size=(3, 10)) < 0.5)
    sums = sums_by_arm(*(jnp.asarray(x) for x in (losses, correct, mask, arms)), 5)
    for arm in range(5):
        chosen = [(r, t) for r in range(3) for t in range(10) if arms[r, t] == arm]
        np.testing.assert_allclose(
            sums.loss[arm], sum(float(losses[place]) for place in chosen), rtol=1e-6, atol=0
        )
        assert sums.correct[arm] == sum(bool(correct[place]) for place in chosen)
        assert sums.tokens[arm] == sum(bool(mask[place]) for place in chosen)
    assert sums.tokens[4] == 0


def test_examples_and_positions_of_each_arm_are_counted():
    def example(arm, context, target):
        return Example(np.full(context, 300, np.int32), np.full(target, 300, np.int32), arm)

    rows = [
        [example(0, 3, 2), example(2, 0, 4)],
        [example(2, 0, 1), example(2, 1, 1), example(0, 0, 2)],
        [],
    ]
    batch = pack_rows(rows, length=16, spacing=2)
    counts = counts_by_arm(jnp.asarray(batch.positions), jnp.asarray(batch.arm_ids), 4)
    assert counts.examples.tolist() == [2, 0, 3, 0]
    assert counts.positions.tolist() == [7, 0, 7, 0]
