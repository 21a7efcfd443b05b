"""Export a run's model to a folder that other programs can read.

    python -m birdie_jax.export --workdir=runs/tiny --output=exported/tiny

The folder has model.safetensors, config.json and tokenizer.model; `generate --model=DIR` reads it.
"""

from absl import flags, logging

from birdie_jax.command_line import define_path, refuse, start
from birdie_jax.config import ConfigError
from birdie_jax.engine.checkpoint_format import CheckpointError
from birdie_jax.interop import InteropError, write_model
from birdie_jax.storage import make_path
from birdie_jax.text import DataError
from birdie_jax.trained_model import model_of_workdir

_WORKDIR = define_path("workdir", "Folder of the run.", required=True)
_OUTPUT = define_path("output", "Folder to write; it must not exist.", required=True)
_STEP = flags.DEFINE_integer("step", None, "Step of the checkpoint; default: the newest.", lower_bound=0)


def main(arguments: list[str]) -> None:
    """Write the folder; print a user's error as one line."""
    logging.set_verbosity(logging.WARNING)
    try:
        output = make_path(_OUTPUT.value)
        trained = model_of_workdir(_WORKDIR.value, _STEP.value)
        write_model(output, trained.config, trained.params, trained.tokenizer, trained.step)
    except (ConfigError, DataError, CheckpointError, InteropError) as error:
        refuse("export", error)
    print(f"{trained.origin}: exported to {output}")


if __name__ == "__main__":
    start("export", main)
