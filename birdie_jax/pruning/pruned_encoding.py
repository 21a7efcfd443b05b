"""A training pass over packed rows that drops tokens of each sample from layer to layer (Simba, A.3).

Each sample draws its own share. Unlike a prompt's share, it is a value of the program, not a shape. So
every layer reads all positions of a row, because a sample may keep all its tokens; dropped tokens become
padding. All layers are one compiled body, as in the dense pass.
"""

from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from birdie_jax.array_types import Activations, TokenIds, TokenMask
from birdie_jax.batch import Batch
from birdie_jax.models import LanguageModel
from birdie_jax.models.influence import COLLECTION
from birdie_jax.models.layer_stacks import Block, layers_at_a_time
from birdie_jax.models.layers import keys_of_layers
from birdie_jax.models.layout import batch_layout
from birdie_jax.models.rematerialisation import policy_of
from birdie_jax.pruning.policies import ScoredLayer
from birdie_jax.pruning.pruned_prefill import (
    PrunedRows,
    drop_tokens,
    finish,
    layer_keys,
    prompt_anchors,
    protected_tokens,
    scored_layout,
    scores_left,
)
from birdie_jax.pruning.samples import PackedTokens, TokenNumbers, whole_rows
from birdie_jax.pruning.settings import SCHEDULES, PruningSettings


class _LayerInputs(NamedTuple):
    """The inputs that differ by layer; the first axis of each array is the layer.

    Attributes:
        params: the parameters of the block.
        share: the share of each token's sample that the next layer reads, for the tokens of the whole row.
        number: the number of the layer.
        dropout_keys: the keys of dropout; None: no dropout.
    """

    params: PyTree[Array]
    share: Float[Array, "*layers rows length"]
    number: Array
    dropout_keys: Key[Array, "*layers rows"] | None


def encode_pruned(  # noqa: PLR0917
    model: LanguageModel,
    params: PyTree,
    batch: Batch,
    keep: TokenNumbers,
    row_keys: Key[Array, " rows"],
    settings: PruningSettings,
) -> tuple[Activations, PackedTokens]:
    """Read packed rows and return the head's inputs for the tokens that the last layer reads.

    Gradients flow through the tokens that stay. The choice of these tokens has no gradient.

    Args:
        model: a model without attention; its layers must return scores if the policy requires them.
        params: its parameters.
        batch: the packed rows; all tokens of a sample may be dropped, except the last one and, with
            `settings.keep_first`, the first one.
        keep: the share of each token's sample at the end of the schedule; 1 drops nothing.
        row_keys: the key of each row, on which dropout and random choices depend.
        settings: the settings of pruning; `keep` and `shares` are ignored.

    Returns:
        The hidden states [rows, length, features] and their tokens: each row's survivors, in order at its
        right end, after padding.

    Raises:
        PruningError: the policy requires scores, but the model's layers return none.
    """
    config = model.config
    layout = batch_layout(batch)
    anchors = prompt_anchors(layout.segment_ids)
    real = layout.segment_ids > 0
    stays = protected_tokens(layout.segment_ids, real, anchors, keep_first=settings.keep_first)
    tokens = cast(TokenIds, batch.tokens)
    x = cast(Array, model.apply({"params": params}, tokens, layout, row_keys, method=LanguageModel.embed))
    rows = PrunedRows(x, whole_rows(layout.segment_ids, cast(TokenMask, batch.bidirectional), stays))
    by_layer = SCHEDULES[settings.schedule](keep, config.layers)
    shares = jnp.stack([jnp.broadcast_to(share, keep.shape) for share in by_layer])
    inputs = _LayerInputs(
        params["blocks"],
        # The last layer drops nothing, so it keeps the share that it reads.
        jnp.concatenate([shares[1:], shares[-1:]]),
        jnp.arange(config.layers),
        keys_of_layers(row_keys, config.layers) if config.dropout > 0 else None,
    )
    layer = partial(_pruned_layer, model, settings, row_keys)
    if policy := policy_of(config.remat):
        layer = jax.checkpoint(layer, prevent_cse=False, policy=policy)
    rows, _ = jax.lax.scan(layer, rows, inputs, unroll=layers_at_a_time(config))
    return finish(model, params, rows.x), rows.tokens


def _pruned_layer(
    model: LanguageModel,
    settings: PruningSettings,
    row_keys: Key[Array, " rows"],
    rows: PrunedRows,
    given: _LayerInputs,
) -> tuple[PrunedRows, None]:
    """Run a layer on the remaining tokens and return the inputs of the next one."""
    norm = settings.asked_norm
    layout = scored_layout(rows.tokens, settings, norm)
    block: Any = Block(model.config)
    (x, _), left = block.apply(
        {"params": given.params}, rows.x, None, layout, given.dropout_keys, mutable=[COLLECTION]
    )
    scored = ScoredLayer(
        rows.tokens,
        jnp.take_along_axis(given.share, rows.tokens.index, axis=1),
        None if norm is None else scores_left(model, settings, left),
        layer_keys(settings.seed, row_keys, given.number),
    )
    return drop_tokens(rows._replace(x=x), scored, settings, x.shape[1]), None
