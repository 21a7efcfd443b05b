"""Command lines of every verb: valid ones, changed with missing, unknown, repeated or hostile flags."""

import os
import random
import re
import shutil
from functools import cache
from pathlib import Path

from benchmarks.fuzzing.cases import Case
from benchmarks.fuzzing.mutations import HOSTILE_TEXTS
from benchmarks.fuzzing.valid_files import (
    CONFIG,
    CONTEXT,
    CORPUS,
    EXPORTED,
    HUGGINGFACE,
    MODEL,
    PLACES,
    PREPARED,
    PROMPTS,
    STATE,
    TASK_FILE,
    WORKDIR,
)
from benchmarks.fuzzing.verbs import run_verb
from tests.config_fields import FIELDS

_PACKAGE = Path(__file__).resolve().parents[2] / "birdie_jax"
_FLAG = re.compile(r'(?:DEFINE_\w+|define_path)\(\s*"(\w+)"')
_PATH_FLAG = re.compile(r'define_path\(\s*"(\w+)"')
_OTHER_PATHS = ("input", "tokenizer", "compare", "task", "import")
# These flags would wait for other machines.
_LEFT_OUT = frozenset({"coordinator_address", "num_processes", "process_id"})
_MADE = (
    "new",
    "missing/new",
    "pipe",
    "loop",
    "closed",
    "empty_folder",
    "empty_file",
    "binary",
    "a\nb",
    "ä b",
)
_ODD_PLACES = (
    *(
        "pipe",
        "loop",
        "closed",
        "empty_folder",
        "empty_file",
        "binary",
        "missing",
        "/dev/zero",
        "/dev/null",
    ),
    *("/dev/full", "/proc/self/mem", "/", "a\nb", "x" * 300, "x/" * 3000, "binary/x", "~", "new", "*"),
)
_PLAUSIBLE = (
    *("0", "1", "2", "8", "100", "0.5", "true", "false", "float32", "bfloat16", "prefix_lm", "causal_lm"),
    *("masked_lm", "copying", "phonebook", "glue", "perplexity", "cpu:1", "v5p:2x2x1", "h100:1x8", "tiny"),
    *(
        "policy=uniform",
        "seed=1",
        "accuracy>=0.5",
        "influence",
        "[SEP]",
        "huggingface",
        "1,2",
        "256",
        "nothing",
    ),
)
_VALID = {
    "train": ([f"--config={CONFIG}", "--workdir=new", f"--config.data.prepared={PREPARED}"],),
    "evaluate": (
        [f"--workdir={WORKDIR}", f"--task=jsonl:path={TASK_FILE}"],
        [f"--model={EXPORTED}", "--task=phonebook"],
    ),
    "generate": (
        [f"--workdir={WORKDIR}", "--prompt=a b c"],
        [f"--model={EXPORTED}", f"--prompt_file={PROMPTS}", "--output=answers.jsonl"],
        [f"--workdir={WORKDIR}", f"--load_state={STATE}", "--prompt=a"],
        [f"--workdir={WORKDIR}", f"--context_file={CONTEXT}", "--save_state=new"],
    ),
    "prune": ([f"--workdir={WORKDIR}", "--output=new", "--context=16", "--continuation=4"],),
    "export": ([f"--workdir={WORKDIR}", "--output=new"], [f"--model={EXPORTED}", "--output=new"]),
    "import_model": ([f"--source={HUGGINGFACE}", "--output=new"],),
    "plan": (
        [f"--config={CONFIG}", "--topology=cpu:1"],
        [f"--config={CONFIG}", "--topology=cpu:1", "--decode=1"],
    ),
    "report": ([f"--workdir={WORKDIR}"], [f"--compare={WORKDIR},{WORKDIR}", "--output=new.html"]),
    "check_device": ([f"--config={CONFIG}", "--steps=0"], [f"--config={CONFIG}", "--json=new.json"]),
    "search_mixture": (
        [f"--config={CONFIG}:fixed", "--workdir=new", f"--config.data.prepared={PREPARED}"],
    ),
    "draw_kernels": ([f"--workdir={WORKDIR}", "--output=new.png"],),
    "prepare_data": (
        [f"--input={CORPUS}", "--output=new", f"--tokenizer={MODEL}", "--workers=0"],
        [f"--input={CORPUS}", "--output=new", "--vocab_size=300", "--tokenizer_type=bpe", "--workers=0"],
    ),
    "lm_eval": ([f"--workdir={WORKDIR}", "--tasks=arc_easy"],),
    "tasks.seed_summary": ([f"--workdir={WORKDIR}", f"--workdir={WORKDIR}"],),
    "tasks.infilling_filter": ([f"--input={TASK_FILE}", "--output=new"],),
}


