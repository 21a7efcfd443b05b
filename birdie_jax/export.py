"""Export a run's model to a folder that other programs can read.

    python -m birdie_jax.export --workdir=runs/tiny --output=exported/tiny

The folder has model.safetensors, config.json, tokenizer.model and a model card, README.md.
`generate --model=DIR` reads it. With --format=transformers, `transformers` opens the folder without JAX, by
PyTorch files in the folder (docs/transformers.md). Models that birdie_jax.import_model imported, without
training here, return to the format of their own program (docs/mamba.md, docs/griffin.md).
"""

from absl import flags, logging

from birdie_jax.command_line import define_path, start, with_example
from birdie_jax.errors import ConfigError
from birdie_jax.interop import (
    ExportedModel,
    has_counterpart,
    read_model,
    write_huggingface,
    write_model,
    write_transformers,
)
from birdie_jax.interop.model_folder import CARD
from birdie_jax.model_card import model_card
from birdie_jax.storage import exists, make_path, read_bytes
from birdie_jax.storage.outputs import Input, Output, check_outputs
from birdie_jax.trained_model import model_of_workdir, prompt_form

_WORKDIR = define_path("workdir", "Folder of the run.")
_MODEL = define_path(
    "model", "Folder that birdie_jax.export or birdie_jax.import_model wrote, in place of --workdir."
)
_OUTPUT = define_path("output", "Folder to write; it must not exist.", required=True)
_STEP = flags.DEFINE_integer("step", None, "Step of the checkpoint; default: the newest.", lower_bound=0)
_AVERAGE = flags.DEFINE_bool(
    "average", False, "Use the average of the parameters that the hook parameter_average keeps."
)
_FORMAT = flags.DEFINE_enum(
    "format", "birdie_jax", ["birdie_jax", "transformers"], "The program that reads the folder."
)


def _load_model() -> tuple[str, ExportedModel, str]:
    """Return a text about the source, --workdir or --model, the stored model, and its card.

    Raises:
        ConfigError: both flags or neither are set, or --step is set with --model.
    """
    if (_WORKDIR.value is None) == (_MODEL.value is None):
        raise ConfigError(with_example("give either --workdir, a run, or --model, an exported folder"))
    if _MODEL.value is None:
        trained = model_of_workdir(_WORKDIR.value, _STEP.value, average=_AVERAGE.value)
        read = ExportedModel(trained.config, trained.params, trained.tokenizer, trained.step)
        name = make_path(_OUTPUT.value).name
        for_transformers = _FORMAT.value == "transformers"
        card = model_card(_WORKDIR.value, trained, name, for_transformers=for_transformers)
        return trained.origin, read, card
    if _STEP.value is not None:
        raise ConfigError(f"--step={_STEP.value}: chooses a checkpoint of --workdir; --model has only one")
    if _AVERAGE.value:
        raise ConfigError("--average: requires --workdir; --model has only the exported parameters")
    read = read_model(make_path(_MODEL.value))
    card = make_path(_MODEL.value) / CARD
    kept = read_bytes(card).decode(errors="replace") if exists(card) else ""
    return f"{_MODEL.value} step {read.step}", read, kept


def main(arguments: list[str]) -> None:
    """Write the folder."""
    logging.set_verbosity(logging.WARNING)
    read = Input("--workdir or --model", _WORKDIR.value or _MODEL.value or "")
    check_outputs([Output("--output", _OUTPUT.value, "new folder")], [read])
    output = make_path(_OUTPUT.value)
    origin, model, card = _load_model()
    if _FORMAT.value == "birdie_jax":
        write_model(output, *model, card=card)
    elif has_counterpart(model.config.model):
        write_huggingface(output, model.config, model.params, model.tokenizer, card=card)
    else:
        write_transformers(output, model, prompt_form(model.config), card=card)
    print(f"{origin}: exported to {output}")


if __name__ == "__main__":
    start("export", main)
