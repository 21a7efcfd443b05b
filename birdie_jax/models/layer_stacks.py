"""Which layer of a model is where in its stacked parameters and in its stacked caches.

A model whose layers are all alike has one stack of them, `blocks`. A hybrid has a stack for each layer of
its pattern, `blocks.periods.block_0` and on: layer l is number l // p in the stack of block l % p, p being
the layers of the pattern. What the last, incomplete period has is in stacks of one, `blocks.rest.block_0`
and on. Caches have the same structure.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.registry import mixer_config

PERIODS, REST = "periods", "rest"


class LayerStack(NamedTuple):
    """Layers of one kind, whose parameters are stacked on a leading axis.

    Attributes:
        keys: the names under which the stack is found, from the outermost on.
        layers: the numbers of its layers.
        config: the architecture of which its layers are blocks.
    """

    keys: tuple[str, ...]
    layers: range
    config: ModelConfig

    def of(self, tree: PyTree) -> PyTree:
        """Return what a tree of all layers has of the stack."""
        for key in self.keys:
            tree = tree[key]
        return tree


def is_hybrid(config: ModelConfig) -> bool:
    """Tell whether the layers are blocks of several models."""
    return bool(mixer_config(config).layer_models())


def pattern_configs(config: ModelConfig) -> tuple[ModelConfig, ...]:
    """Return the architectures of which the layers are blocks in turn: one where all layers are alike."""
    names = mixer_config(config).layer_models() or (config.name,)
    return tuple(replace(config, name=name) for name in names)


def layer_configs(config: ModelConfig) -> list[ModelConfig]:
    """Return for each layer the architecture of which it is a block."""
    pattern = pattern_configs(config)
    return [pattern[layer % len(pattern)] for layer in range(config.layers)]


def block_name(number: int) -> str:
    """Return the name of a block within its period."""
    return f"block_{number}"


def layer_stacks(config: ModelConfig) -> list[LayerStack]:
    """Return the stacks of a model's layers."""
    if not is_hybrid(config):
        return [LayerStack((), range(config.layers), config)]
    pattern = pattern_configs(config)
    whole = config.layers - config.layers % len(pattern)
    stacks = [
        LayerStack((PERIODS, block_name(number)), range(number, whole, len(pattern)), kind)
        for number, kind in enumerate(pattern)
        if whole
    ]
    for layer in range(whole, config.layers):
        number = layer - whole
        stacks.append(LayerStack((REST, block_name(number)), range(layer, layer + 1), pattern[number]))
    return stacks


def unstacked(config: ModelConfig, tree: PyTree[Array]) -> list[PyTree[Array]]:
    """Return the part of each layer, taken out of its stack."""
    parts: dict[int, PyTree[Array]] = {
        layer: jax.tree.map(lambda leaf, index=index: leaf[index], stack.of(tree))
        for stack in layer_stacks(config)
        for index, layer in enumerate(stack.layers)
    }
    return [parts[layer] for layer in range(config.layers)]


def restacked(config: ModelConfig, parts: Sequence[PyTree[Array]]) -> PyTree[Array]:
    """Return the tree of which `parts` are the parts of each layer."""
    return assemble(
        [
            (stack, jax.tree.map(lambda *leaves: jnp.stack(leaves), *[parts[one] for one in stack.layers]))
            for stack in layer_stacks(config)
        ]
    )


def assemble(stacked: Sequence[tuple[LayerStack, PyTree]]) -> PyTree:
    """Return the tree of a model's layers, of what it has of each stack."""
    tree: dict = {}
    for stack, part in stacked:
        if not stack.keys:
            return part
        group, name = stack.keys
        tree.setdefault(group, {})[name] = part
    return tree
