"""The two compiled functions of generation: prefill of prompts, and decoding of a chunk of tokens.

Prefill is one pass of the model over whole prompts; its scan runs over the sequence. Decoding is a loop on
the device: it takes one model step per token, and ends when every row is done.

Each call decodes a chunk of tokens without the host: a callback for every token would make the device wait
for the host. One call for all tokens could not stream text or stop at a string. The host dispatches the
next chunk before it reads the last one.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from birdie_jax.array_types import Activations, TokenIds, TokenMask
from birdie_jax.generation.prompt import prunable_tokens
from birdie_jax.generation.sampling import Sampling, sample_tokens
from birdie_jax.models import LanguageModel
from birdie_jax.models.language_model import looped_hidden, stack_caches, unrolled_hidden, unstack_layers
from birdie_jax.models.layers import FEW_TOKENS, transposed_kernels
from birdie_jax.models.layout import causal_layout, packed_layout
from birdie_jax.pruning import PruningSettings, pruned_hidden
from birdie_jax.pruning.pruned_prefill import PromptRows
from birdie_jax.vocabulary import PADDING

CHUNK_TOKENS = 32
"""The default number of tokens per row in one call of `decode_chunk`."""


class PromptBatch(NamedTuple):
    """`PaddedPrompts` on the device: prompts [rows, length]; each is at the right end of its row.

    Attributes:
        tokens: int32, the context, the start token and the target prefix, with padding to the left.
        bidirectional: bool, true on the context.
        segment_ids: int32, 1 on the prompt, 0 on the padding.
    """

    tokens: TokenIds
    bidirectional: TokenMask
    segment_ids: TokenIds


class DecodeRules(NamedTuple):
    """The random keys of answers, their allowed tokens, and the conditions that end them.

    Attributes:
        keys: [rows], the random key of each answer.
        max_tokens: int32 [rows], the maximum number of tokens in each answer; 0 for rows that only fill the
            batch.
        allowed: bool [rows, vocab], true on the tokens that each answer may contain.
        stops: bool [vocab], true on the tokens that end an answer.
    """

    keys: Key[Array, " rows"]
    max_tokens: Int[Array, " rows"]
    allowed: Bool[Array, "rows vocab"]
    stops: Bool[Array, " vocab"]


class DecodeSettings(NamedTuple):
    """The constants of the compiled functions.

    Attributes:
        model: the language model.
        sampling: the rule that chooses tokens.
        chunk_tokens: the maximum number of tokens per row in one call of `decode_chunk`.
        max_tokens: the maximum number of tokens in an answer; a growing cache has room for them.
        pruning: the settings of pruning; None: no pruning.
        protected: the maximum number of tokens of a prompt that pruning never drops.
    """

    model: LanguageModel
    sampling: Sampling
    chunk_tokens: int
    max_tokens: int
    pruning: PruningSettings | None = None
    protected: int = 0


class DecodeState(NamedTuple):
    """The state that the decode loop carries from token to token.

    Attributes:
        cache: the model's cache.
        token: int32 [rows], the last generated token, which the model has not read yet.
        num_generated: int32 [rows], the number of tokens generated so far.
        done: bool [rows], whether the answer is complete.
    """

    cache: PyTree
    token: Int[Array, " rows"]
    num_generated: Int[Array, " rows"]
    done: Bool[Array, " rows"]


# (token [rows], cache) -> (hidden [rows, 1, features], cache)
_ModelStep = Callable[[Int[Array, " rows"], PyTree], tuple[Activations, PyTree]]


def prefill(
    settings: DecodeSettings, params: PyTree, prompts: PromptBatch, rules: DecodeRules
) -> DecodeState:
    """Read the prompts and generate the first token of each answer.

    Only the last position has logits; no array of [rows, length, vocab] exists.
    """
    model = settings.model
    rows, length = prompts.tokens.shape
    cache = model.empty_cache(rows, length + settings.max_tokens)
    if settings.pruning is not None:
        prunable = prunable_tokens(prompts.tokens, prompts.segment_ids, prompts.bidirectional)
        read = PromptRows(prompts.tokens, prompts.segment_ids, prompts.bidirectional, rules.keys, prunable)
        hidden, cache, _ = pruned_hidden(
            model, params, read, cache, settings.pruning, protected=settings.protected
        )
        return generate_first_token(settings, params, hidden[:, -1:], cache, rules)
    layout = packed_layout(prompts.segment_ids, prompts.bidirectional)
    hidden, cache = model.apply(
        {"params": params}, prompts.tokens, layout, cache, method=LanguageModel.hidden
    )
    return generate_first_token(settings, params, hidden[:, -1:], cache, rules)


def generate_first_token(
    settings: DecodeSettings, params: PyTree, hidden: Activations, cache: PyTree, rules: DecodeRules
) -> DecodeState:
    """Choose the first token of each answer, from `hidden` [rows, 1, features]."""
    zeros = jnp.zeros(len(hidden), jnp.int32)
    state = DecodeState(cache, zeros, zeros, jnp.zeros(len(hidden), bool))
    return _generate_token(settings, params, hidden, state, rules)


def decode_chunk(
    settings: DecodeSettings,
    params: PyTree,
    state: DecodeState,
    rules: DecodeRules,
    ended: Bool[Array, " rows"],
) -> tuple[DecodeState, Int[Array, "rows chunk"]]:
    """Generate a chunk of further tokens per row, or fewer if all rows are done.

    Args:
        settings: static.
        params: the model's parameters.
        state: the state after the generated tokens.
        rules: the allowed tokens and the lengths of the answers.
        ended: the rows that the host has ended at a stop string.

    Returns:
        The new state, and the tokens, with padding after the end of a row.
    """
    state = state._replace(done=state.done | ended)
    loops = {"cpu": partial(_decode_unrolled, settings), "default": partial(_decode_scanned, settings)}
    return jax.lax.platform_dependent(params, state, rules, **loops)


def _decode_scanned(
    settings: DecodeSettings, params: PyTree, state: DecodeState, rules: DecodeRules
) -> tuple[DecodeState, Int[Array, "rows chunk"]]:
    """Decode with a loop over layers."""
    model, layout = settings.model, causal_layout(len(state.token), 1)

    def model_step(token, cache):
        return looped_hidden(model, params, cache, token[:, None], layout)

    return _decode_loop(settings, params, state, rules, model_step)


def _decode_unrolled(
    settings: DecodeSettings, params: PyTree, state: DecodeState, rules: DecodeRules
) -> tuple[DecodeState, Int[Array, "rows chunk"]]:
    """Decode with unrolled layers, because in a loop XLA's CPU compiler copies parameters."""
    model, layout = settings.model, causal_layout(len(state.token), 1)
    layers = unstack_layers(model, params, state.cache)
    few = len(state.token) in FEW_TOKENS
    kernels = [transposed_kernels(one) for one in layers.params] if few else None

    def model_step(token, caches):
        own = layers._replace(caches=caches)
        return unrolled_hidden(model, params, own, token[:, None], layout, kernels=kernels)

    state, tokens = _decode_loop(settings, params, state._replace(cache=layers.caches), rules, model_step)
    return state._replace(cache=stack_caches(model, state.cache)), tokens


