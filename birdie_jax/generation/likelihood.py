"""The likelihood of given answers: a prompt is read once, and each of its continuations is scored."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from birdie_jax.array_types import TokenIds
from birdie_jax.generation.generator import Generator
from birdie_jax.generation.prompt import Prompt, pad_prompts
from birdie_jax.models import LanguageModel
from birdie_jax.models.layout import packed_layout
from birdie_jax.models.token_losses import token_losses


class Likelihood(NamedTuple):
    """How likely a continuation is.

    Attributes:
        log_likelihood: the natural logarithm of its probability, the sum over its tokens.
        tokens: the number of its tokens.
        is_greedy: whether each of its tokens is the most probable one.
    """

    log_likelihood: float
    tokens: int
    is_greedy: bool


class Scorer:
    """Scores continuations of prompts by the model of a generator, on its devices."""

    def __init__(self, generator: Generator):
        """Score by the model, parameters and devices of `generator`."""
        self._generator = generator

    def score(
        self, prompts: Sequence[Prompt], continuations: Sequence[Sequence[np.ndarray]]
    ) -> list[list[Likelihood]]:
        """Return the likelihood of each continuation of each prompt.

        Args:
            prompts: at least one prompt.
            continuations: for each prompt its continuations, int32 [tokens] each.
        """
        return [
            [self._score_one(prompt, tokens) for tokens in of_prompt]
            for prompt, of_prompt in zip(prompts, continuations, strict=True)
        ]

    def text_losses(self, texts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the loss of every token of texts that are read causally after the start token.

        Args:
            texts: the tokens of at least one text, int32 [tokens] each, at least one.

        Returns:
            The negative natural logarithm of each token's probability given those before it, float32
            [tokens] for each text.
        """
        prompts = [Prompt(np.empty(0, np.int32), tokens[:-1].astype(np.int32)) for tokens in texts]
        batch = pad_prompts(prompts, 1 << (len(texts) - 1).bit_length())
        targets = np.zeros_like(batch.tokens)
        for row, tokens in enumerate(texts):
            targets[row, -len(tokens) :] = tokens
        losses = np.asarray(
            _losses(self._generator.model, self._generator.params, batch.tokens, batch.segment_ids, targets)
        )
        return [losses[row, -len(tokens) :] for row, tokens in enumerate(texts)]

    def _score_one(self, prompt: Prompt, tokens: np.ndarray) -> Likelihood:
        prefix = np.concatenate([prompt.target_prefix, tokens[:-1]]).astype(np.int32)
        batch = pad_prompts([Prompt(prompt.context, prefix)], 1)
        logits = _logits(self._generator.model, self._generator.params, batch)[0, -len(tokens) :]
        chosen = jax.nn.log_softmax(logits)[jnp.arange(len(tokens)), tokens]
        greedy = bool((np.argmax(logits, axis=-1) == tokens).all())
        return Likelihood(float(chosen.sum()), len(tokens), greedy)


@partial(jax.jit, static_argnums=0)
def _losses(
    model: LanguageModel, params: Any, tokens: TokenIds, segment_ids: TokenIds, targets: TokenIds
) -> Float[Array, "rows length"]:
    mask = segment_ids > 0
    layout = packed_layout(segment_ids, jnp.zeros_like(mask))
    hidden, _ = model.apply({"params": params}, tokens, layout, method=LanguageModel.hidden)
    table = cast(Array, model.apply({"params": params}, method=LanguageModel.head_table))
    # Lengths of prompts are multiples of 16.
    return token_losses(hidden, table, targets, mask, chunk=16)[0]


def _logits(model: LanguageModel, params: Any, batch: Any) -> Array:
    layout = packed_layout(jnp.asarray(batch.segment_ids), jnp.asarray(batch.bidirectional))
    hidden, _ = model.apply(
        {"params": params}, jnp.asarray(batch.tokens), layout, method=LanguageModel.hidden
    )
    return cast(Array, model.apply({"params": params}, hidden, method=LanguageModel.logits))
