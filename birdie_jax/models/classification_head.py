"""The head of a task with classes: one score for each class."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int

from birdie_jax.array_types import Activations, RowKeys
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.task_head import HeadLosses, Samples, TaskHead, register_head

CLASSIFICATION = "classification"


class ClassificationHead(TaskHead):
    """`pooled_scores` and cross-entropy; the label is 1 + the number of the class."""

    @nn.compact
    def __call__(
        self, x: Activations, samples: Samples, row_keys: RowKeys | None = None
    ) -> Float32[Array, "rows samples outputs"]:
        """Return the score of each class."""
        return self.pooled_scores(x, samples, row_keys, self.config.head_outputs)

    @staticmethod
    def losses(
        config: ModelConfig,
        scores: Float32[Array, "rows samples outputs"],
        labels: Int[Array, "rows samples"],
        samples: Samples,
    ) -> HeadLosses:
        """Return cross-entropy in nats, and whether the best class is the label's."""
        del config, samples
        return class_losses(scores, labels - 1)


def class_losses(
    scores: Float32[Array, "rows samples outputs"], classes: Int[Array, "rows samples"]
) -> HeadLosses:
    """Return the cross-entropy of `classes`, counted from 0, and whether the best class is right."""
    log_probabilities = jax.nn.log_softmax(scores, axis=-1)
    # Without a sample the label is 0.
    index = jnp.maximum(classes, 0)[..., None]
    losses = -jnp.take_along_axis(log_probabilities, index, axis=-1)[..., 0]
    correct = jnp.argmax(scores, axis=-1) == classes
    return HeadLosses(losses, correct.astype(jnp.float32))


register_head(CLASSIFICATION, ClassificationHead)
