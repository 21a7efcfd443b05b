"""Answer prompts: `python -m birdie_jax.generate --workdir=runs/tiny --prompt='def main(' --max_tokens=64`.

The command prefills the prompt once, bidirectionally if the model can, and streams the decoded answer.
To read a long context once and answer many questions, save its state with --context_file and --save_state.
Then load the state with --load_state and pass the questions as prompts (docs/saved_state.md).
With --keep the layers read fewer of a prompt's tokens as depth grows (docs/prune.md).
--prompt_file takes JSONL with a field `prompt` and gives JSONL with a field `generated`. If you stop the
command and start it again with the same --output, it resumes after the last complete line. Answers go to
standard output or --output, everything else to standard error.
"""

from birdie_jax.host_memory import keep_freed_memory

if __name__ == "__main__":
    # Call this before the imports below start threads.
    keep_freed_memory()

# isort: split
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from absl import flags, logging

from birdie_jax.command_line import define_path, start, with_example
from birdie_jax.compiled_programs import cache_compiled_programs
from birdie_jax.errors import PromptError, shown
from birdie_jax.generation import (
    STOP_TOKENS,
    Generator,
    Prompt,
    Sampling,
    SavedState,
    choose_arm,
    make_context,
    make_prompt,
    make_question,
)
from birdie_jax.generation.answering import Answering, Record, read_records
from birdie_jax.generation.timing import describe_generation
from birdie_jax.interop import StoredState, read_state, write_state
from birdie_jax.models.encoder_config import refuse_cache
from birdie_jax.models.registry import architecture_of
from birdie_jax.objectives import OBJECTIVES, Arm
from birdie_jax.pruning import parse_pruning
from birdie_jax.storage import make_path
from birdie_jax.storage.outputs import Input, Output, check_outputs
from birdie_jax.tasks.task_model import max_length_of
from birdie_jax.text import locate, read_text
from birdie_jax.trained_model import TrainedModel, model_of_folder, model_of_workdir
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS, special_token_id

# Exceeds any answer, vocabulary, batch or number of samples that fits in memory.
_MANY = 1 << 20

_WORKDIR = define_path("workdir", "Folder of a run.")
_MODEL = define_path("model", "Folder that birdie_jax.export wrote, in place of --workdir.")
_STEP = flags.DEFINE_integer("step", None, "Step of the checkpoint; default: the newest.", lower_bound=0)
_AVERAGE = flags.DEFINE_bool(
    "average", False, "Use the average of the parameters that the hook parameter_average keeps."
)
_PROMPT = flags.DEFINE_multi_string("prompt", [], "Text to answer; may be given several times.")
_PROMPT_FILE = define_path("prompt_file", "JSONL file with a field `prompt`, to answer all.")
_OUTPUT = define_path("output", "File for the answers to --prompt_file; default: standard output.")
_OBJECTIVE = flags.DEFINE_string(
    "objective",
    None,
    f"Form of the prompt: an objective, or an arm of the run's mixture: {', '.join(OBJECTIVES)}. Default: "
    "prefix_lm, or else causal_lm. [MASK] in the prompt marks a gap, if the objective has gaps.",
)
_MAX_TOKENS = flags.DEFINE_integer(
    "max_tokens", 64, "Largest number of tokens of an answer.", lower_bound=1, upper_bound=_MANY
)
_TEMPERATURE = flags.DEFINE_float(
    "temperature", 0.0, "Divisor of the logits, 1e-6 to 1e6; 0: always choose the most probable token."
)
_TOP_K = flags.DEFINE_integer(
    "top_k", 0, "Only the k most probable tokens; 0: all. Applied first.", lower_bound=0, upper_bound=_MANY
)
_TOP_P = flags.DEFINE_float(
    "top_p", 1.0, "Of these, only the most probable tokens that together have this probability."
)
_MIN_P = flags.DEFINE_float(
    "min_p", 0.0, "Of these, only tokens with this share of the best one's probability or more."
)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of random choices.", lower_bound=0, upper_bound=1 << 30)
_SAMPLES = flags.DEFINE_integer(
    "samples", 1, "Answers to each prompt; their seeds start at --seed.", lower_bound=1, upper_bound=_MANY
)
_STOP = flags.DEFINE_multi_string(
    "stop", [], "Text that ends an answer and is not part of it; may be given several times."
)
_STOP_TOKEN = flags.DEFINE_multi_string(
    "stop_token", [], "Special token, e.g. [SEP], that ends an answer, as [EOS] and [DONE] do."
)
_BATCH = flags.DEFINE_integer(
    "batch", 8, "Number of answers to generate at a time.", lower_bound=1, upper_bound=_MANY
)
_CONTEXT_FILE = define_path("context_file", "UTF-8 text to read before the prompts.")
_SAVE_STATE = define_path("save_state", "File for the state after --context_file.")
_LOAD_STATE = define_path("load_state", "File that --save_state wrote; the prompts continue its state.")
_CONTEXT_CHUNK = flags.DEFINE_integer(
    "context_chunk",
    None,
    "Tokens of --context_file that a causal model reads at a time. Default: 8,192.",
    lower_bound=1,
    upper_bound=1 << 30,
)
_KEEP = flags.DEFINE_float(
    "keep",
    1.0,
    "Share of the prompt's tokens at the end of the pruning schedule; 1: all layers read all tokens.",
)
_PRUNING = flags.DEFINE_multi_string(
    "pruning",
    [],
    "Setting of pruning, NAME=VALUE: policy, schedule, shares, norm, readout, directions, keep_first, "
    "seed; may be given several times (docs/prune.md).",
)
_LENGTH_LIMIT = flags.DEFINE_integer(
    "length_limit",
    None,
    "Largest number of tokens of prompt and answer. Default: with attention the length of training's rows, "
    "unless a window is within it; otherwise no limit.",
    lower_bound=2,
    upper_bound=1 << 30,
)


