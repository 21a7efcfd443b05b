"""A pass over prompts in which each layer reads fewer tokens than the previous one (Simba, section 4).

The residual stream of a dropped token ends at its layer. The layers above run on the survivors, side by
side. Shapes are static: layer l reads the same number of positions in every row, which depends on the
padded length. Each sample keeps a share of its own length, and the difference is padding on the left.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from birdie_jax.array_types import Activations, TokenIds, TokenMask
from birdie_jax.errors import PruningError
from birdie_jax.models import LanguageModel
from birdie_jax.models.influence import COLLECTION, InfluenceRequest
from birdie_jax.models.language_model import stack_caches, unstack_layers
from birdie_jax.models.layer_stacks import Block
from birdie_jax.models.layout import Layout, packed_layout
from birdie_jax.models.registry import Cache
from birdie_jax.pruning.policies import POLICIES, ScoredLayer
from birdie_jax.pruning.samples import (
    PackedTokens,
    TokenNumbers,
    gather,
    gather_order,
    kept_mask,
    whole_rows,
)
from birdie_jax.pruning.settings import PruningSettings, kept_tokens

# Flax's collection of captured intermediates.
_CAPTURED = "intermediates"


class LayerTrace(NamedTuple):
    """The results of a layer.

    Attributes:
        output: the residual stream after the block.
        mixed: the output of the block's sequence mixer.
        influence: the influence of each token, as a share of the L2 norm of all contributions to the
            anchor.
    """

    output: Activations
    mixed: Activations
    influence: TokenNumbers


class PrunedLayer(NamedTuple):
    """The tokens that a layer reads.

    Attributes:
        index: the place of each token in the row, in ascending order within a sample.
        segment_ids: the sample of each token, 0 on padding.
        trace: the layer's results for these tokens; None: not traced.
    """

    index: TokenIds
    segment_ids: TokenIds
    trace: LayerTrace | None = None


class PromptRows(NamedTuple):
    """Prompts [rows, length]; each is at the right end of its row.

    Attributes:
        tokens: the prompts' tokens.
        segment_ids: 1 on the prompts, 0 on padding.
        bidirectional: whether a token belongs to the context.
        keys: the random key of each row's choices.
        prunable: whether a token may be dropped; the anchor and a protected first token always stay. None:
            tokens of the context may be dropped.
    """

    tokens: TokenIds
    segment_ids: TokenIds
    bidirectional: TokenMask
    keys: Key[Array, " rows"]
    prunable: TokenMask | None = None


class PrunedRows(NamedTuple):
    """Rows between two layers.

    Attributes:
        x: the residual stream.
        tokens: the remaining tokens.
    """

    x: Activations
    tokens: PackedTokens


def prompt_anchors(segment_ids: TokenIds) -> TokenMask:
    """Return a mask of the last token of each sample, the anchor of the sample's scores."""
    right = jnp.concatenate([segment_ids[:, 1:], jnp.zeros_like(segment_ids[:, :1])], axis=1)
    return (segment_ids > 0) & (segment_ids != right)


def protected_tokens(
    segment_ids: TokenIds, prunable: TokenMask, anchors: TokenMask, *, keep_first: bool
) -> TokenMask:
    """Return a mask of the tokens that always stay."""
    protected = ~prunable | anchors
    if keep_first:
        left = jnp.concatenate([jnp.zeros_like(segment_ids[:, :1]), segment_ids[:, :-1]], axis=1)
        protected |= segment_ids != left
    return protected & (segment_ids > 0)


def layer_lengths(settings: PruningSettings, layers: int, length: int, protected: int) -> tuple[int, ...]:
    """Return the number of positions of a row that each layer reads.

    Args:
        settings: the settings of pruning.
        layers: the number of layers.
        length: the number of positions in a row.
        protected: the maximum number of tokens of a row that are never dropped.
    """
    shares = settings.layer_shares(layers)
    return tuple(min(length, kept_tokens(share, length, protected)) for share in shares)


