"""Reads tokens into a cache: the beginning of a sample, or a prompt that continues a saved state.

Rows are padded on the right with tokens that the model skips (`Layout.skipped`). So a state enters the
first token of each row, and the cache is the one after the row's last token, for rows of any length.
"""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32, PyTree

from birdie_jax.array_types import Activations, PackedIds, PackedMask
from birdie_jax.errors import SavedStateError
from birdie_jax.generation.decoding import DecodeRules, DecodeSettings, DecodeState, generate_first_token
from birdie_jax.generation.prompt import Prompt, bucket_length
from birdie_jax.generation.timing import cache_bytes, cache_grows
from birdie_jax.models import LanguageModel
from birdie_jax.models.layout import continued_layout
from birdie_jax.models.saved_state import SavedState
from birdie_jax.vocabulary import PADDING

# Bounds the memory of activations in a causal read.
_CHUNK_TOKENS = 8192


class ContinuationBatch(NamedTuple):
    """Tokens to read; each sequence is at the left end of its row.

    Attributes:
        tokens: int32, the tokens, with padding to the right.
        bidirectional: bool, true on contexts.
        lengths: int32, the number of tokens of each row, at least 1.
        begins: bool, whether a row begins a sample; otherwise it continues the cache's sample.
    """

    tokens: PackedIds
    bidirectional: PackedMask
    lengths: Int[np.ndarray | Array, " rows"]
    begins: Bool[np.ndarray | Array, " rows"]


class OpenSamples(NamedTuple):
    """The cache after a read.

    Attributes:
        cache: the model's cache.
    """

    cache: PyTree


def continuation_tokens(prompt: Prompt, state: SavedState) -> Int32[np.ndarray, " tokens"]:
    """Return the tokens that a prompt adds to a state: without START, if the state has it.

    Raises:
        SavedStateError: the prompt has a context and the state is inside a target; or there are no tokens.
    """
    if not state.started:
        return prompt.tokens
    if len(prompt.context) or not len(prompt.target_prefix):
        raise SavedStateError(
            f"prompt after a state that has the start token: found {len(prompt.context)} tokens of context "
            f"and {len(prompt.target_prefix)} of a target prefix; allowed: 0, and at least 1"
        )
    return prompt.target_prefix


def opening_tokens(prompt: Prompt) -> Int32[np.ndarray, " tokens"]:
    """Return the tokens of a prompt that begins a state: its context, or all if it has a target prefix.

    Raises:
        SavedStateError: the prompt has neither.
    """
    tokens = prompt.tokens if len(prompt.target_prefix) else prompt.context
    if not len(tokens):
        raise SavedStateError("prompt of a state: found 0 tokens; allowed: at least 1")
    return tokens


def check_constant_size(model: LanguageModel) -> None:
    """Check that the model's cache has a constant size.

    Raises:
        SavedStateError: the cache grows, as for attention without a window.
    """
    if cache_grows(model):
        growth = cache_bytes(model, 2) - cache_bytes(model, 1)
        raise SavedStateError(
            f"{model.config.name}: its state grows by {growth:,} bytes with each token, and cannot "
            "be saved; allowed: a recurrent model, whose state has a constant size"
        )


def check_chunk(model: LanguageModel, prompt: Prompt, chunk_tokens: int | None) -> int:
    """Return the number of tokens of a prompt to read at a time.

    Raises:
        SavedStateError: `chunk_tokens` is set, but the model reads the context in both directions.
    """
    whole = model.config.bidirectional and len(prompt.context) > 0
    if whole and chunk_tokens is not None:
        raise SavedStateError(
            f"chunks of {chunk_tokens:,} tokens: {model.config.name} reads a context in both directions, "
            "all of it at once; allowed: no chunks, or a model with model.bidirectional=False"
        )
    return len(prompt.tokens) if whole else chunk_tokens or _CHUNK_TOKENS


def batch_continuations(
    parts: Sequence[np.ndarray], contexts: Sequence[int], begins: bool, rows: int
) -> ContinuationBatch:
    """Return the tokens as a batch, with one of few shapes.

    Args:
        parts: the tokens of each row, int32 [tokens]; at least one row.
        contexts: the number of context tokens at the left of each row.
        begins: whether the rows begin samples.
        rows: the number of rows; rows without a part have one token of padding.
    """
    given = [*parts, *[np.full(1, PADDING, np.int32)] * (rows - len(parts))]
    length = bucket_length(max(map(len, given)))
    tokens = np.full((rows, length), PADDING, np.int32)
    bidirectional = np.zeros((rows, length), bool)
    for row, part in enumerate(given):
        tokens[row, : len(part)] = part
    for row, context in enumerate(contexts):
        bidirectional[row, : max(context, 0)] = True
    lengths = np.array([len(part) for part in given], np.int32)
    return ContinuationBatch(tokens, bidirectional, lengths, np.full(rows, begins))


def read_part(
    model: LanguageModel, params: PyTree, samples: OpenSamples, batch: ContinuationBatch
) -> OpenSamples:
    """Read tokens and return the cache after them."""
    return OpenSamples(_read(model, params, samples.cache, batch)[1])


def continued_prefill(
    settings: DecodeSettings,
    params: PyTree,
    samples: OpenSamples,
    batch: ContinuationBatch,
    rules: DecodeRules,
) -> DecodeState:
    """Read prompts that continue the samples of a cache, and generate the first token of each answer."""
    hidden, cache = _read(settings.model, params, samples.cache, batch)
    last = jnp.take_along_axis(hidden, (batch.lengths - 1)[:, None, None], axis=1)
    return generate_first_token(settings, params, last, cache, rules)


def _read(
    model: LanguageModel, params: PyTree, cache: PyTree, batch: ContinuationBatch
) -> tuple[Activations, PyTree]:
    tokens, bidirectional, lengths, begins = map(jnp.asarray, batch)
    layout = continued_layout(lengths, begins, bidirectional)
    return model.apply({"params": params}, tokens, layout, cache, method=LanguageModel.hidden)


def continued_fingerprint(state: SavedState, prompt: Prompt) -> int:
    """Return the `Prompt.fingerprint` of a state and its prompt as one prompt.

    So an answer has the same random numbers for a prompt that is read at once or in two parts.
    """
    tokens = continuation_tokens(prompt, state)
    # A CRC is affine in its start value, so the CRC of zeros gives the difference.
    start = state.context_tokens + len(prompt.context)
    zeros = bytes(4 * state.tokens)
    read = state.checksum ^ zlib.crc32(zeros, start) ^ zlib.crc32(zeros, 0)
    return zlib.crc32(tokens.astype("<i4").tobytes(), read)
