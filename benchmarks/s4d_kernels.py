"""A picture of the kernels that encoders have learned ("Pretraining Without Attention", figures 3 and 4).

    python -m benchmarks.s4d_kernels --workdir runs/bigs_tiny --output kernels.svg
    python -m benchmarks.s4d_kernels --workdir runs/bigs_tiny --workdir runs/finetuned --layers 2 3 \
        --reach 128 --output change.svg

Without --layers a map for each workdir: a line for each layer, a column for each token up to --reach places
before and after; |K| is scaled to 0 ... 1 within a layer, its two directions together, and is the mean of
the layer's heads. With --layers the curves of K in these layers, a colour for each workdir.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float32
from matplotlib.figure import Figure

from birdie_jax.models.s4d_kernels import LayerKernels, layer_kernels
from birdie_jax.trained_model import model_of_workdir


def scaled(kernels: LayerKernels) -> Float32[np.ndarray, "layers offsets"]:
    """Return |K| by layer and offset, from the farthest token before to the farthest after.

    Both kernels count the token itself: offset 0 stands twice, as the last of the forward kernel and the
    first of the backward one.
    """
    sizes = [np.abs(kernel).mean(axis=1) for kernel in kernels]
    both = np.concatenate([sizes[0][:, ::-1], sizes[1]], axis=1)
    low, high = both.min(axis=1, keepdims=True), both.max(axis=1, keepdims=True)
    return (both - low) / np.where(high > low, high - low, 1)


def draw_maps(kernels: Mapping[str, LayerKernels]) -> Figure:
    """Return a map of every layer for each model."""
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
    """Return the curves of some layers, those of all models together."""
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workdir", action="append", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--reach", type=int, default=10)
    parser.add_argument("--layers", type=int, nargs="*", default=[])
    options = parser.parse_args(arguments)
    kernels = {}
    for workdir in options.workdir:
        try:
            kernels[workdir] = layer_kernels(model_of_workdir(workdir).params, options.reach + 1)
        except ValueError as error:
            sys.exit(f"--workdir={workdir}: {error}")
        layers = len(kernels[workdir].forward)
        if wrong := [layer for layer in options.layers if not 0 <= layer < layers]:
            sys.exit(f"--layers: found {wrong[0]}; allowed: 0 to {layers - 1}, the layers of {workdir}")
    figure = draw_curves(kernels, options.layers) if options.layers else draw_maps(kernels)
    figure.savefig(options.output)


if __name__ == "__main__":
    main()