def _decode_loop(
    settings: DecodeSettings, params: PyTree, state: DecodeState, rules: DecodeRules, model_step: _ModelStep
) -> tuple[DecodeState, Int[Array, "rows chunk"]]:
    """Generate until all rows are done or the chunk is full."""
    tokens = jnp.full((len(state.token), settings.chunk_tokens), PADDING, jnp.int32)

    def unfinished(carried):
        count, state, _ = carried
        return (count < settings.chunk_tokens) & ~jnp.all(state.done)

    def step(carried):
        count, state, tokens = carried
        hidden, cache = model_step(state.token, state.cache)
        state = _generate_token(settings, params, hidden, state._replace(cache=cache), rules, table=table)
        return count + 1, state, jax.lax.dynamic_update_index_in_dim(tokens, state.token, count, axis=1)

    table = table_of_products(settings.model, params)
    start = (jnp.zeros((), jnp.int32), state, tokens)
    _, state, tokens = jax.lax.while_loop(unfinished, step, start)
    return state, tokens


def table_of_products(model: LanguageModel, params: PyTree) -> Float[Array, "vocab features"]:
    """Return the head's table in the type of its products; in a loop GPUs would cast it for every token."""
    table = cast(Array, model.apply({"params": params}, method=LanguageModel.head_table))
    return jax.lax.optimization_barrier(table.astype(jnp.dtype(model.config.dtype)))


def _generate_token(
    settings: DecodeSettings,
    params: PyTree,
    hidden: Activations,
    state: DecodeState,
    rules: DecodeRules,
    *,
    table: Float[Array, "vocab features"] | None = None,
) -> DecodeState:
    """Choose the next token, from `hidden` [rows, 1, features]."""
    # `apply` may also return variables, by its declared type.
    logits = cast(
        Array, settings.model.apply({"params": params}, hidden, table, method=LanguageModel.logits)
    )
    chosen = sample_tokens(logits[:, 0], rules.allowed, rules.keys, state.num_generated, settings.sampling)
    token = jnp.where(state.done, PADDING, chosen)
    num_generated = state.num_generated + ~state.done
    done = state.done | rules.stops[token] | (num_generated >= rules.max_tokens)
    return state._replace(token=token, num_generated=num_generated, done=done)
