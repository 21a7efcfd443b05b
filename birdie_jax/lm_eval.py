"""Run LM Evaluation Harness: `python -m birdie_jax.lm_eval --model_args workdir=runs/tiny --tasks sciq`.

The harness (`lm-eval`, the extra `lm_eval`) cannot find models of other packages, so its command `lm_eval`
does not know `--model birdie_jax`. This command is the same with the same options. It adds
`--model birdie_jax` and `--batch_size auto` if you do not give them. A program that imports this module has
the model under the name `birdie_jax` in `lm_eval.simple_evaluate`. See docs/lm_harness.md.
"""

import argparse
import dataclasses
import sys
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from birdie_jax.command_line import refuse
from birdie_jax.errors import BirdieError, ConfigError, shown

try:
    # The harness imports its own models only if none are registered.
    import lm_eval.models  # noqa: F401 # pyright: ignore[reportMissingImports]
    from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]
    from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]
    from lm_eval.utils import simple_parse_args_string  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as error:
    if __name__ != "__main__":
        raise
    message = f"needs the package {error.name}: pip install 'birdie-jax[lm_eval]'"
    refuse("lm_eval", ConfigError(message))

from birdie_jax.compiled_programs import cache_compiled_programs
from birdie_jax.generation import choose_arm
from birdie_jax.storage import Bounds, parse_typed
from birdie_jax.storage.outputs import Output, check_outputs
from birdie_jax.tasks.lm_harness import HarnessModel, Normalization
from birdie_jax.tasks.task_model import TaskModel, max_length_of
from birdie_jax.trained_model import TrainedModel, model_of_folder, model_of_workdir

_Count = Annotated[int, Bounds(at_least=1, at_most=2**30)]
_ROWS = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelArguments:
    """The arguments of `--model_args`.

    Attributes:
        workdir: the folder of a run.
        model: the folder that birdie_jax.export wrote, instead of `workdir`.
        step: the step of the checkpoint; None: the newest.
        objective: the objective or arm of the run's mixture that defines the prompt format; None:
            prefix_lm, or else causal_lm.
        batch_size: the maximum number of contexts to read at a time; "auto": 32.
        batch_tokens: the maximum number of positions in a batch of prompts, except for a single long
            prompt.
        max_length: the maximum number of tokens of prompt and continuation; None: for attention without a
            shorter window, the length of the training rows; otherwise no limit.
        normalization: "none", or "tokens" for the paper's accuracy (`HarnessModel`).
    """

    workdir: str | None = None
    model: str | None = None
    step: Annotated[int, Bounds(at_least=0, at_most=2**31)] | None = None
    objective: str | None = None
    batch_size: _Count | str = "auto"
    batch_tokens: _Count = 65_536
    max_length: Annotated[int, Bounds(at_least=2, at_most=2**30)] | None = None
    normalization: Normalization = "none"


