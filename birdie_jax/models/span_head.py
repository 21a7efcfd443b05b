"""The head of a task with a span as the answer: two scores per token, for the begin and the end."""

import flax.linen as nn
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float32, Int

from birdie_jax.array_types import Activations, RowKeys
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.task_head import HeadLosses, Samples, TaskHead, register_head

SPANS = "spans"
MAX_SPAN_POSITIONS = 2**15
"""The maximum number of positions of a sample with labels for its spans."""


class SpanHead(TaskHead):
    """S = W x + b with two outputs, and the mean of two cross-entropies over the tokens of a sample.

    As in Devlin et al. 2019 (section 4.2) for SQuAD, begin and end are independent choices. Without an
    answer both are the first token (section 4.3). Labels are from `label_of_span`.
    """

    per_token = True

    @nn.compact
    def __call__(
        self, x: Activations, samples: Samples, row_keys: RowKeys | None = None
    ) -> Float32[Array, "rows length 2"]:
        """Return two scores for each token; there is no dropout."""
        del samples, row_keys
        return self._dense(2, self.config.head_name, nn.initializers.lecun_normal())(x)

    @staticmethod
    def losses(
        config: ModelConfig,
        scores: Float32[Array, "rows length 2"],
        labels: Int[Array, "rows samples"],
        samples: Samples,
    ) -> HeadLosses:
        """Return the mean of the two cross-entropies, and whether both positions are right."""
        del config
        own, span = samples.tokens(), labels - 1
        places = jnp.maximum(span // MAX_SPAN_POSITIONS, 0), jnp.maximum(span % MAX_SPAN_POSITIONS, 0)
        begin, end = (
            _place_losses(scores[..., number], samples.first + place, own)
            for number, place in enumerate(places)
        )
        return HeadLosses((begin.losses + end.losses) / 2, begin.correct * end.correct)


def _place_losses(
    scores: Float32[Array, "rows length"],
    places: Int[Array, "rows samples"],
    own: Bool[Array, "rows samples length"],
) -> HeadLosses:
    """Return the cross-entropy of a position among its sample's tokens, and whether it is the best."""
    among = jnp.where(own, scores[:, None, :], -jnp.inf)
    right = jnp.take_along_axis(scores, jnp.minimum(places, scores.shape[1] - 1), axis=1)
    correct = jnp.argmax(among, axis=-1) == places
    return HeadLosses(logsumexp(among, axis=-1) - right, correct.astype(jnp.float32))


def label_of_span(begin: int, end: int) -> int:
    """Return the label of the span from `begin` to `end`, inclusive, counted from the start of the sample.

    Raises:
        ValueError: the span is not valid.
    """
    if not 0 <= begin <= end < MAX_SPAN_POSITIONS:
        raise ValueError(
            f"label of a span: found {begin} to {end}; allowed: 0 <= begin <= end < {MAX_SPAN_POSITIONS}"
        )
    return 1 + begin * MAX_SPAN_POSITIONS + end


register_head(SPANS, SpanHead)