def run() -> None:
    """Load the model and answer."""
    given = bool(_PROMPT.value) + (_PROMPT_FILE.value is not None)
    if given > 1 or (given == 0 and _SAVE_STATE.value is None):
        raise PromptError(with_example("give either --prompt, which may be repeated, or --prompt_file"))
    _check_state_flags()
    pruning = parse_pruning(_KEEP.value, _PRUNING.value)
    if pruning.keep == 1 and _PRUNING.value:
        raise PromptError(
            f"--pruning: found {shown(_PRUNING.value[0])}; allowed: with --keep below 1, which "
            "turns pruning on"
        )
    if pruning.keep < 1 and (_CONTEXT_FILE.value is not None or _LOAD_STATE.value is not None):
        raise PromptError(
            f"--keep={_KEEP.value}: prunes prompts; allowed: 1 with --context_file and --load_state, whose "
            "text is read whole"
        )
    if _OUTPUT.value is not None and _PROMPT_FILE.value is None:
        raise PromptError(f"--output={_OUTPUT.value}: requires --prompt_file, which is not given")
    if _STEP.value is not None and _MODEL.value is not None:
        raise PromptError(f"--step={_STEP.value}: chooses a checkpoint of --workdir; --model has only one")
    if _AVERAGE.value and _MODEL.value is not None:
        raise PromptError("--average: requires --workdir; --model has only the exported parameters")
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
    _check_files()
    records = read_records(Path(_PROMPT_FILE.value)) if _PROMPT_FILE.value is not None else None
    stored = None if _LOAD_STATE.value is None else read_state(make_path(_LOAD_STATE.value))
    context = None if _CONTEXT_FILE.value is None else read_text(locate(_CONTEXT_FILE.value))
    trained = _load_model()
    if architecture_of(trained.model.config).encoder:
        # Check this for every model, before the first compilation.
        refuse_cache(trained.model.config)
    generator = Generator(
        trained.model,
        trained.params,
        num_tokens=NUM_SPECIAL_TOKENS + trained.tokenizer.num_pieces,
        sampling=sampling,
        stop_tokens=stop_tokens,
        max_length=_max_length(trained),
        pruning=pruning,
    )
    state = None if stored is None else stored.state_of(trained.model, trained.identify())
    arm = _choose_arm(trained, stored)
    prompts = _make_prompts(trained, arm, records)
    if context is not None:
        state = _read_context(generator, trained, arm, context)
    for number, prompt in enumerate(prompts, start=1):
        generator.check_length(prompt, _MAX_TOKENS.value, _where(number), state)
    print(f"{trained.origin}: {trained.model.config.name}, prompt form: {arm.name}", file=sys.stderr)
    answering = Answering(
        generator,
        trained.tokenizer,
        state,
        max_tokens=_MAX_TOKENS.value,
        samples=_SAMPLES.value,
        first_seed=_SEED.value,
        stop_strings=_STOP.value,
        batch=_BATCH.value,
    )
    if records is not None:
        settings = _digest(trained, arm.name, stop_tokens, state)
        output = None if _OUTPUT.value is None else Path(_OUTPUT.value)
        answering.write_answers(prompts, records, settings, output)
    elif prompts:
        answering.print_answers(prompts)
    for line in describe_generation(generator.model, generator.times):
        print(line, file=sys.stderr)


def _load_model() -> TrainedModel:
    """Return the model of --workdir or --model.

    Raises:
        PromptError: both flags or neither are set.
    """
    if _WORKDIR.value is not None and _MODEL.value is None:
        return model_of_workdir(_WORKDIR.value, _STEP.value, average=_AVERAGE.value)
    if _MODEL.value is not None and _WORKDIR.value is None:
        return model_of_folder(_MODEL.value)
    raise PromptError(with_example("give either --workdir, a run, or --model, an exported folder"))


