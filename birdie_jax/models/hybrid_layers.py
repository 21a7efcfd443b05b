"""The layers of a hybrid: blocks of several models that take turns, in a scan over whole periods."""

import flax.linen as nn

from birdie_jax.array_types import Activations
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.block import Block
from birdie_jax.models.dropout import LayerKeys, RowKeys
from birdie_jax.models.layer_stacks import PERIODS, REST, block_name, pattern_configs
from birdie_jax.models.layout import Layout
from birdie_jax.models.registry import Cache
from birdie_jax.models.scanned_layers import layers_at_a_time, rematerialised, scan_of


class Period(nn.Module):
    """Blocks one after the other, `block_0` and on.

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
        """Apply the blocks; arguments and results are those of `Block`, caches and keys one a block."""
        after = {}
        for number, kind in enumerate(self.kinds):
            name = block_name(number)
            row_keys: RowKeys | None = None if block_keys is None else block_keys[number]
            # Each block by itself, as in a model whose layers are all alike.
            block = rematerialised(Block, kind)(kind, name=name)
            x, after[name] = block(x, None if cache is None else cache[name], layout, row_keys)
        return x, None if cache is None else after


class HybridLayers(nn.Module):
    """All layers of a hybrid: its whole periods, and what the last one has of the pattern.

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
        """Apply the layers; arguments and results are those of scanned blocks (`scanned`).

        Args:
            x: the residual stream.
            cache: what decoding carries, in the structure of `layer_stacks`; None in training.
            layout: the bounds of the samples.
            layer_keys: the keys of dropout of each layer; None: there is none.
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
