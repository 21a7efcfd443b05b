"""A model's most probable token at each position of a text that counts for the loss."""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from birdie_jax.array_types import TokenIds, TokenMask
from birdie_jax.batch import Batch
from birdie_jax.models.language_model import LanguageModel, token_scores
from birdie_jax.models.layout import batch_layout
from birdie_jax.models.loss_positions import find_loss_positions


class Predictions(NamedTuple):
    """The most probable token at positions of rows, and the loss of the right token.

    Attributes:
        index: int32 [rows, places], the positions in the row.
        tokens: int32 [rows, places], the most probable token.
        probabilities: float32 [rows, places], the probability of that token.
        losses: float32 [rows, places], the loss of the right token in nats.
    """

    index: Int[Array, "rows places"]
    tokens: Int[Array, "rows places"]
    probabilities: Float[Array, "rows places"]
    losses: Float[Array, "rows places"]


def predict_targets(model: LanguageModel, places: int, params: PyTree, batch: Batch) -> Predictions:
    """Return the predictions at the positions of `loss_mask`, from left to right, without dropout.

    Args:
        model: the model, with any mixer.
        places: the number of positions of a row, at least as many as its `loss_mask` has. The results for
            any further positions follow, and are undefined.
        params: the model's parameters.
        batch: packed rows.
    """
    variables = {"params": params}
    x, _ = model.apply(variables, batch.tokens, batch_layout(batch), method="encode")
    positions = find_loss_positions(cast(TokenMask, batch.loss_mask), places)
    hidden = model.apply(variables, positions.of_activations(x), method="transform")
    labels = positions.of_tokens(cast(TokenIds, batch.targets))
    table = cast(Array, model.apply(variables, method="head_table"))
    bias = cast(Array | None, model.apply(variables, method="head_bias"))

    def one_row(row: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        log_probabilities = jax.nn.log_softmax(
            token_scores(row[0], table, bias, model.config.logit_soft_cap), axis=-1
        )
        right = jnp.take_along_axis(log_probabilities, row[1][:, None], axis=-1)[:, 0]
        best = jnp.argmax(log_probabilities, axis=-1).astype(jnp.int32)
        return best, jnp.exp(jnp.max(log_probabilities, axis=-1)), -right

    # Process one row at a time to hold the logits of a single row.
    return Predictions(positions.index, *jax.lax.map(one_row, (hidden, labels)))