def make_command_case(draws: random.Random, folder: Path, valid: Path) -> Case:
    """Return a case: a command line, next to a copy of the valid files."""
    verb = draws.choice(tuple(_VALID))
    arguments = list(draws.choice(_VALID[verb]))
    _make_places(folder, valid, arguments)
    for _ in range(draws.choice((1, 1, 2, 3))):
        _change(draws, verb, arguments)
    return Case(f"{verb} {arguments!r:.1500}", (), lambda: run_verb(verb, arguments))


def _make_places(folder: Path, valid: Path, arguments: list[str]) -> None:
    """Make the files of a command line, and special files."""
    for place in PLACES:
        # The verb only reads a file that no argument names, so a link is enough.
        named = any(place in argument for argument in arguments)
        if named and (valid / place).is_dir():
            shutil.copytree(valid / place, folder / place)
        elif named:
            shutil.copy(valid / place, folder / place)
        else:
            (folder / place).symlink_to(valid / place)
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    (folder / "empty_folder").mkdir()
    (folder / "empty_file").touch()
    (folder / "binary").write_bytes(bytes(range(256)) * 4)
    (folder / "closed").write_text("{}")
    (folder / "closed").chmod(0)


@cache
def _flags_of(verb: str, *, paths: bool = False) -> tuple[str, ...]:
    """Return the flags of a verb, or only those that name a file."""
    source = (_PACKAGE / f"{verb.replace('.', '/')}.py").read_text()
    found = {flag for flag in _FLAG.findall(source) if flag not in _LEFT_OUT}
    if paths:
        return (*sorted(found & {*_PATH_FLAG.findall(source), *_OTHER_PATHS}), "config", "flagfile")
    return (*sorted(found), "import", "flagfile", "undefok", "config", "v", "logtostderr")


def _change(draws: random.Random, verb: str, arguments: list[str]) -> None:
    number = draws.randrange(len(arguments)) if arguments else 0
    match draws.randrange(13):
        case 10 | 11 | 12:
            # For a flag that names a file, choose a path of another kind.
            flags = _flags_of(verb, paths=True)
            given = [
                argument.partition("=")[0].strip("-") for argument in arguments if "new" not in argument
            ]
            flag = draws.choice([*flags, *(flag for flag in given if flag in flags)])
            arguments[:] = [argument for argument in arguments if not argument.startswith(f"--{flag}=")]
            arguments.append(f"--{flag}={draws.choice((*_ODD_PLACES, *_ODD_PLACES, *PLACES))}")
        case 0 if arguments:
            del arguments[number]
        case 1 if arguments:
            arguments.insert(number, arguments[number])
        case 2 if arguments:
            flag, _, value = arguments[number].partition("=")
            arguments[number : number + 1] = [flag, value]
        case 3 if arguments:
            arguments[number] = f"{arguments[number].partition('=')[0]}={_value(draws)}"
        case 4:
            arguments.insert(
                number, draws.choice((_value(draws), f"--{_value(draws)}", f"-{_value(draws)}", "--"))
            )
        case 5 if arguments:
            text = arguments[number]
            place = draws.randrange(len(text))
            arguments[number] = (
                text[:place] + draws.choice(("", "=", "\n", "-", "ä", "\udc80")) + text[place + 1 :]
            )
        case 6:
            path = draws.choice(
                (*FIELDS, "objectives.arms", "eval.tasks.a.task", "finetune.stages.a", "a.b[0]")
            )
            arguments.append(f"--config.{path}={_value(draws)}")
        case _:
            flag = draws.choice(_flags_of(verb))
            form = draws.choice(("--{}={}", "--{}={}", "--{}={}", "--{}", "--no{}", "-{}={}", "--{}:{}"))
            arguments.append(form.format(flag, _value(draws)))


def _value(draws: random.Random) -> str:
    # An argument of a process cannot contain NUL.
    hostile = [text for text in HOSTILE_TEXTS if "\0" not in text and text != "\ud800"]
    return draws.choice((draws.choice(hostile), draws.choice(PLACES + _MADE), draws.choice(_PLAUSIBLE)))
