r"""Draw the learned kernels of encoders: python -m birdie_jax.draw_kernels --workdir=DIR --output=a.svg.

    python -m birdie_jax.draw_kernels --workdir=runs/bigs_tiny --output=kernels.svg
    python -m birdie_jax.draw_kernels --workdir=runs/bigs_tiny --workdir=runs/finetuned --layers=2,3 \
        --reach=128 --output=change.svg

Without --layers, draws a map for each workdir. The map has a line for each layer and a column for each
token up to --reach places before and after. |K| is the mean over the layer's heads, scaled to 0 ... 1
within a layer over both directions. With --layers, draws the curves of K in these layers, in a colour per
workdir.
"""

import io

from absl import flags
from matplotlib.figure import Figure

from birdie_jax.command_line import define_path, start
from birdie_jax.errors import ConfigError, shown
from birdie_jax.reporting.kernels import draw_curves, draw_maps, layer_kernels
from birdie_jax.storage import make_path, write_whole
from birdie_jax.storage.outputs import Output, check_outputs
from birdie_jax.trained_model import model_of_workdir

_WORKDIR = flags.DEFINE_multi_string(
    "workdir", None, "Folder of a run; repeat for several runs.", required=True
)
_OUTPUT = define_path("output", "File to write the picture to; its suffix sets the format.", required=True)
_REACH = flags.DEFINE_integer("reach", 10, "Tokens to show before and after.", lower_bound=1)
_LAYERS = flags.DEFINE_list("layers", [], "Layers to draw curves of, separated by commas.")


def main(arguments: list[str]) -> None:
    """Draw the figure and print the name of its file.

    Raises:
        BirdieError: a run or the output file is unusable, or a model lacks a layer.
    """
    output = make_path(_OUTPUT.value)
    picture_format, formats = output.suffix.removeprefix("."), Figure().canvas.get_supported_filetypes()
    if picture_format.lower() not in formats:
        raise ConfigError(
            f"--output={output}: found the format {shown(picture_format)}; allowed: {', '.join(formats)}"
        )
    check_outputs([Output("--output", output)])
    if "" in _WORKDIR.value:
        raise ConfigError("--workdir: found ''; allowed: the folder of a run")
    kernels = {}
    for workdir in _WORKDIR.value:
        kernels[workdir] = layer_kernels(model_of_workdir(workdir).params, _REACH.value + 1)
        layers = [str(layer) for layer in range(len(kernels[workdir].forward))]
        if wrong := [layer for layer in _LAYERS.value if layer not in layers]:
            allowed = f"0 to {layers[-1]}, the layers of {workdir}"
            raise ConfigError(f"--layers: found {wrong[0]}; allowed: {allowed}")
    chosen = [int(layer) for layer in _LAYERS.value]
    figure = draw_curves(kernels, chosen) if chosen else draw_maps(kernels)
    contents = io.BytesIO()
    figure.savefig(contents, format=picture_format)
    write_whole(output, contents.getvalue())
    print(_OUTPUT.value)


if __name__ == "__main__":
    start("draw_kernels", main, OSError)
