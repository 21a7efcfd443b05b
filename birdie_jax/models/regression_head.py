"""The head of a task that predicts a number: one score."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int

from birdie_jax.array_types import Activations, RowKeys
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.task_head import HeadLosses, Samples, TaskHead, register_head

REGRESSION = "regression"
_STEPS = 1000


class RegressionHead(TaskHead):
    """`pooled_scores` with one output, and squared error; labels are from `label_of_number`."""

    has_accuracy = False

    @nn.compact
    def __call__(
        self, x: Activations, samples: Samples, row_keys: RowKeys | None = None
    ) -> Float32[Array, "rows samples 1"]:
        """Return the predicted number."""
        return self.pooled_scores(x, samples, row_keys, 1)

    @staticmethod
    def losses(
        config: ModelConfig,
        scores: Float32[Array, "rows samples 1"],
        labels: Int[Array, "rows samples"],
        samples: Samples,
    ) -> HeadLosses:
        """Return squared errors; `correct` is always 0."""
        del config, samples
        numbers = (labels - 1).astype(jnp.float32) / _STEPS
        losses = jnp.square(scores[..., 0] - numbers)
        return HeadLosses(losses, jnp.zeros_like(losses))


def label_of_number(number: float) -> int:
    """Return the label of a number from 0 to 1e6, with a precision of 0.001 as in STS-B.

    Raises:
        ValueError: the number is outside of this range.
    """
    if not 0 <= number <= 10**6:
        raise ValueError(f"label of a regression: found {number}; allowed: a number from 0 to 1,000,000")
    return 1 + round(number * _STEPS)


def number_of_label(label: int) -> float:
    """Return the number that a label encodes."""
    return (label - 1) / _STEPS


register_head(REGRESSION, RegressionHead)
