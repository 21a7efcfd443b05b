"""The blocks of a model, and the positions of its layers in stacked parameters and caches.

A model with layers of one kind has one stack of them, `blocks`. A hybrid has a stack for each layer of its
pattern, `blocks.periods.block_0` and so on: with a pattern of p layers, layer l has index l // p in the
stack of block l % p. The layers of the last, incomplete period are in stacks of one, `blocks.rest.block_0`
and so on. Caches have the same structure.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar, Unpack, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, PyTree

from birdie_jax.array_types import Activations, LayerKeys, RowKeys
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.axes import may_run_on_tpu, mesh_platform
from birdie_jax.models.layers import GatedMLP, RMSNorm, dropout
from birdie_jax.models.layout import Layout
from birdie_jax.models.parameters import SCANNED_COLLECTIONS
from birdie_jax.models.registry import Cache, Mixer, ModuleFields, architecture_of, mixer_config, mixer_type
from birdie_jax.models.rematerialisation import BLOCK_INPUT, policy_of

Module = TypeVar("Module", bound=nn.Module)

# Each unrolled layer adds one to one and a half seconds to compilation.
MAX_UNROLLED_LAYERS = 16


def scanned(block: type[Module], config: ModelConfig) -> Module:
    """Return the blocks of a model, with parameters stacked on a leading axis.

    Args:
        block: a module with `config` as its only field, and the call of `Block`.
        config: the architecture.
    """
    stack = scan_of(rematerialised(block, config), config.layers, layers_at_a_time(config))
    return stack(config)


def rematerialised(block: type[Module], config: ModelConfig) -> type[Module]:
    """Return the class of a block that rematerialises according to `config.remat`."""
    policy = policy_of(config.remat)
    if policy is None:
        return block
    return cast(type[Module], nn.remat(block, prevent_cse=False, policy=policy))


def scan_of(block: type[Module], length: int, unroll: int) -> type[Module]:
    """Return the class of `length` modules in sequence; it has the constructor of one module.

    Args:
        block: a module with the call of `Block`.
        length: the number of modules.
        unroll: the number of modules in the body of the loop.
    """
    stack = nn.scan(
        block,
        variable_axes=SCANNED_COLLECTIONS,  # pyright: ignore[reportArgumentType] - flax's stub is narrow
        split_rngs={"params": True},
        in_axes=(0, nn.broadcast, 0),  # pyright: ignore[reportArgumentType] - flax's stub is narrow
        length=length,
        unroll=unroll,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )
    return cast(type[Module], stack)


def layers_at_a_time(config: ModelConfig) -> int:
    """Return the number of layers in the body of the loop over layers; parameters are always stacked.

    On a CPU this is all layers of a shallow model. XLA's CPU compiler copies what a loop saves for the
    gradient, and each layer's parameters and their gradients, into stacks and out of them. These copies
    take a fifth of a training step. Rematerialised layers stay in the loop: outside of it, XLA may merge
    the second computation with the first, and keep the values that it should compute again.
    """
    shallow = config.layers <= MAX_UNROLLED_LAYERS and config.remat == "none"
    return config.layers if shallow and mesh_platform() == "cpu" else 1


def make_mixer(config: ModelConfig, **module: Unpack[ModuleFields]) -> Mixer:
    """Return the sequence mixer of `config.name`; `module` is its linen name, or `parent=None`."""
    mixer = mixer_type(config)
    if not config.scan_implementation and not may_run_on_tpu():
        config = replace(config, scan_implementation="xla")
    return mixer.from_config(config, output_scale=_residual_scale(config), **module)


def _residual_scale(config: ModelConfig) -> float:
    """Return the scale that keeps the residual stream's variance independent of depth.

    GPT-2 (Radford et al. 2019, section 2.3) and Mamba use it.
    """
    branches = 2 if architecture_of(config).has_mlp else 1
    return (branches * config.layers) ** -0.5


class Block(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)) if the model has a separate MLP.

    Attributes:
        config: the architecture.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Activations, cache: Cache | None, layout: Layout, row_keys: RowKeys | None = None
    ) -> tuple[Activations, Cache | None]:
        """Apply the block; argument order and result suit `nn.scan` over layers.

        Args:
            x: the residual stream.
            cache: the decoding cache; None in training.
            layout: the bounds of the samples.
            row_keys: the key of each row for dropout in this layer; None = no dropout.
        """
        config, x = self.config, checkpoint_name(x, BLOCK_INPUT)
        # The residual stream may have another type.
        dtype = jnp.dtype(config.dtype)
        normalised = RMSNorm(config.norm_epsilon, config.norm_offset, name="mixer_norm")(x).astype(dtype)
        mixed, cache = make_mixer(config, name="mixer")(normalised, layout, cache)
        x = x + dropout(mixed, config.dropout, row_keys, 0)
        if architecture_of(config).has_mlp:
            normalised = RMSNorm(config.norm_epsilon, config.norm_offset, name="mlp_norm")(x).astype(dtype)
            scale = _residual_scale(config)
            mlp = GatedMLP(
                config.mlp_features, dtype, scale, config.mlp_bias, config.mlp_activation, name="mlp"
            )
            x = x + dropout(mlp(normalised), config.dropout, row_keys, 1)
        return x, cache


PERIODS, REST = "periods", "rest"


class LayerStack(NamedTuple):
    """Layers of one kind, with parameters stacked on a leading axis.

    Attributes:
        keys: the path of the stack in the tree, outermost name first.
        layers: the numbers of its layers.
        config: the architecture of its layers.
    """

    keys: tuple[str, ...]
    layers: range
    config: ModelConfig

    def of(self, tree: PyTree) -> PyTree:
        """Return the stack's part of a tree of all layers."""
        for key in self.keys:
            tree = tree[key]
        return tree


