"""Which tokens survive, as text: each token with the number of layers that have read it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
from jaxtyping import Int, Int32, PyTree

from birdie_jax.generation.text_generation import TextStream
from birdie_jax.models import LanguageModel
from birdie_jax.objectives import Objective
from birdie_jax.pruning import PruningSettings
from birdie_jax.pruning_cost.pruned_prompts import make_rows, protected_count, read_places
from birdie_jax.text import Tokenizer


@dataclass(frozen=True)
class ReadPart:
    """A part of a text whose tokens were read by as many layers.

    Attributes:
        text: the text.
        layers: the number of layers that have read it.
    """

    text: str
    layers: int


def layers_that_read(
    model: LanguageModel,
    params: PyTree,
    objective: Objective,
    contexts: Int32[np.ndarray, "windows context"],
    settings: PruningSettings,
) -> tuple[Int[np.ndarray, "windows tokens"], Int[np.ndarray, "windows tokens"]]:
    """Return the tokens of each context's prompt, and how many layers have read each of them."""
    rows = make_rows(objective, contexts, np.arange(len(contexts)))
    read = jax.jit(partial(read_places, model, settings, protected_count(rows, settings)))
    return np.asarray(rows.tokens), np.asarray(read(params, rows))


def read_parts(tokenizer: Tokenizer, tokens: Sequence[int], layers: Sequence[int]) -> list[ReadPart]:
    """Return the text of tokens, those of equal numbers of layers side by side as one part.

    A character of several tokens is of the last of them.
    """
    stream, parts = TextStream(tokenizer), []
    texts = [stream.push([token]) for token in tokens]
    texts[-1] += stream.finish()
    for text, count in zip(texts, layers, strict=True):
        if parts and parts[-1].layers == count:
            parts[-1] = ReadPart(parts[-1].text + text, count)
        else:
            parts.append(ReadPart(text, count))
    return [part for part in parts if part.text]
