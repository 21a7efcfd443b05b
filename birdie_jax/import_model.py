"""Import a Hugging Face model, to generate with it, evaluate it and fine-tune it.

    python -m birdie_jax.import_model --source=mamba-130m-hf --output=imported/mamba-130m

--source is a folder with config.json, tokenizer.json and safetensors. It holds a Mamba, Mamba-2 or Gated
DeltaNet (docs/mamba.md), or a RecurrentGemma (docs/griffin.md). The new folder is like those of
birdie_jax.export: `generate --model=DIR` and `evaluate --model=DIR` read it, and `--config.init.from=DIR`
starts from it. The command downloads nothing.
"""

from absl import flags, logging

from birdie_jax.command_line import define_path, start
from birdie_jax.interop import read_huggingface, write_model
from birdie_jax.storage import make_path
from birdie_jax.storage.outputs import Input, Output, check_outputs

_SOURCE = define_path("source", "Folder of a Hugging Face model.", required=True)
_OUTPUT = define_path("output", "Folder to write; it must not exist.", required=True)
_DTYPE = flags.DEFINE_enum(
    "dtype",
    None,
    ["float32", "bfloat16"],
    "Type of activations and matrix products; the folder keeps the type of each parameter. Default: "
    "float32, or of a model that birdie_jax.export wrote its own.",
)


def main(arguments: list[str]) -> None:
    """Write the folder."""
    logging.set_verbosity(logging.WARNING)
    read = Input("--source", _SOURCE.value)
    check_outputs([Output("--output", _OUTPUT.value, "new folder")], [read])
    output = make_path(_OUTPUT.value)
    read = read_huggingface(_SOURCE.value, _DTYPE.value)
    write_model(output, *read)
    model = read.config.model
    print(f"{_SOURCE.value}: {model.name}, {model.layers} layers of {model.features}, imported to {output}")


if __name__ == "__main__":
    start("import_model", main)
