"""The scores and losses of packed samples, from a model with a head for fine-tuning."""

from typing import NamedTuple, cast

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from birdie_jax.array_types import RowKeys, TokenIds, TokenMask
from birdie_jax.batch import Batch
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.models.language_model import LanguageModel
from birdie_jax.models.layers import keys_of_layers
from birdie_jax.models.layout import Layout, batch_layout
from birdie_jax.models.loss_positions import find_loss_positions
from birdie_jax.models.registry import architecture_of
from birdie_jax.models.task_head import HeadLosses, Samples, head_type
from birdie_jax.vocabulary import SEPARATOR


def token_types(config: ModelConfig, tokens: TokenIds, layout: Layout) -> TokenIds | None:
    """Return the number of [SEP] before each token in its sample; None for a model without types.

    The largest value is the last of the model's types. `[MASKED_LM] a [SEP] b [SEP]` has the type 0 up to
    the first [SEP], and 1 after it. Text never encodes to a [SEP].
    """
    if not architecture_of(config).encoder:
        return None
    is_separator = (tokens == SEPARATOR).astype(jnp.int32)
    before = jnp.cumsum(is_separator, axis=1) - is_separator
    index = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    # Positions are undefined on padding.
    first = jnp.clip(index - layout.positions(), 0, tokens.shape[1] - 1)
    types = before - jnp.take_along_axis(before, first, axis=1)
    return jnp.clip(types, 0, config.section(EncoderConfig).token_types - 1)


class SampleLosses(NamedTuple):
    """The losses of the samples of packed rows.

    Attributes:
        found: the losses, NaN in a row with more than `max_samples` samples.
        given: bool [rows, samples], whether there is a sample.
        arm_ids: int32 [rows, samples], the arm of each sample.
    """

    found: HeadLosses
    given: Bool[Array, "rows samples"]
    arm_ids: Int[Array, "rows samples"]


def sample_losses(
    model: LanguageModel, max_samples: int, params: PyTree, batch: Batch, row_keys: RowKeys | None = None
) -> SampleLosses:
    """Return the losses of samples; each label is at the first position of its sample.

    Args:
        model: a model with a head.
        max_samples: the maximum number of samples of a row; a multiple of the group for a grouped head.
        params: the model's parameters.
        batch: packed rows whose `loss_mask` is true on the first position of each sample.
        row_keys: the key of each row for dropout; None = no dropout.
    """
    positions = find_loss_positions(cast(TokenMask, batch.loss_mask), max_samples)
    samples = Samples(cast(TokenIds, batch.segment_ids), positions.index)
    scores = _scores(model, params, batch, samples, row_keys)
    labels = positions.of_tokens(cast(TokenIds, batch.targets))
    labels = jnp.where(positions.given, labels, 0)
    losses, correct = head_type(model.config).losses(model.config, scores, labels, samples)
    losses = jnp.where(positions.given, losses, 0.0)
    losses = jnp.where(positions.overflow[:, None], jnp.nan, losses)
    return SampleLosses(
        HeadLosses(losses, jnp.where(positions.given, correct, 0.0)),
        positions.given,
        positions.of_tokens(cast(TokenIds, batch.arm_ids)),
    )


def score_samples(model: LanguageModel, params: PyTree, batch: Batch) -> Float[Array, "rows items scores"]:
    """Return the scores of the first sample of each row: one item, or one item per token of the row.

    Args:
        model: a model with a head.
        params: the model's parameters.
        batch: packed rows that begin with a sample.
    """
    segment_ids = cast(TokenIds, batch.segment_ids)
    samples = Samples(segment_ids, jnp.zeros_like(segment_ids[:, :1]))
    return _scores(model, params, batch, samples, None)


def _scores(
    model: LanguageModel, params: PyTree, batch: Batch, samples: Samples, row_keys: RowKeys | None
) -> Float[Array, "rows items scores"]:
    variables, tokens, layout = {"params": params}, cast(TokenIds, batch.tokens), batch_layout(batch)
    types = token_types(model.config, tokens, layout)
    x, _ = model.apply(variables, tokens, layout, row_keys=row_keys, token_types=types, method="encode")
    if row_keys is not None:
        # The blocks and the embeddings use the keys before this one.
        row_keys = keys_of_layers(row_keys, model.config.layers + 2)[-1]
    return cast(Array, model.apply(variables, x, samples, row_keys, method="task_scores"))
