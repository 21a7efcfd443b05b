"""The likelihood of given answers: a prompt is read once, and each of its continuations is scored."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from birdie_jax.generation.generator import Generator
from birdie_jax.generation.prompt import Prompt, pad_prompts
from birdie_jax.models import LanguageModel
from birdie_jax.models.layout import packed_layout


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

    def _score_one(self, prompt: Prompt, tokens: np.ndarray) -> Likelihood:
        prefix = np.concatenate([prompt.target_prefix, tokens[:-1]]).astype(np.int32)
        batch = pad_prompts([Prompt(prompt.context, prefix)], 1)
        logits = _logits(self._generator.model, self._generator.params, batch)[0, -len(tokens) :]
        chosen = jax.nn.log_softmax(logits)[jnp.arange(len(tokens)), tokens]
        greedy = bool((np.argmax(logits, axis=-1) == tokens).all())
        return Likelihood(float(chosen.sum()), len(tokens), greedy)


def _logits(model: LanguageModel, params: Any, batch: Any) -> Array:
    layout = packed_layout(jnp.asarray(batch.segment_ids), jnp.asarray(batch.bidirectional))
    hidden, _ = model.apply(
        {"params": params}, jnp.asarray(batch.tokens), layout, method=LanguageModel.hidden
    )
    return cast(Array, model.apply({"params": params}, hidden, method=LanguageModel.logits))
