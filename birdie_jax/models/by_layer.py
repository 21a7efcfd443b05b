"""A language model's layers one after the other, each with parameters of its own: decoding on a CPU.

A scan over stacked layers takes each layer's parameters out of the stack. TPUs and GPUs read them where
they lie; XLA's CPU compiler copies them first, at every token as many bytes again as the step itself reads.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from birdie_jax.array_types import Activations, TokenIds
from birdie_jax.models.block import Block
from birdie_jax.models.language_model import LanguageModel
from birdie_jax.models.layout import Layout


class ByLayer(NamedTuple):
    """What the model has for each layer, in their order.

    Attributes:
        params: of the blocks.
        caches: of the mixers.
    """

    params: list[PyTree]
    caches: list[PyTree]


def unstack(model: LanguageModel, params: Any, cache: PyTree) -> ByLayer:
    """Return the layers of `params` and `cache` apart."""

    def parts(stacked):
        return [
            jax.tree.map(lambda leaf, layer=layer: leaf[layer], stacked)
            for layer in range(model.config.layers)
        ]

    return ByLayer(parts(params["blocks"]), parts(cache))


def stack(caches: list[PyTree]) -> PyTree:
    """Return caches as the model itself has them, the layers on a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *caches)


def hidden_by_layer(
    model: LanguageModel, params: Any, layers: ByLayer, tokens: TokenIds, layout: Layout
) -> tuple[Activations, list[PyTree]]:
    """Return what `LanguageModel.hidden` does, the caches apart; `params` gives what is in no layer."""
    x = model.apply({"params": params}, tokens, method=LanguageModel.embed)
    block = Block(model.config)
    caches = []
    for layer, before in zip(*layers, strict=True):
        x, after = block.apply({"params": layer}, x, before, layout)
        caches.append(after)
    return model.apply({"params": params}, x, method=LanguageModel.normalise), caches
