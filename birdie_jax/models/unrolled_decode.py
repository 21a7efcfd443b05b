"""Decoding with the layers unrolled, each with its own unstacked parameters: for CPUs.

A scan over stacked layers takes each layer's parameters out of the stack. TPUs and GPUs read them in place;
XLA's CPU compiler copies them first, at every token as many bytes again as the step itself reads.
"""

from typing import Any, NamedTuple

from jaxtyping import Array, PyTree

from birdie_jax.array_types import Activations, TokenIds
from birdie_jax.models.block import Block
from birdie_jax.models.language_model import LanguageModel
from birdie_jax.models.layer_stacks import layer_configs, restacked, unstacked
from birdie_jax.models.layout import Layout
from birdie_jax.models.registry import Cache


class UnstackedLayers(NamedTuple):
    """The parameters and the cache of each layer, in their order.

    Attributes:
        params: the parameters of each block.
        caches: the cache of each mixer.
    """

    params: list[PyTree[Array]]
    caches: list[Cache]


def unstack_layers(model: LanguageModel, params: PyTree[Array], cache: Cache) -> UnstackedLayers:
    """Return the parameters and the cache of each layer, taken out of their stacks."""
    return UnstackedLayers(unstacked(model.config, params["blocks"]), unstacked(model.config, cache))


def stack_caches(model: LanguageModel, caches: list[Cache]) -> Cache:
    """Return the caches as the model has them, layers on the leading axis (`layer_stacks`)."""
    return restacked(model.config, caches)


def unrolled_hidden(
    model: LanguageModel, params: PyTree[Array], layers: UnstackedLayers, tokens: TokenIds, layout: Layout
) -> tuple[Activations, list[Cache]]:
    """Return what `LanguageModel.hidden` does, with unstacked caches.

    `params` holds all parameters of the model; those outside the layers are read.
    """
    x: Any = model.apply({"params": params}, tokens, layout, method=LanguageModel.embed)
    caches = []
    for config, layer_params, layer_cache in zip(layer_configs(model.config), *layers, strict=True):
        x, new_cache = Block(config).apply({"params": layer_params}, x, layer_cache, layout)
        caches.append(new_cache)
    normalised: Any = model.apply({"params": params}, x, method=LanguageModel.normalise)
    return normalised, caches
