"""The valid files that cases start from; the verbs make them once."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from tests.forked_runs import run_module
from tests.interop.huggingface_folders import write_random_folder
from tests.trained_workdirs import small_tokenizer
from tests.whole_runs import write_corpus

MICRO = Path(__file__).resolve().parents[2] / "tests" / "micro_config.py"
TEXTS = ("one two", "a cab", "deaf ear", "o, n, m and l", "ende", "äöü and 漢字 😀", "bad\nfeed", "a b c d")
QUESTIONS = [
    {"prompt": f"{text}?", "reference": [text, "x"], "choices": [text, "b", "c"], "label": 0, "id": text}
    for text in TEXTS
]
CORPUS, MODEL, PREPARED, WORKDIR = "corpus.jsonl", "small.model", "prepared", "workdir"
EXPORTED, HUGGINGFACE, STATE = "exported", "huggingface", "state.safetensors"
PROMPTS, TASK_FILE, CONTEXT, CONFIG = "prompts.jsonl", "questions.jsonl", "context.txt", "config.py"
PLACES = (
    *(CORPUS, MODEL, PREPARED, WORKDIR, EXPORTED, HUGGINGFACE, STATE),
    *(PROMPTS, TASK_FILE, CONTEXT, CONFIG),
)
HUGGINGFACE_KINDS = ("mamba", "mamba2", "recurrent_gemma")
_WHOLE = "whole"


def make_valid_files(folder: Path) -> None:
    """Make the files in `folder` unless they exist. The verbs run in forks of this process."""
    if (folder / _WHOLE).exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _in_fork(lambda: _write_inputs(folder))
    (folder / PROMPTS).write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    (folder / TASK_FILE).write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    (folder / CONTEXT).write_text("a long context, but not too long\n" * 3)
    shutil.copy(MICRO, folder / CONFIG)
    for verb, *arguments in (
        (
            *("prepare_data", f"--input={folder / CORPUS}", f"--output={folder / PREPARED}", "--workers=0"),
            *(f"--tokenizer={folder / MODEL}", "--record_tokens=512", "--validation_fraction=0.3"),
        ),
        (
            *("train", f"--config={folder / CONFIG}:fixed", f"--workdir={folder / WORKDIR}"),
            *(f"--config.data.prepared={folder / PREPARED}", "--config.train.num_steps=8"),
        ),
        ("export", f"--workdir={folder / WORKDIR}", f"--output={folder / EXPORTED}"),
        (
            *("generate", f"--workdir={folder / WORKDIR}", f"--context_file={folder / CONTEXT}"),
            f"--save_state={folder / STATE}",
        ),
        ("evaluate", f"--workdir={folder / WORKDIR}", f"--task=jsonl:path={folder / TASK_FILE}"),
    ):
        status, _, stderr = run_module(f"birdie_jax.{verb}", *arguments)
        if status:
            sys.exit(f"{verb}: {stderr[-2000:]}")
    (folder / _WHOLE).touch()


def _write_inputs(folder: Path) -> None:
    write_corpus(folder)
    small_tokenizer().save(folder / MODEL)
    for kind in HUGGINGFACE_KINDS:
        write_random_folder(folder / f"{HUGGINGFACE}_{kind}", kind)
    shutil.copytree(folder / f"{HUGGINGFACE}_{HUGGINGFACE_KINDS[0]}", folder / HUGGINGFACE)


def _in_fork(function: Callable[[], None]) -> None:
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit("the valid files cannot be made")
