"""Plots of the kernels that an encoder's state-space layers learned ("Pretraining Without Attention").

`draw_maps` and `draw_curves` are Figures 3 and 4 of the paper.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float32, PyTree
from matplotlib.figure import Figure

from birdie_jax.errors import ConfigError
from birdie_jax.models.s4d import state_space


class LayerKernels(NamedTuple):
    """Each layer's weights of the tokens around a token, by distance, for each head.

    Attributes:
        forward: float32 [layers, heads, length]: K_l of the token l places before.
        backward: float32 [layers, heads, length]: K_l of the token l places after.
    """

    forward: Float32[np.ndarray, "layers heads length"]
    backward: Float32[np.ndarray, "layers heads length"]


def layer_kernels(params: PyTree, length: int) -> LayerKernels:
    """Return the kernels of all layers, without D (`StateSpace.kernel`).

    Args:
        params: the parameters of bigs or stack_ssm.
        length: the number of distances, from 0.

    Raises:
        ConfigError: the model has no such layers.
    """
    routing = _inner(params, "blocks", "mixer", "routing")
    if routing is None:
        raise ConfigError("params: found a model without state-space layers; allowed: bigs, stack_ssm")

    @jax.jit
    @jax.vmap
    def kernels(layer: Any) -> Any:
        return state_space(layer).kernel(length)

    return LayerKernels(*(np.asarray(kernels(routing[f"{way}_ssm"])) for way in ("forward", "backward")))


def _inner(tree: Any, *path: str) -> Any:
    """Return the branch of a tree of parameters, or None if it has no such branch."""
    for name in path:
        if name not in tree:
            return None
        tree = tree[name]
    return tree


def scaled(kernels: LayerKernels) -> Float32[np.ndarray, "layers offsets"]:
    """Return |K| by layer and offset, from the farthest token before to the farthest token after.

    Both kernels have offset 0, the token itself, so it appears twice: last in the forward kernel, and first
    in the backward kernel.
    """
    sizes = [np.abs(kernel).mean(axis=1) for kernel in kernels]
    both = np.concatenate([sizes[0][:, ::-1], sizes[1]], axis=1)
    low, high = both.min(axis=1, keepdims=True), both.max(axis=1, keepdims=True)
    return (both - low) / np.where(high > low, high - low, 1)


def draw_maps(kernels: Mapping[str, LayerKernels]) -> Figure:
    """Return a map of all layers for each model."""
    layers = max(len(one.forward) for one in kernels.values())
    figure = Figure(figsize=(1 + 4 * len(kernels), 1.2 + 0.22 * layers), layout="constrained")
    for axes, (name, one) in zip(
        figure.subplots(1, len(kernels), squeeze=False)[0], kernels.items(), strict=True
    ):
        values = scaled(one)
        length = values.shape[1] // 2
        axes.imshow(values, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0, vmax=1)
        axes.axvline(length - 0.5, color="black", linewidth=0.6)
        axes.set_xticks(
            [0, length - 1, length, 2 * length - 1], [str(1 - length), "0", "0", str(length - 1)]
        )
        axes.set(title=name, xlabel="tokens before | after", ylabel="layer")
    return figure


def draw_curves(kernels: Mapping[str, LayerKernels], layers: Sequence[int]) -> Figure:
    """Return the curves of some layers, with all models in one panel."""
    figure = Figure(figsize=(7, 0.6 + 1.6 * len(layers)), layout="constrained")
    for axes, layer in zip(figure.subplots(len(layers), 1, squeeze=False)[:, 0], layers, strict=True):
        for number, (name, one) in enumerate(kernels.items()):
            distances = np.arange(one.forward.shape[-1])
            for sign, kernel in ((-1, one.forward), (1, one.backward)):
                label = name if sign < 0 else None
                axes.plot(
                    sign * distances, kernel[layer].mean(axis=0), f"C{number}", label=label, linewidth=1
                )
        axes.set_ylabel(f"layer {layer}")
    figure.axes[0].legend(fontsize="small")
    figure.axes[-1].set_xlabel("tokens before (forward kernel) and after (backward kernel)")
    return figure