@register_model("birdie_jax")
class BirdieModel(HarnessModel):
    """The model of a run for the harness, from `ModelArguments`."""

    def __init__(self, **arguments: Any):
        """Load the model.

        Raises:
            ConfigError: an argument is unknown or unusable.
            CheckpointError: the checkpoint is missing or damaged.
        """
        # Ignore the harness's options for torch models: JAX detects its devices, and batches are by length.
        for name in ("device", "max_batch_size"):
            arguments.pop(name, None)
        parsed = parse_model_arguments(arguments)
        trained = _load(parsed)
        limit = parsed.max_length or max_length_of(trained.model, trained.config)
        model = TaskModel(
            trained.model,
            trained.params,
            trained.tokenizer,
            choose_arm(trained.arms, parsed.objective),
            max_length=limit,
            rows=_rows(parsed.batch_size),
            batch_tokens=parsed.batch_tokens,
        )
        super().__init__(model, parsed.normalization)
        self._trained, self._format = trained, model.arm.name

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> "BirdieModel":
        """Return the model; `arg_dict` has precedence over the command's options."""
        options = {name: value for name, value in (additional_config or {}).items() if value is not None}
        return cls(**{**options, **arg_dict})

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: Mapping[str, Any] | None = None
    ) -> "BirdieModel":
        """Return the model from a text such as `workdir=runs/tiny,step=200`."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    def get_model_info(self) -> dict[str, Any]:
        """Return the model's description for the harness's results."""
        return {
            "origin": self._trained.origin,
            "step": self._trained.step,
            "architecture": self._trained.model.config.name,
            "prompt_format": self._format,
            "normalization": self._normalization,
        }


def parse_model_arguments(arguments: Mapping[str, Any]) -> ModelArguments:
    """Check and return the arguments.

    Raises:
        ConfigError: an argument is unknown or unusable; the message names it, its value and the allowed
            ones.
    """
    hints = typing.get_type_hints(ModelArguments, include_extras=True)
    for name in arguments:
        if name not in hints:
            raise ConfigError(f"--model_args: found {shown(name)}; allowed: {', '.join(hints)}")
    # The harness parses a folder named 2026 as a number.
    texts = {name: str(arguments[name]) for name in ("workdir", "model") if arguments.get(name) is not None}
    parsed = ModelArguments(
        **{
            name: parse_typed(hints[name], value, f"--model_args {name}", ConfigError)
            for name, value in {**arguments, **texts}.items()
        }
    )
    _rows(parsed.batch_size)
    if (parsed.workdir is None) == (parsed.model is None):
        raise ConfigError("--model_args: give either workdir=DIR, a run, or model=DIR, an exported folder")
    if parsed.step is not None and parsed.model is not None:
        raise ConfigError(
            "--model_args step: found a model, which has one checkpoint; allowed: with workdir"
        )
    return parsed


def _rows(batch_size: int | str) -> int:
    if isinstance(batch_size, int):
        return batch_size
    # The harness passes the number of `--batch_size 8` as text; auto:N means N attempts.
    if batch_size.isdecimal() and int(batch_size) >= 1:
        return int(batch_size)
    if batch_size.split(":")[0] != "auto":
        allowed = f"auto ({_ROWS}) or a number of at least 1"
        raise ConfigError(f"--model_args batch_size: found {shown(batch_size)}; allowed: {allowed}")
    return _ROWS


def _load(arguments: ModelArguments) -> TrainedModel:
    if arguments.workdir is not None:
        return model_of_workdir(arguments.workdir, arguments.step)
    assert arguments.model is not None  # `parse_model_arguments` checks this
    return model_of_folder(arguments.model)


def with_defaults(arguments: Sequence[str]) -> list[str]:
    """Return the harness's arguments with the options that this command adds."""
    given = list(arguments)
    # A file of options has its own values.
    if (given and given[0] in ("ls", "validate")) or any(
        one.split("=")[0] in ("--config", "-C") for one in given
    ):
        return given
    for options, value in ((("--model", "-M"), "birdie_jax"), (("--batch_size", "-b"), "auto")):
        if not any(one.split("=")[0] in options for one in given):
            given += [options[0], value]
    return given


def check_output(arguments: Sequence[str]) -> None:
    """Check that the harness can write below `--output_path`, before the first question.

    Raises:
        ConfigError: the harness cannot write there.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--output_path", "-o")
    given = parser.parse_known_args(arguments)[0].output_path
    if given:
        # A file name is the name of the results, without the date.
        folder = Path(given).parent if Path(given).suffix == ".json" else Path(given)
        check_outputs([Output("--output_path", folder, "folder")])


def main() -> None:
    """Run the harness's command; print a user's error as one line."""
    cache_compiled_programs()
    sys.argv[1:] = with_defaults(sys.argv[1:])
    try:
        check_output(sys.argv[1:])
        cli_evaluate()
    except BirdieError as error:
        refuse("lm_eval", error)


if __name__ == "__main__":
    main()