def _make_prompts(trained: TrainedModel, arm: Arm, records: Sequence[Record] | None) -> list[Prompt]:
    """Return --prompt or the prompts of --prompt_file; after a context, they are questions."""
    follows = _CONTEXT_FILE.value is not None or _LOAD_STATE.value is not None
    make = make_question if follows else make_prompt
    texts = _PROMPT.value if records is None else [record["prompt"] for record in records]
    prompts = []
    for number, text in enumerate(texts, start=1):
        try:
            prompts.append(make(text, arm.objective, trained.tokenizer))
        except PromptError as error:
            raise PromptError(f"{_where(number)}: {error}") from error
    return prompts


def _where(number: int) -> str:
    if _PROMPT_FILE.value is not None:
        return f"{_PROMPT_FILE.value} line {number}"
    return "--prompt" if len(_PROMPT.value) == 1 else f"--prompt number {number}"


def _check_state_flags() -> None:
    """Check that the flags about states agree."""
    if _LOAD_STATE.value is not None and _CONTEXT_FILE.value is not None:
        raise PromptError("give either --context_file, a text to read, or --load_state, a saved state")
    for name, flag in (("save_state", _SAVE_STATE), ("context_chunk", _CONTEXT_CHUNK)):
        if flag.value is not None and _CONTEXT_FILE.value is None:
            raise PromptError(f"--{name}={flag.value}: requires --context_file, which is not given")


def _check_files() -> None:
    """Check that the outputs can be written and overwrite no input."""
    read = (("prompt_file", _PROMPT_FILE), ("context_file", _CONTEXT_FILE), ("load_state", _LOAD_STATE))
    outputs = [Output("--output", _OUTPUT.value, "lines")] if _OUTPUT.value is not None else []
    if _SAVE_STATE.value is not None:
        outputs.append(Output("--save_state", _SAVE_STATE.value))
    check_outputs(
        outputs, [Input(f"--{name}", flag.value) for name, flag in read if flag.value is not None]
    )


def _choose_arm(trained: TrainedModel, stored: StoredState | None) -> Arm:
    """Return the arm of --objective, or of a loaded state."""
    if stored is None:
        return choose_arm(trained.arms, _OBJECTIVE.value)
    read = stored.description
    arm = choose_arm(trained.arms, read.arm if _OBJECTIVE.value is None else _OBJECTIVE.value)
    if (arm.objective.name, arm.objective.marker) != (read.objective, read.marker):
        raise PromptError(
            f"objective {arm.name}: {stored.path} was read in the form of {read.arm}; allowed: that one"
        )
    return arm


def _read_context(generator: Generator, trained: TrainedModel, arm: Arm, text: str) -> SavedState:
    """Read --context_file, and save the state if --save_state is set."""
    try:
        prompt = make_context(text, arm.objective, trained.tokenizer)
    except PromptError as error:
        raise PromptError(f"{_CONTEXT_FILE.value}: {error}") from error
    state = generator.read_state(prompt, _CONTEXT_CHUNK.value)
    if _SAVE_STATE.value is not None:
        path = make_path(_SAVE_STATE.value)
        identity, objective = trained.identify(), arm.objective
        size = write_state(
            path, state, identity, arm=arm.name, objective=objective.name, marker=objective.marker
        )
        print(f"{path}: the state after {state.tokens:,} tokens, {size:,} bytes", file=sys.stderr)
    return state


def _max_length(trained: TrainedModel) -> int | None:
    """Return the maximum number of tokens in a row, from the flag or else from the model."""
    if _LENGTH_LIMIT.value is not None:
        return _LENGTH_LIMIT.value
    return max_length_of(trained.model, trained.config)


def _digest(trained: TrainedModel, arm: str, stop_tokens: Sequence[int], state: SavedState | None) -> str:
    """Return a short hash of all that determines an answer, except prompt and sample."""
    sampling = Sampling(_TEMPERATURE.value, _TOP_K.value, _TOP_P.value, _MIN_P.value)
    identity = trained.identify()
    parts = [
        [
            identity.architecture_sha256,
            identity.parameters_sha256,
            identity.tokenizer_sha256,
            identity.dtype,
        ],
        arm,
        asdict(sampling),
        _MAX_TOKENS.value,
        _SEED.value,
        sorted(set(_STOP.value)),
        sorted(set(stop_tokens)),
    ]
    if _KEEP.value < 1:
        parts.append([_KEEP.value, sorted(_PRUNING.value)])
    if state is not None:
        parts.append([state.tokens, state.context_tokens, state.checksum])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def main(arguments: list[str]) -> None:
    """Parse flags and answer."""
    logging.set_verbosity(logging.WARNING)
    cache_compiled_programs()
    run()


if __name__ == "__main__":
    start("generate", main)
