"""Layers as a scan: one compiled body for all of them, their parameters stacked on a leading axis."""

from typing import Any

import flax.linen as nn
import jax

from birdie_jax.config_sections import ModelConfig
from birdie_jax.models import matmul
from birdie_jax.models.axes import mesh_platform
from birdie_jax.models.parameters import SCANNED_COLLECTIONS

REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.save_only_these_names(matmul.NAME),
    "full": jax.checkpoint_policies.nothing_saveable,
}
"""What a rematerialised block keeps for the gradient, by `config.model.remat`."""

# Compiling takes one to one and a half seconds more for each layer that is unrolled.
MAX_UNROLLED_LAYERS = 16


def scanned(block: type[nn.Module], config: ModelConfig) -> nn.Module:
    """Return the blocks of a model, their parameters stacked on a leading axis.

    Args:
        block: a module with `config` alone, called as `Block` is.
        config: the architecture.
    """
    stack = scan_of(rematerialised(block, config), config.layers, layers_at_a_time(config))
    return stack(config)


def rematerialised(block: type[nn.Module], config: ModelConfig) -> Any:
    """Return the class of a block that computes again for the gradient what `config.remat` says."""
    if config.remat == "none":
        return block
    return nn.remat(block, prevent_cse=False, policy=REMAT_POLICIES[config.remat])


def scan_of(block: type[nn.Module], length: int, unroll: int) -> Any:
    """Return the class of `length` modules one after the other, which is made as one of them is.

    Args:
        block: a module that is called as `Block` is.
        length: the number of modules.
        unroll: how many of them the body of the loop has.
    """
    return nn.scan(
        block,
        variable_axes=SCANNED_COLLECTIONS,  # pyright: ignore[reportArgumentType] - flax's stub is narrow
        split_rngs={"params": True},
        in_axes=(0, nn.broadcast, 0),  # pyright: ignore[reportArgumentType] - flax's stub is narrow
        length=length,
        unroll=unroll,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )


def layers_at_a_time(config: ModelConfig) -> int:
    """Return how many layers the body of the loop over layers has; parameters are stacked in any case.

    On a CPU all of a shallow model: XLA's CPU compiler copies what a loop saves for the gradient into
    stacks and out of them, and each layer's parameters and their gradients, which takes a fifth of a train
    step. Rematerialised layers stay in the loop: outside of it XLA may merge the second computation with
    the first, and hold what was to be computed again.
    """
    shallow = config.layers <= MAX_UNROLLED_LAYERS and config.remat == "none"
    return config.layers if shallow and mesh_platform() == "cpu" else 1