def is_hybrid(config: ModelConfig) -> bool:
    """Return whether the layers are blocks of several models."""
    return bool(mixer_config(config).layer_models())


def pattern_configs(config: ModelConfig) -> tuple[ModelConfig, ...]:
    """Return the architectures that the layers cycle through: one if all layers are alike."""
    names = mixer_config(config).layer_models() or (config.name,)
    return tuple(replace(config, name=name) for name in names)


def layer_configs(config: ModelConfig) -> list[ModelConfig]:
    """Return the architecture of each layer."""
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


def periods(config: ModelConfig) -> list[list[LayerStack]]:
    """Return the stacks of the whole periods, then the stacks of the rest."""
    groups: dict[str, list[LayerStack]] = {}
    for stack in layer_stacks(config):
        groups.setdefault(stack.keys[0] if stack.keys else "", []).append(stack)
    return list(groups.values())


def unstacked(config: ModelConfig, tree: PyTree[Array]) -> list[PyTree[Array]]:
    """Return the part of each layer, sliced from its stack."""
    parts: dict[int, PyTree[Array]] = {
        layer: jax.tree.map(lambda leaf, index=index: leaf[index], stack.of(tree))
        for stack in layer_stacks(config)
        for index, layer in enumerate(stack.layers)
    }
    return [parts[layer] for layer in range(config.layers)]


def restacked(config: ModelConfig, parts: Sequence[PyTree[Array]]) -> PyTree[Array]:
    """Return the stacked tree of the layers `parts`."""
    return assemble(
        [
            (stack, jax.tree.map(lambda *leaves: jnp.stack(leaves), *[parts[one] for one in stack.layers]))
            for stack in layer_stacks(config)
        ]
    )


def assemble(stacked: Sequence[tuple[LayerStack, PyTree]]) -> PyTree:
    """Assemble the tree of a model's layers from the part of each stack."""
    tree: dict = {}
    for stack, part in stacked:
        if not stack.keys:
            return part
        group, name = stack.keys
        tree.setdefault(group, {})[name] = part
    return tree


class Period(nn.Module):
    """Blocks in sequence, `block_0` and so on.

    Attributes:
        kinds: the architecture of each block.
    """

    kinds: tuple[ModelConfig, ...]

    @nn.compact
    def __call__(
        self,
        x: Activations,
        cache: dict[str, Cache] | None,
        layout: Layout,
        block_keys: LayerKeys | None = None,
    ) -> tuple[Activations, dict[str, Cache] | None]:
        """Apply the blocks; arguments and results are as in `Block`, with a cache and a key per block."""
        after = {}
        for number, kind in enumerate(self.kinds):
            name = block_name(number)
            row_keys: RowKeys | None = None if block_keys is None else block_keys[number]
            # Rematerialise each block separately, as in a model with layers of one kind.
            block = rematerialised(Block, kind)(kind, name=name)
            x, after[name] = block(x, None if cache is None else cache[name], layout, row_keys)
        return x, None if cache is None else after


class HybridLayers(nn.Module):
    """All layers of a hybrid: its whole periods, and the rest of the last period.

    Attributes:
        config: the architecture.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: Activations,
        cache: dict[str, Cache] | None,
        layout: Layout,
        layer_keys: LayerKeys | None = None,
    ) -> tuple[Activations, dict[str, Cache] | None]:
        """Apply the layers; arguments and results are as in scanned blocks (`scanned`).

        Args:
            x: the residual stream.
            cache: the decoding cache, in the structure of `layer_stacks`; None in training.
            layout: the bounds of the samples.
            layer_keys: the keys of each layer for dropout; None = no dropout.
        """
        pattern, layers = pattern_configs(self.config), self.config.layers
        whole = layers - layers % len(pattern)
        after, first = {}, 0
        for name, end, kinds in ((PERIODS, whole, pattern), (REST, layers, pattern[: layers - whole])):
            if end == first:
                continue
            count = (end - first) // len(kinds)
            keys = layer_keys
            if keys is not None:
                keys = keys[first:end].reshape(count, len(kinds), *keys.shape[1:])
            unroll = count if layers_at_a_time(self.config) > 1 else 1
            group = scan_of(Period, count, unroll)(kinds, name=name)
            x, after[name] = group(x, None if cache is None else cache[name], layout, keys)
            first = end
        return x, None if cache is None else after
