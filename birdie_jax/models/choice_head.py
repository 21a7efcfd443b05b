"""The head of a task with choices: each is read with its question as a sample, and has one score."""

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
    """`pooled_scores` of one output, cross-entropy over the choices of a question.

    The samples of a question follow one another in a row; the label is `RIGHT_CHOICE` on one of them, and
    `WRONG_CHOICE` on the others. `head_outputs` is their number.
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
