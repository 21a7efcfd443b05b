"""The head of a task with choices: each choice, with its question, is a sample with one score."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int

from birdie_jax.array_types import Activations, RowKeys
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.classification_head import class_losses
from birdie_jax.models.task_head import HeadLosses, Samples, TaskHead, register_head

CHOICE = "choice"
WRONG_CHOICE, RIGHT_CHOICE = 1, 2


class ChoiceHead(TaskHead):
    """`pooled_scores` with one output, and cross-entropy over the choices of a question.

    The `head_outputs` samples of a question are adjacent in a row. One has the label `RIGHT_CHOICE`, the
    others have `WRONG_CHOICE`.
    """

    grouped = True

    @nn.compact
    def __call__(
        self, x: Activations, samples: Samples, row_keys: RowKeys | None = None
    ) -> Float32[Array, "rows samples 1"]:
        """Return the score of each choice."""
        return self.pooled_scores(x, samples, row_keys, 1)

    @staticmethod
    def losses(
        config: ModelConfig,
        scores: Float32[Array, "rows samples 1"],
        labels: Int[Array, "rows samples"],
        samples: Samples,
    ) -> HeadLosses:
        """Return the question's cross-entropy for each of its choices, so means are over questions."""
        del samples
        choices, (rows, count) = config.head_outputs, labels.shape
        right = jnp.argmax(labels.reshape(rows, count // choices, choices), axis=-1)
        found = class_losses(scores.reshape(rows, count // choices, choices), right)
        return HeadLosses(*(jnp.repeat(values, choices, axis=1) for values in found))


register_head(CHOICE, ChoiceHead)
