"""The types of the tokens of a pair, by which encoders tell its two texts apart (Devlin et al. 2019)."""

import jax.numpy as jnp

from birdie_jax.array_types import TokenIds
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.models.layout import Layout
from birdie_jax.models.registry import architecture_of
from birdie_jax.vocabulary import SEPARATOR


def token_types(config: ModelConfig, tokens: TokenIds, layout: Layout) -> TokenIds | None:
    """Return the number of [SEP] before each token of its sample; None where a model has no types.

    At most the last of the model's types: `[MASKED_LM] a [SEP] b [SEP]` has the type 0 up to the first
    [SEP], and 1 behind it. No text gives a [SEP].
    """
    if not architecture_of(config).encoder:
        return None
    is_separator = (tokens == SEPARATOR).astype(jnp.int32)
    before = jnp.cumsum(is_separator, axis=1) - is_separator
    index = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    # On padding a position is without meaning.
    first = jnp.clip(index - layout.positions(), 0, tokens.shape[1] - 1)
    types = before - jnp.take_along_axis(before, first, axis=1)
    return jnp.clip(types, 0, config.section(EncoderConfig).token_types - 1)
