"""Which tokens of a prompt pruning may drop: those of the text that was given, never what gives it form."""

import jax.numpy as jnp
import numpy as np

from birdie_jax.array_types import TokenIds, TokenMask
from birdie_jax.generation.prompt import Prompt
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS


def prunable_tokens(tokens: TokenIds, segment_ids: TokenIds, bidirectional: TokenMask) -> TokenMask:
    """Return which tokens of prompts, one a row, may be dropped.

    Those are the context. A prompt without one, as of causal_lm, is a target prefix that stands for it:
    all of its text may be dropped; the start token and other special tokens stay.

    Args:
        tokens: the prompts.
        segment_ids: 1 on the prompts, 0 on padding.
        bidirectional: whether a token belongs to the context.
    """
    has_context = jnp.any(bidirectional, axis=1, keepdims=True)
    text = (segment_ids > 0) & (tokens >= NUM_SPECIAL_TOKENS)
    return jnp.where(has_context, bidirectional, text)


def max_protected(prompt: Prompt) -> int:
    """Return the largest number of tokens of a prompt that `prunable_tokens` and pruning let stay.

    Of a context the first token stays, of a prompt without one the last.
    """
    prefix = prompt.target_prefix
    if len(prompt.context):
        return 2 + len(prefix)
    return 2 + int(np.sum(prefix < NUM_SPECIAL_TOKENS))
