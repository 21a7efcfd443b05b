"""What a model finds most probable in the places of a text that count for the loss."""

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
    """The most probable token in places of rows, and how probable the right one is.

    Attributes:
        index: int32 [rows, places], the position of each place in its row.
        tokens: int32 [rows, places], the most probable token.
        probabilities: float32 [rows, places], its probability.
        losses: float32 [rows, places], nats of the right token.
    """

    index: Int[Array, "rows places"]
    tokens: Int[Array, "rows places"]
    probabilities: Float[Array, "rows places"]
    losses: Float[Array, "rows places"]


def predict_targets(model: LanguageModel, places: int, params: PyTree, batch: Batch) -> Predictions:
    """Return what the model finds in the positions of `loss_mask`, from left to right; no dropout is drawn.

    Args:
        model: the model, of any mixer.
        places: the number of positions of a row, at least those of its `loss_mask`; what is found in the
            other ones, which follow, is without meaning.
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

    # Row by row, so logits exist for one row at a time.
    return Predictions(positions.index, *jax.lax.map(one_row, (hidden, labels)))
