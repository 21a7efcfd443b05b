r"""Draw the kernels that encoders learned: python -m birdie_jax.draw_kernels --workdir=DIR --output=a.svg.

    python -m birdie_jax.draw_kernels --workdir=runs/bigs_tiny --output=kernels.svg
    python -m birdie_jax.draw_kernels --workdir=runs/bigs_tiny --workdir=runs/finetuned --layers=2,3 \
        --reach=128 --output=change.svg

Without --layers a map for each workdir: a line for each layer, a column for each token up to --reach places
before and after; |K| is scaled to 0 ... 1 within a layer, its two directions together, and is the mean of
the layer's heads. With --layers the curves of K in these layers, a colour for each workdir.
"""

from absl import flags

from birdie_jax.command_line import define_path, start
from birdie_jax.errors import ConfigError
from birdie_jax.reporting.kernels import draw_curves, draw_maps, layer_kernels
from birdie_jax.trained_model import model_of_workdir

_WORKDIR = flags.DEFINE_multi_string("workdir", None, "Folder of a run; may be repeated.", required=True)
_OUTPUT = define_path("output", "File of the picture, in the format that its suffix names.", required=True)
_REACH = flags.DEFINE_integer(
    "reach", 10, "Tokens before and after that a map or curve shows.", lower_bound=1
)
_LAYERS = flags.DEFINE_list("layers", [], "Layers, separated by commas, whose curves are drawn.")


def main(arguments: list[str]) -> None:
    """Draw, and print the name of the file.

    Raises:
        BirdieError: a run or the picture's file cannot be used, or a model has no such layer.
    """
    kernels = {}
    for workdir in _WORKDIR.value:
        kernels[workdir] = layer_kernels(model_of_workdir(workdir).params, _REACH.value + 1)
        layers = [str(layer) for layer in range(len(kernels[workdir].forward))]
        if wrong := [layer for layer in _LAYERS.value if layer not in layers]:
            allowed = f"0 to {layers[-1]}, the layers of {workdir}"
            raise ConfigError(f"--layers: found {wrong[0]}; allowed: {allowed}")
    chosen = [int(layer) for layer in _LAYERS.value]
    figure = draw_curves(kernels, chosen) if chosen else draw_maps(kernels)
    try:
        figure.savefig(_OUTPUT.value)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--output={_OUTPUT.value}: {error}") from error
    print(_OUTPUT.value)


if __name__ == "__main__":
    start("draw_kernels", main)
