"""The three compiled functions of scoring, for prompts, choices after prompts, and texts in chunks.

The tokens are given, so each call is one pass of the model. Logits exist for a few positions at a time
(`token_losses`), never for [rows, length, vocab].
"""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from birdie_jax.array_types import Activations, TokenIds, TokenMask
from birdie_jax.generation.decoding import PromptBatch
from birdie_jax.models import LanguageModel
from birdie_jax.models.layout import Layout, causal_layout, packed_layout
from birdie_jax.models.token_losses import token_losses

# The number of positions with logits in memory: 256 MiB with a vocabulary of 32,768.
_LOSS_POSITIONS = 2048


class PromptState(NamedTuple):
    """The state after prompts.

    Attributes:
        cache: the model's cache after the last token of each row.
        hidden: [rows, 1, features], the inputs of the head at the last token.
    """

    cache: PyTree
    hidden: Activations


class ChoiceScores(NamedTuple):
    """Scores of the choices of each prompt.

    Attributes:
        log_likelihoods: float32 [rows, choices], the sum over the tokens of each choice, in nats.
        greedy: bool [rows, choices], whether each token of the choice is the most probable one.
    """

    log_likelihoods: Float[Array, "rows choices"]
    greedy: Bool[Array, "rows choices"]


class TextChunk(NamedTuple):
    """Tokens of texts, one text per row.

    Attributes:
        tokens: int32 [rows, length], the tokens to read.
        targets: int32 [rows, length], the token that follows each of them.
        scored: bool [rows, length], whether to compute the loss of a target.
        begins: bool [rows], whether the first token is the first of its text.
    """

    tokens: TokenIds
    targets: TokenIds
    scored: TokenMask
    begins: Bool[Array, " rows"]


class TextState(NamedTuple):
    """The cache after a chunk of texts, and the losses of the chunk.

    Attributes:
        cache: the model's cache after the last position of each row.
        losses: float32 [rows, length], the loss of each target in nats; 0 if it is not scored.
    """

    cache: PyTree
    losses: Float[Array, "rows length"]


def read_prompts(model: LanguageModel, room: int, params: PyTree, prompts: PromptBatch) -> PromptState:
    """Read the prompts; a growing cache gets room for `room` further tokens per row."""
    layout = packed_layout(prompts.segment_ids, prompts.bidirectional)
    rows, length = prompts.tokens.shape
    cache = model.empty_cache(rows, length + room)
    hidden, cache = _hidden(model, params, prompts.tokens, layout, cache)
    return PromptState(cache, hidden[:, -1:])


def score_choices(
    model: LanguageModel,
    params: PyTree,
    state: PromptState,
    tokens: Int[Array, "rows choices length"],
    lengths: Int[Array, "rows choices"],
) -> ChoiceScores:
    """Score choices as continuations of the prompts; repeat each prompt's cache for its choices.

    Args:
        model: the language model.
        params: the model's parameters.
        state: the state after the prompts.
        tokens: the tokens of the choices, with padding to their right.
        lengths: the number of tokens of each choice.
    """
    rows, choices, length = tokens.shape
    flat = tokens.reshape(rows * choices, length)
    # The last token of a prompt predicts the first token of a choice, which predicts the second.
    hidden = jnp.repeat(state.hidden, choices, axis=0)
    if length > 1:
        # Leaves without an axis of rows, such as the number of filled slots, are equal in all rows.
        cache = jax.tree.map(
            lambda leaf: jnp.repeat(leaf, choices, axis=1) if leaf.ndim > 1 else leaf, state.cache
        )
        read, _ = _hidden(model, params, flat, causal_layout(len(flat), length), cache)
        hidden = jnp.concatenate([hidden, read[:, :-1]], axis=1)
    scored = jnp.arange(length) < lengths.reshape(-1, 1)
    losses, correct = _losses(model, params, hidden, flat, scored)
    return ChoiceScores(
        -losses.sum(axis=1).reshape(rows, choices),
        (correct | ~scored).all(axis=1).reshape(rows, choices),
    )


def read_texts(model: LanguageModel, params: PyTree, cache: PyTree, chunk: TextChunk) -> TextState:
    """Read the next chunk of texts, causally, from the cache after the chunks before it."""
    layout = causal_layout(*chunk.tokens.shape)
    # Without its reset Hawk would scale the first input as if a state preceded it.
    layout = layout._replace(forward_reset=layout.forward_reset.at[:, 0].set(chunk.begins))
    hidden, cache = _hidden(model, params, chunk.tokens, layout, cache)
    losses, _ = _losses(model, params, hidden, chunk.targets, chunk.scored)
    return TextState(cache, losses)


def _hidden(
    model: LanguageModel, params: PyTree, tokens: TokenIds, layout: Layout, cache: PyTree
) -> tuple[Activations, PyTree]:
    # `apply` may also return variables, by its declared type.
    found = model.apply({"params": params}, tokens, layout, cache, method=LanguageModel.hidden)
    return cast(tuple[Activations, PyTree], found)


def _losses(
    model: LanguageModel, params: PyTree, hidden: Activations, targets: TokenIds, scored: TokenMask
) -> tuple[Float[Array, "rows length"], TokenMask]:
    table: Any = model.apply({"params": params}, method=LanguageModel.head_table)
    bias = cast(Array | None, model.apply({"params": params}, method=LanguageModel.head_bias))
    rows, length = targets.shape
    chunk = 1
    while chunk * 2 * rows <= _LOSS_POSITIONS and length % (chunk * 2) == 0:
        chunk *= 2
    return token_losses(
        hidden, table, targets, scored, chunk, bias=bias, soft_cap=model.config.logit_soft_cap
    )
