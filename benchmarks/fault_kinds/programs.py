"""The programs that the campaign disturbs: tiny runs of several models, and a preparation of text."""

import hashlib
import json
import os
import random
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.fault_kinds.saved import checkpoint_files, digest_of_checkpoints, lost_checkpoints
from tests.forked_runs import exit_status_of
from tests.gcs_server import free_port
from tests.micro_config import get_config
from tests.whole_runs import CONFIG, metrics

_STEPS = 8
_KEEP = 3
# The files that a run writes in addition to checkpoints and metrics, without those that hold times.
_END_FILES = ("arms.json", "samples.json", "summary.json", "text.json", "tokenizer.model")


class Program(NamedTuple):
    """A program that a case starts, disturbs and starts again.

    Attributes:
        name: the name of the program in the results.
        verb: the verb that its messages name.
        actions: (folder, whether to save and keep a checkpoint of every step) -> the function of each
            process, which returns the exit status.
        saved: (folder) -> the complete results so far, as name -> digest of the bytes.
        lost: (complete results before, complete results now) -> the names of results that must not be lost
            but are.
        end: (folder) -> all results at the end of the program, as name -> digest.
    """

    name: str
    verb: str
    actions: Callable[[Path, bool], Sequence[Callable[[], int]]]
    saved: Callable[[Path], dict[str, str]]
    lost: Callable[[Mapping[str, str], Mapping[str, str]], list[str]]
    end: Callable[[Path], dict[str, str]]


def verb_action(verb: str, *arguments: str) -> Callable[[], int]:
    """Return a function that does the same as a process `python -m birdie_jax.VERB ARGUMENTS`."""

    def act() -> int:
        sys.argv = [f"birdie_jax.{verb}", *arguments]
        return exit_status_of(sys.argv[0])

    return act


def training(model: str, text: Path | str, *, policy: str = "fixed", workers: int = 0) -> Program:
    """Return a run of eight steps of a micro model on prepared text.

    Args:
        model: the value of `model.name`.
        text: the prepared folder, or its URL.
        policy: the value of `bandit.policy`.
        workers: the number of processes that make rows.
    """
    name = f"{model} {policy}" + (f" {workers} workers" if workers else "")
    flags = partial(_training_flags, model=model, text=text, policy=policy, workers=workers)
    return _run(name, lambda folder, every_step: [verb_action("train", *flags(folder, every_step))])


def training_in_two(text: Path, disturbed: int) -> Program:
    """Return a run like `training` in two processes.

    Args:
        text: the prepared folder.
        disturbed: the process that receives the signals, 0 or 1.
    """

    def actions(folder: Path | str, every_step: bool) -> Sequence[Callable[[], int]]:
        flags = _training_flags(folder, every_step, model="hawk", text=text, policy="fixed", workers=0)
        meeting = f"--coordinator_address=127.0.0.1:{free_port()}"
        both = [
            verb_action("train", *flags, meeting, "--num_processes=2", f"--process_id={index}")
            for index in range(2)
        ]
        return both if disturbed == 0 else both[::-1]

    return _run(f"hawk in two processes, disturbed: {disturbed}", actions)


def _run(name: str, actions: Callable[[Path | str, bool], Sequence[Callable[[], int]]]) -> Program:
    return Program(
        name=name,
        verb="train",
        actions=actions,
        saved=checkpoint_files,
        lost=lambda before, now: lost_checkpoints(before, now, _KEEP),
        end=_end_of_run,
    )


def _training_flags(
    folder: Path | str, every_step: bool, *, model: str, text: Path | str, policy: str, workers: int
) -> list[str]:
    values = {
        "model.name": model,
        "model.attention.heads": 2,
        "data.prepared": text,
        "train.num_steps": _STEPS,
        "train.log_every_steps": 1,
        "checkpoint.every_steps": 1 if every_step else 2,
        "checkpoint.keep": 100 if every_step else _KEEP,
        "bandit.every_steps": 3,
        "batching.workers": workers,
        # For runs in several processes: the seconds until a process notices the loss of another.
        "train.lost_seconds": 10,
    }
    overrides = [f"--config.{name}={value}" for name, value in values.items()]
    return [f"--config={CONFIG}:{policy}", f"--workdir={folder}", *overrides]


def regression() -> Program:
    """Return a run of a linear regression with noise, with the library's engine."""
    script = str(Path(__file__).with_name("regression.py"))

    def actions(folder: Path | str, every_step: bool) -> Sequence[Callable[[], int]]:
        cadence = (1, 100) if every_step else (2, _KEEP)
        return [lambda: runpy.run_path(script)["main"](folder, _STEPS, *cadence)]

    return _run("regression", actions)


def _end_of_run(folder: Path) -> dict[str, str]:
    found = digest_of_checkpoints(folder, _KEEP)
    for number, line in enumerate(metrics(folder)):
        found[f"metrics.jsonl line {number + 1}"] = json.dumps(line, sort_keys=True)
    for name in _END_FILES:
        if (folder / name).exists():
            found[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return found


def preparation(corpus: Path, workers: int = 0) -> Program:
    """Return a preparation of a corpus, with a few documents per shard.

    Args:
        corpus: the JSON lines.
        workers: the number of processes that tokenize.
    """
    data: Any = get_config().data
    flags = [
        *(f"--input={corpus}", f"--vocab_size={data.vocab_size}", f"--record_tokens={data.record_tokens}"),
        *("--shard_tokens=4000", "--validation_fraction=0.3", f"--workers={workers}", "--progress=false"),
    ]
    return Program(
        name="prepare_data" + (f" {workers} workers" if workers else ""),
        verb="prepare_data",
        actions=lambda folder, _: [verb_action("prepare_data", f"--output={folder}", *flags)],
        saved=_finished_shards,
        lost=lambda before, now: sorted(name for name in before if before[name] != now.get(name)),
        end=_contents,
    )


def reading() -> Program:
    """Return a program that reads all of a prepared folder, as training does."""
    return Program(
        name="read text",
        verb="read",
        actions=lambda folder, _: [lambda: _read_all(folder)],
        saved=lambda folder: {},
        lost=lambda before, now: [],
        end=lambda folder: {"text": (folder.parent / "read.txt").read_text()},
    )


def _read_all(folder: Path) -> int:
    from birdie_jax.command_line import refuse
    from birdie_jax.errors import BirdieError
    from birdie_jax.text import TokenShards, load_tokenizer

    digest = hashlib.sha256()
    try:
        tokenizer = load_tokenizer(folder)
        for split in ("train", "validation"):
            for record in TokenShards(folder, split, tokenizer_sha256=tokenizer.sha256):
                digest.update(repr(record).encode() + record.tokens.tobytes())
    except BirdieError as error:
        try:
            refuse("read", error)
        except SystemExit as end:
            return int(end.code or 0)
    (folder.parent / "read.txt").write_text(digest.hexdigest())
    return 0


def _finished_shards(folder: Path) -> dict[str, str]:
    """Return the digests of the shards that the manifest names."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
    except FileNotFoundError:
        return {}
    names = [shard["name"] for split in ("train", "validation") for shard in manifest[split]]
    return {name: digest for name, digest in _contents(folder).items() if name in names}


def _contents(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def write_texts(path: Path, documents: int) -> Path:
    """Write JSON lines of pseudo-words of several lengths, and return the file."""
    draws = random.Random(1)
    words = ["".join(draws.choices("abcdefghij", k=5)) for _ in range(200)]
    with path.open("w") as file:
        for _ in range(documents):
            text = " ".join(draws.choices(words, k=draws.randint(50, 500)))
            file.write(json.dumps({"text": text}) + os.linesep)
    return path
