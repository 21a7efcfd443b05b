"""Answer prompts: `python -m birdie_jax.generate --workdir=runs/tiny --prompt='def main(' --max_tokens=64`.

The prompt is prefilled once, bidirectionally where the model can; the answer is streamed as it is decoded.
With --prompt_file, JSONL with a field `prompt` gives JSONL with a field `generated`; stopped and started
again with the same --output, the command goes on after the last complete line. Answers go to standard
output or --output, everything else to standard error.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from absl import flags, logging

from birdie_jax.command_line import define_path, refuse, start
from birdie_jax.compiled_programs import cache_compiled_programs
from birdie_jax.config import ConfigError
from birdie_jax.engine import CheckpointError
from birdie_jax.generation import (
    STOP_TOKENS,
    Generator,
    Prompt,
    PromptError,
    PromptTooLong,
    Sampling,
    cache_grows,
    choose_arm,
    make_prompt,
)
from birdie_jax.generation.jsonl import (
    Record,
    check_output,
    count_finished_lines,
    describe_os_error,
    read_records,
    to_jsonl,
)
from birdie_jax.generation.text_generation import TextAnswer, generate_texts
from birdie_jax.generation.timing import describe_generation
from birdie_jax.interop import InteropError
from birdie_jax.objectives import OBJECTIVES
from birdie_jax.text import DataError
from birdie_jax.trained_model import TrainedModel, model_of_folder, model_of_workdir
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS, special_token_id

# More than any answer, vocabulary, batch or number of samples that memory holds.
_MANY = 1 << 20

_WORKDIR = define_path("workdir", "Folder of a run.")
_MODEL = define_path("model", "Folder that birdie_jax.export wrote, in place of --workdir.")
_STEP = flags.DEFINE_integer("step", None, "Step of the checkpoint; default: the newest.", lower_bound=0)
_PROMPT = flags.DEFINE_multi_string("prompt", [], "Text to answer; may be given several times.")
_PROMPT_FILE = define_path("prompt_file", "JSONL file with a field `prompt`, to answer all.")
_OUTPUT = define_path("output", "File for the answers to --prompt_file; default: standard output.")
_OBJECTIVE = flags.DEFINE_string(
    "objective",
    None,
    f"Ask in the form of this objective, or arm, of the run's mixture: {', '.join(OBJECTIVES)}. Default: "
    "prefix_lm, or else causal_lm. [MASK] in the prompt stands for a gap where the objective has gaps.",
)
_MAX_TOKENS = flags.DEFINE_integer(
    "max_tokens", 64, "Largest number of tokens of an answer.", lower_bound=1, upper_bound=_MANY
)
_TEMPERATURE = flags.DEFINE_float(
    "temperature", 0.0, "Divides the logits; 0: the most probable token, always."
)
_TOP_K = flags.DEFINE_integer(
    "top_k", 0, "Only the k most probable tokens; 0: all. Applied first.", lower_bound=0, upper_bound=_MANY
)
_TOP_P = flags.DEFINE_float(
    "top_p", 1.0, "Of these the most probable ones that hold this much probability."
)
_MIN_P = flags.DEFINE_float("min_p", 0.0, "Of these the ones at least this share as probable as the best.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of random choices.", lower_bound=0, upper_bound=1 << 30)
_SAMPLES = flags.DEFINE_integer(
    "samples", 1, "Answers to each prompt, with seeds from --seed on.", lower_bound=1, upper_bound=_MANY
)
_STOP = flags.DEFINE_multi_string(
    "stop", [], "Text before which an answer ends; may be given several times."
)
_STOP_TOKEN = flags.DEFINE_multi_string(
    "stop_token", [], "Special token, e.g. [SEP], that ends an answer besides [EOS] and [DONE]."
)
_BATCH = flags.DEFINE_integer(
    "batch", 8, "Answers that are generated at a time.", lower_bound=1, upper_bound=_MANY
)
_LENGTH_LIMIT = flags.DEFINE_integer(
    "length_limit",
    None,
    "Largest number of tokens of prompt and answer. Default: with attention the length of training's rows, "
    "otherwise no limit.",
    lower_bound=2,
    upper_bound=1 << 30,
)

_FAULTS = (ConfigError, DataError, CheckpointError, InteropError, PromptError, PromptTooLong)


def run() -> None:
    """Load the model and answer."""
    if bool(_PROMPT.value) == (_PROMPT_FILE.value is not None):
        raise PromptError("give either --prompt, which may be repeated, or --prompt_file")
    if _OUTPUT.value is not None and _PROMPT_FILE.value is None:
        raise PromptError(
            f"--output={_OUTPUT.value}: holds the answers to --prompt_file, which is not given"
        )
    if _STEP.value is not None and _MODEL.value is not None:
        raise PromptError(f"--step={_STEP.value}: chooses a checkpoint of --workdir; --model has one alone")
    try:
        sampling = Sampling(_TEMPERATURE.value, _TOP_K.value, _TOP_P.value, _MIN_P.value)
    except ValueError as error:
        raise PromptError(f"--{error}") from error
    try:
        stop_tokens = [*STOP_TOKENS, *map(special_token_id, _STOP_TOKEN.value)]
    except ValueError as error:
        raise PromptError(f"--stop_token: {error}") from error
    if "" in _STOP.value:
        raise PromptError("--stop: found ''; allowed: text of at least one character")
    records = read_records(Path(_PROMPT_FILE.value)) if _PROMPT_FILE.value is not None else None
    if _OUTPUT.value is not None:
        check_output(Path(_OUTPUT.value))
    trained = _load_model()
    generator = Generator(
        trained.model,
        trained.params,
        num_tokens=NUM_SPECIAL_TOKENS + trained.tokenizer.num_pieces,
        sampling=sampling,
        stop_tokens=stop_tokens,
        max_length=_max_length(trained),
    )
    arm = choose_arm(trained.arms, _OBJECTIVE.value)
    texts = _PROMPT.value if records is None else [record["prompt"] for record in records]
    prompts = []
    for number, text in enumerate(texts, start=1):
        where = f"{_PROMPT_FILE.value} line {number}" if records is not None else "--prompt"
        try:
            prompts.append(make_prompt(text, arm.objective, trained.tokenizer))
        except PromptError as error:
            raise PromptError(f"{where}: {error}") from error
        generator.check_length(prompts[-1], _MAX_TOKENS.value, where)
    print(f"{trained.origin}: {trained.model.config.name}, asked as {arm.name}", file=sys.stderr)
    if records is None:
        _answer_on_terminal(generator, trained, prompts)
    else:
        settings = _digest(trained, arm.name, stop_tokens)
        _answer_file(generator, trained, prompts, records, settings)
    for line in describe_generation(generator.model, generator.times):
        print(line, file=sys.stderr)


def _load_model() -> TrainedModel:
    """Return the model of --workdir or --model.

    Raises:
        PromptError: both flags are given, or none.
    """
    if _WORKDIR.value is not None and _MODEL.value is None:
        return model_of_workdir(_WORKDIR.value, _STEP.value)
    if _MODEL.value is not None and _WORKDIR.value is None:
        return model_of_folder(_MODEL.value)
    raise PromptError("give either --workdir, a run, or --model, an exported folder")


def _max_length(trained: TrainedModel) -> int | None:
    """Return the limit of a row's tokens: attention has no positions beyond training's rows."""
    if _LENGTH_LIMIT.value is not None:
        return _LENGTH_LIMIT.value
    return trained.config.batching.length if cache_grows(trained.model) else None


def _answer_on_terminal(generator: Generator, trained: TrainedModel, prompts: Sequence[Prompt]) -> None:
    """Stream one answer as it is decoded; print several one after the other, each under its number."""
    requests = [(prompt, sample) for prompt in prompts for sample in range(_SAMPLES.value)]
    if len(requests) == 1:
        _generate(generator, trained, requests, lambda _, text: print(text, end="", flush=True))
        print()
        return
    for first in range(0, len(requests), _BATCH.value):
        answers = _generate(generator, trained, requests[first : first + _BATCH.value])
        for number, answer in enumerate(answers, start=first):
            prompt, sample = divmod(number, _SAMPLES.value)
            print(f"--- prompt {prompt + 1}, sample {sample + 1}\n{answer.text}", flush=True)


def _answer_file(
    generator: Generator,
    trained: TrainedModel,
    prompts: Sequence[Prompt],
    records: Sequence[Record],
    settings: str,
) -> None:
    """Write a line for each record and sample, in order, after the lines of an earlier start."""
    requests = [(prompt, sample) for prompt in prompts for sample in range(_SAMPLES.value)]
    expected = [
        {**record, "sample": sample, "settings": settings}
        for record in records
        for sample in range(_SAMPLES.value)
    ]
    done = 0
    if _OUTPUT.value is not None:
        done = count_finished_lines(Path(_OUTPUT.value), expected)
        if done:
            print(f"{_OUTPUT.value}: going on after line {done}", file=sys.stderr)
    for first in range(done, len(requests), _BATCH.value):
        answers = _generate(generator, trained, requests[first : first + _BATCH.value])
        lines = to_jsonl(
            {
                **expected[first + number],
                "generated": answer.text,
                "generated_tokens": answer.tokens,
                "stopped_by": answer.stopped_by,
            }
            for number, answer in enumerate(answers)
        )
        if _OUTPUT.value is None:
            print(lines, end="", flush=True)
        else:
            _append(Path(_OUTPUT.value), lines)


def _append(path: Path, lines: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(lines)
    except OSError as error:
        raise PromptError(f"{path}: cannot be written: {describe_os_error(error)}") from error


def _generate(
    generator: Generator,
    trained: TrainedModel,
    requests: Sequence[tuple[Prompt, int]],
    show: Callable[[int, str], None] | None = None,
) -> list[TextAnswer]:
    return generate_texts(
        generator,
        trained.tokenizer,
        [prompt for prompt, _ in requests],
        max_tokens=_MAX_TOKENS.value,
        seeds=[_SEED.value + sample for _, sample in requests],
        stop_strings=_STOP.value,
        show=show,
    )


def _digest(trained: TrainedModel, arm: str, stop_tokens: Sequence[int]) -> str:
    """Return a short hash of everything that an answer depends on besides its prompt and sample."""
    sampling = Sampling(_TEMPERATURE.value, _TOP_K.value, _TOP_P.value, _MIN_P.value)
    parts = [
        trained.origin,
        arm,
        asdict(sampling),
        _MAX_TOKENS.value,
        _SEED.value,
        sorted(set(_STOP.value)),
        sorted(set(stop_tokens)),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def main(arguments: list[str]) -> None:
    """Parse flags and answer; print a user's error as one line."""
    logging.set_verbosity(logging.WARNING)
    cache_compiled_programs()
    try:
        run()
    except _FAULTS as error:
        refuse("generate", error)


if __name__ == "__main__":
    start("generate", main)
