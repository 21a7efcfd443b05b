"""Sums by arm against a loop over the tokens."""

import jax.numpy as jnp
import numpy as np

from birdie_jax.pretraining.language_model_step import sums_by_arm


def test_sums_of_each_arm():
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
