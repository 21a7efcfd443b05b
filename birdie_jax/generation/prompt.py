"""Prompts as tokens, the tokens that pruning may drop, and batches of few possible shapes."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int32

from birdie_jax.array_types import TokenIds, TokenMask
from birdie_jax.config_sections import ModelConfig
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS, PADDING, START

_MIN_LENGTH = 32


class Prompt(NamedTuple):
    """The tokens that an answer continues.

    Attributes:
        context: int32 [context], the tokens that the model sees bidirectionally.
        target_prefix: int32 [prefix], the given beginning of the answer, after the start token.
        start: the token between the two; None: no token.
        special_tokens: the special tokens that the answer may contain; None: all that any answer may
            contain.
        name: what errors call the prompt.
    """

    context: Int32[np.ndarray, " context"]
    target_prefix: Int32[np.ndarray, " prefix"]
    start: int | None = START
    special_tokens: tuple[int, ...] | None = None
    name: str = "a prompt"

    @property
    def tokens(self) -> Int32[np.ndarray, " tokens"]:
        """The tokens to prefill: context, start token, target prefix."""
        start = np.array([] if self.start is None else [self.start], np.int32)
        return np.concatenate([self.context, start, self.target_prefix])

    @property
    def fingerprint(self) -> int:
        """A 32-bit hash of the prompt, for its random key."""
        return zlib.crc32(self.tokens.astype("<i4").tobytes(), len(self.context))


def prompt_as_read(prompt: Prompt, model: ModelConfig, *, continues: bool = False) -> Prompt:
    """Return the prompt as the model reads it: without a start token if the model has none.

    If such a prompt has no text, it becomes the token that precedes texts. A prompt that already has this
    form stays the same.

    Args:
        prompt: the prompt.
        model: the architecture.
        continues: whether the prompt continues a text, so no token begins it.
    """
    if model.start_token:
        return prompt
    nothing = np.empty(0, np.int32)
    tokens = np.concatenate([prompt.context, prompt.target_prefix])
    if not len(tokens):
        return prompt._replace(context=nothing, target_prefix=nothing, start=text_start(model))
    if model.begin_token and not continues and tokens[0] != model.begin_token:
        tokens = np.concatenate([np.array([model.begin_token], np.int32), tokens])
    return prompt._replace(context=tokens, target_prefix=nothing, start=None)


def text_start(model: ModelConfig) -> int:
    """Return the token before a text: START, or the beginning token of a model without one."""
    return START if model.start_token else model.begin_token or model.end_token


class PaddedPrompts(NamedTuple):
    """Prompts as arrays [rows, length]; each is at the right end of its row.

    Attributes:
        tokens: int32, the prompts' tokens, with padding to the left.
        bidirectional: bool, true on contexts.
        segment_ids: int32, 1 on prompts and 0 on padding.
    """

    tokens: Int32[np.ndarray, "rows length"]
    bidirectional: Bool[np.ndarray, "rows length"]
    segment_ids: Int32[np.ndarray, "rows length"]


def pad_prompts(prompts: Sequence[Prompt], rows: int) -> PaddedPrompts:
    """Return the prompts as a batch; further rows have only a start token.

    Padding on the left has no effect: no state enters a prompt's first token, and the model's cache is the
    one after the last token of every row.
    """
    filler = Prompt(np.empty(0, np.int32), np.empty(0, np.int32))
    given = [*prompts, *[filler] * (rows - len(prompts))]
    length = bucket_length(max(len(prompt.tokens) for prompt in given))
    tokens = np.full((rows, length), PADDING, np.int32)
    bidirectional = np.zeros((rows, length), bool)
    segment_ids = np.zeros((rows, length), np.int32)
    for row, prompt in enumerate(given):
        first = length - len(prompt.tokens)
        tokens[row, first:] = prompt.tokens
        bidirectional[row, first : first + len(prompt.context)] = True
        segment_ids[row, first:] = 1
    return PaddedPrompts(tokens, bidirectional, segment_ids)


def bucket_length(length: int) -> int:
    """Return the padded length of a prompt: the next of 32, 48, 64, 96, 128, 192, ...

    So all prompts up to a million tokens need 31 compiled programs, and padding adds at most half of the
    length to a prompt of 32 tokens or more.
    """
    size = _MIN_LENGTH
    while size < length:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def power_of_two(count: int) -> int:
    """Return the next power of two, to compile for few numbers of rows and tokens."""
    return 1 << (count - 1).bit_length()


def prunable_tokens(tokens: TokenIds, segment_ids: TokenIds, bidirectional: TokenMask) -> TokenMask:
    """Return the tokens that may be dropped from prompts, one prompt per row.

    They are the tokens of the context. If a prompt has no context, as with causal_lm, they are all tokens
    of its text; the start token and other special tokens stay.

    Args:
        tokens: the prompts.
        segment_ids: 1 on the prompts, 0 on padding.
        bidirectional: whether a token belongs to the context.
    """
    has_context = jnp.any(bidirectional, axis=1, keepdims=True)
    text = (segment_ids > 0) & (tokens >= NUM_SPECIAL_TOKENS)
    return jnp.where(has_context, bidirectional, text)


def max_protected(prompt: Prompt) -> int:
    """Return the maximum number of tokens of a prompt that always stay.

    The first token of a context stays, or the last token of a prompt without a context.
    """
    prefix = prompt.target_prefix
    if len(prompt.context):
        return 2 + len(prefix)
    return 2 + int(np.sum(prefix < NUM_SPECIAL_TOKENS))
