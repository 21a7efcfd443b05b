"""The head of fine-tuning: maps the activations of a sample to the scores of the sample's label.

A kind of head is one file with a subclass of `TaskHead` and `register_head`, and a line in `__init__.py`.
For every kind a label is one positive integer for each sample. So it passes through packing like the labels
of masked LM, at the first position of its sample.
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
"""The kinds of heads by their names, the values of `config.model.head`."""

register_head = HEADS.register


TASK_HEAD = "task_head"
"""The name of the parameters of a model's head."""

POOLER = "pooler"
"""The name of the layer before a head's last map; the last map has another name."""


class Head(NamedTuple):
    """The head that a task needs.

    Attributes:
        kind: a name of `HEADS`.
        name: the name under which the last map's parameters are saved. A run on the same task reuses them;
            a run on another task creates its own. Any name but `POOLER`.
        outputs: the number of classes, or of choices; 1 for others.
        classes: the names of the classes in the order of their scores; empty = no classes, or unknown ones.
    """

    kind: str
    name: str
    outputs: int = 1
    classes: tuple[str, ...] = ()

    @property
    def form(self) -> tuple[str, str, int]:
        """All but the names of the classes: what `config.model` says of the head."""
        return self.kind, self.name, self.outputs

    def has_other_classes(self, other: "Head") -> bool:
        """Return whether both have named classes, and not the same ones in the same order."""
        return bool(self.classes and other.classes) and self.classes != other.classes


class Samples(NamedTuple):
    """Where the samples of packed rows are.

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
    """What a head's scores cost.

    Attributes:
        losses: float32 [rows, samples], whose mean over samples is minimised.
        correct: float32 [rows, samples], 1 where the best score is the label's; of several samples that
            share a label, each has it.
    """

    losses: Float32[Array, "rows samples"]
    correct: Float32[Array, "rows samples"]


class TaskHead(nn.Module):
    """The base class of heads; `pooled_scores` is what those share that score a sample as a whole.

    Attributes:
        config: the architecture, with the head's kind, name, outputs and dropout.
        has_accuracy: whether a score is right or wrong, and not near or far.
        per_token: whether each token of a sample has scores of its own.
        grouped: whether a label is of `outputs` samples that follow one another.
    """

    config: ModelConfig

    has_accuracy: ClassVar[bool] = True
    per_token: ClassVar[bool] = False
    grouped: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(
        self, x: Activations, samples: Samples, row_keys: RowKeys | None = None
    ) -> Float[Array, "..."]:
        """Return float32 scores: [rows, samples, scores], or [rows, length, scores] where `per_token`.

        Args:
            x: the output of the last block, normalised where the model does so.
            samples: where the samples are.
            row_keys: the key of each row, from which dropout draws; None: nothing is dropped.
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
            scores: what `__call__` returned.
            labels: the labels; where there is no sample, the results are without meaning.
            samples: where the samples are.
        """

    def pooled_scores(
        self, x: Activations, samples: Samples, row_keys: RowKeys | None, outputs: int
    ) -> Float32[Array, "rows samples outputs"]:
        """Return W dropout(tanh(W_p mean(x) + b_p)) + b, the mean over all tokens of a sample.

        It is the pooler and the classifier of the published code of BiGS. Padding is in no sample.
        """
        config = self.config
        own = samples.tokens().astype(jnp.float32)
        sums = jnp.einsum("rsl,rld->rsd", own, x.astype(jnp.float32))
        mean = sums / own.sum(axis=-1, keepdims=True)
        pooled = jnp.tanh(self._dense(config.features, POOLER, SMALL)(mean))
        pooled = dropout(pooled, config.head_dropout, row_keys, 0)
        return self._dense(outputs, config.head_name, nn.initializers.lecun_normal())(pooled)

    def _dense(self, outputs: int, name: str, init: Any) -> Dense:
        # A few vectors a sample: float32 costs nothing, and scores are compared.
        return Dense(
            *(outputs, ("features", None), jnp.dtype(jnp.float32), init), hidden=name == POOLER, name=name
        )


def head_type(config: ModelConfig) -> type[TaskHead]:
    """Return the class of the head of a model that has one."""
    return HEADS[config.head]