def pruned_hidden(
    model: LanguageModel,
    params: PyTree,
    prompts: PromptRows,
    cache: Cache,
    settings: PruningSettings,
    *,
    protected: int,
    traced: bool = False,
) -> tuple[Activations, Cache, list[PrunedLayer]]:
    """Read one prompt per row; return the head's inputs, the cache, and the tokens that each layer reads.

    Args:
        model: a model without attention; its layers must return scores if the policy requires them.
        params: its parameters.
        prompts: the prompts.
        cache: a new cache.
        settings: the settings of pruning.
        protected: the maximum number of tokens of a prompt that always stay.
        traced: whether to also return the results of each layer.

    Returns:
        The hidden states of the last layer's tokens, with the last token at the row's right end; the cache
        after them; and the tokens that each layer reads.

    Raises:
        PruningError: the policy requires scores, but the model's layers return none; or `traced` is true
            and the scores of traces differ from those of the settings.
    """
    layers, length = model.config.layers, prompts.tokens.shape[1]
    anchors = prompt_anchors(prompts.segment_ids)
    prunable = prompts.bidirectional if prompts.prunable is None else prompts.prunable
    stays = protected_tokens(prompts.segment_ids, prunable, anchors, keep_first=settings.keep_first)
    if traced:
        check_traced(settings)
    lengths = layer_lengths(settings, layers, length, protected)
    shares = settings.layer_shares(layers)
    layout = packed_layout(prompts.segment_ids, prompts.bidirectional)
    x = cast(Array, model.apply({"params": params}, prompts.tokens, layout, method=LanguageModel.embed))
    rows = PrunedRows(x, whole_rows(prompts.segment_ids, prompts.bidirectional, stays))
    caches, read = [], []
    unstacked = unstack_layers(model, params, cache)
    for layer, (layer_params, layer_cache) in enumerate(zip(*unstacked, strict=True)):
        # Not by the lengths, which depend on other prompts of the batch.
        prunes = layer + 1 < layers and shares[layer + 1] < shares[layer]
        norm = "relative" if traced else settings.asked_norm if prunes else None
        run = _run_block(model, layer_params, rows, layer_cache, settings, norm)
        scores = run.scores
        caches.append(run.cache)
        trace = None if not traced or scores is None else LayerTrace(run.x, run.mixed, scores)
        read.append(PrunedLayer(rows.tokens.index, rows.tokens.segment_ids, trace))
        rows = rows._replace(x=run.x)
        if prunes:
            keys = layer_keys(settings.seed, prompts.keys, layer)
            scored = ScoredLayer(rows.tokens, shares[layer + 1], scores, keys)
            rows = drop_tokens(rows, scored, settings, lengths[layer + 1])
    return finish(model, params, rows.x), stack_caches(model, caches), read


def drop_tokens(rows: PrunedRows, scored: ScoredLayer, settings: PruningSettings, count: int) -> PrunedRows:
    """Return the rows that the next layer reads.

    Args:
        rows: the rows after a layer.
        scored: the layer's inputs to the policy.
        settings: the settings of pruning.
        count: the number of positions of a row that the next layer reads.
    """
    score = POLICIES[settings.policy].score(scored)
    kept = kept_mask(rows.tokens, score, scored.share)
    order = gather_order(kept, count)
    x = jnp.take_along_axis(rows.x, order[..., None], axis=1)
    return PrunedRows(x, gather(rows.tokens, kept, order))


class _BlockRun(NamedTuple):
    """The results of a block: its output, its mixer's output, the requested scores, and its cache."""

    x: Activations
    mixed: Activations
    scores: TokenNumbers | None
    cache: Cache | None


def _run_block(  # noqa: PLR0917
    model: LanguageModel,
    params: PyTree,
    rows: PrunedRows,
    cache: Cache | None,
    settings: PruningSettings,
    norm: str | None,
) -> _BlockRun:
    """Run a layer on the remaining tokens, with scores by a norm; None: no scores."""
    layout = scored_layout(rows.tokens, settings, norm)
    block: Any = Block(model.config)
    (x, cache), left = block.apply(
        {"params": params},
        rows.x,
        cache,
        layout,
        mutable=[COLLECTION, _CAPTURED],
        capture_intermediates=lambda module, method: module.name == "mixer" and method == "__call__",
    )
    mixed = left[_CAPTURED]["mixer"]["__call__"][0][0]
    return _BlockRun(x, mixed, None if norm is None else scores_left(model, settings, left), cache)


def scored_layout(tokens: PackedTokens, settings: PruningSettings, norm: str | None) -> Layout:
    """Return the layout of the remaining tokens; it requests scores by `norm`; None: no scores."""
    layout = packed_layout(tokens.segment_ids, tokens.bidirectional)
    if norm is None:
        return layout
    anchors = prompt_anchors(tokens.segment_ids)
    return layout._replace(influence=InfluenceRequest(anchors, settings.readout, norm, settings.directions))


def scores_left(model: LanguageModel, settings: PruningSettings, left: Mapping[str, Any]) -> TokenNumbers:
    """Return the scores of a layer.

    Args:
        model: the language model.
        settings: the settings of pruning.
        left: the variables that the layer's call returned, by collection.

    Raises:
        PruningError: the layer returned none.
    """
    scores: list[Float[Array, "rows length"]] = jax.tree.leaves(left.get(COLLECTION, {}))
    if len(scores) != 1:
        raise PruningError(
            f"policy: found {settings.policy!r} for model {model.config.name!r}, whose layers do not "
            "score tokens; allowed: a policy that requires no scores, or a recurrent model"
        )
    return scores[0]


def check_traced(settings: PruningSettings) -> None:
    """Check that the scores of traces give the same order of tokens as the settings.

    Raises:
        PruningError: they do not, or with both directions might not.
    """
    found = (settings.asked_norm, settings.directions)
    if found not in {(None, "forward"), ("absolute", "forward")}:
        raise PruningError(
            f"traces: found norm {found[0]!r}, directions {found[1]!r}; allowed: 'absolute' or None, and "
            "'forward'"
        )


def layer_keys(seed: int, keys: Key[Array, " rows"], layer: int | Array) -> Key[Array, " rows"]:
    """Return the random key of each row's choices in a layer."""
    return jax.vmap(lambda key: jax.random.fold_in(jax.random.fold_in(key, seed), layer))(keys)


def finish(model: LanguageModel, params: PyTree, x: Activations) -> Activations:
    """Return the inputs of the head, from the residual stream after the last layer."""
    normalised = cast(Array, model.apply({"params": params}, x, method=LanguageModel.normalise))
    return cast(Array, model.apply({"params": params}, normalised, method=LanguageModel.transform))
