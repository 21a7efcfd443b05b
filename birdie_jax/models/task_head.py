"""Heads for fine-tuning, which map the activations of a sample to scores for its label.

To add a kind of head, write a module with a subclass of `TaskHead` and a call of `register_head`, and
import it in `__init__.py`. For every kind, a label is one positive integer per sample. It passes through
packing like the labels of masked LM, at the first position of its sample.
"""

import abc
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int

from birdie_jax.array_types import Activations, RowKeys, TokenIds
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.encoder_layers import SMALL, Dense
from birdie_jax.models.layers import dropout
from birdie_jax.registry import Registry

HEADS: Registry[type["TaskHead"]] = Registry("model.head")
"""The kinds of heads by name: the values of `config.model.head`."""

register_head = HEADS.register


TASK_HEAD = "task_head"
"""The name of the parameters of a model's head."""

POOLER = "pooler"
"""The name of the layer before a head's last map. The last map has another name."""


class Head(NamedTuple):
    """The head that a task needs.

    Attributes:
        kind: a name of `HEADS`.
        name: the name under which the last map's parameters are saved. A run on the same task reuses them;
            a run on another task creates its own. Any name except `POOLER`.
        outputs: the number of classes, or of choices; 1 for others.
        classes: the names of the classes in the order of their scores; empty = no classes, or unknown
            names.
    """

    kind: str
    name: str
    outputs: int = 1
    classes: tuple[str, ...] = ()

    @property
    def form(self) -> tuple[str, str, int]:
        """The fields of the head that `config.model` has: all except the names of the classes."""
        return self.kind, self.name, self.outputs

    def has_other_classes(self, other: "Head") -> bool:
        """Return whether both heads have named classes that differ, or differ in order."""
        return bool(self.classes and other.classes) and self.classes != other.classes


class Samples(NamedTuple):
    """The locations of samples in packed rows.

    Attributes:
        segment_ids: int32 [rows, length], the sample of each token.
        first: int32 [rows, samples], the position of the first token of each sample, from left to right.
    """

    segment_ids: TokenIds
    first: Int[Array, "rows samples"]

    def tokens(self) -> Bool[Array, "rows samples length"]:
        """Return which tokens belong to each sample."""
        own = jnp.take_along_axis(self.segment_ids, self.first, axis=1)
        return self.segment_ids[:, None, :] == own[:, :, None]


class HeadLosses(NamedTuple):
    """The losses and accuracy of a head's scores.

    Attributes:
        losses: float32 [rows, samples]; training minimises the mean over samples.
        correct: float32 [rows, samples], 1 if the label has the best score; samples that share a label all
            have its value.
    """

    losses: Float32[Array, "rows samples"]
    correct: Float32[Array, "rows samples"]


class TaskHead(nn.Module):
    """The base class of heads; heads that score whole samples use `pooled_scores`.

    Attributes:
        config: the architecture, with the head's kind, name, outputs and dropout.
        has_accuracy: whether a score is right or wrong, instead of near or far.
        per_token: whether each token of a sample has its own scores.
        grouped: whether `outputs` adjacent samples share a label.
    """

    config: ModelConfig

    has_accuracy: ClassVar[bool] = True
    per_token: ClassVar[bool] = False
    grouped: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(
        self, x: Activations, samples: Samples, row_keys: RowKeys | None = None
    ) -> Float[Array, "..."]:
        """Return float32 scores: [rows, samples, scores], or [rows, length, scores] if `per_token`.

        Args:
            x: the output of the last block, normalised if the model ends with a norm.
            samples: the locations of the samples.
            row_keys: the key of each row for dropout; None = no dropout.
        """

    @staticmethod
    @abc.abstractmethod
    def losses(
        config: ModelConfig,
        scores: Float[Array, "..."],
        labels: Int[Array, "rows samples"],
        samples: Samples,
    ) -> HeadLosses:
        """Return the losses of scores.

        Args:
            config: the architecture.
            scores: the scores from `__call__`.
            labels: the labels; results without a sample are undefined.
            samples: the locations of the samples.
        """

    def pooled_scores(
        self, x: Activations, samples: Samples, row_keys: RowKeys | None, outputs: int
    ) -> Float32[Array, "rows samples outputs"]:
        """Return W dropout(tanh(W_p mean(x) + b_p)) + b, with the mean over all tokens of a sample.

        This is the pooler and the classifier of the published code of BiGS. No sample contains padding.
        """
        config = self.config
        own = samples.tokens().astype(jnp.float32)
        sums = jnp.einsum("rsl,rld->rsd", own, x.astype(jnp.float32))
        mean = sums / own.sum(axis=-1, keepdims=True)
        pooled = jnp.tanh(self._dense(config.features, POOLER, SMALL)(mean))
        pooled = dropout(pooled, config.head_dropout, row_keys, 0)
        return self._dense(outputs, config.head_name, nn.initializers.lecun_normal())(pooled)

    def _dense(self, outputs: int, name: str, init: Any) -> Dense:
        # There are only a few vectors per sample, so float32 is cheap, and it keeps scores comparable.
        return Dense(
            *(outputs, ("features", None), jnp.dtype(jnp.float32), init), hidden=name == POOLER, name=name
        )


def head_type(config: ModelConfig) -> type[TaskHead]:
    """Return the class of the head of a model with a head."""
    return HEADS[config.head]
