"""Tests of the pages on additions: write and run their code and commands in an empty folder."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY, fenced_blocks
from tests.quick_jit import QUICK_FLAGS
from tests.reader_environment import hide_in_processes

PAGES = [*sorted((REPOSITORY / "docs").glob("add_*.md")), REPOSITORY / "docs" / "optimizers.md"]
# Makes a run with a page's own configuration take a second.
SMALL = (
    "--config.train.num_steps=4",
    "--config.data.source=text.jsonl",
    "--config.data.vocab_size=300",
    "--config.data.cache_dir=data",
    "--config.model.layers=1",
    "--config.model.features=16",
    "--config.model.state=16",
    "--config.model.mlp_features=16",
    "--config.batching.rows=2",
    "--config.batching.length=128",
    "--config.eval.tasks={}",
)


class Reader:
    """Runs Python in a folder with only a page's files, and with the packages of its reader."""

    def __init__(self, page: Path, tmp_path: Path):
        """Make the folder `anywhere` in `tmp_path`, an empty folder."""
        self.folder = tmp_path / "anywhere"
        self.folder.mkdir()
        self._packages = hide_in_processes(tmp_path / "packages", page)

    def run(self, *arguments: str) -> None:
        """Run `python ARGUMENTS`, which must succeed."""
        ours = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": self._packages, "XLA_FLAGS": QUICK_FLAGS}
        done = subprocess.run(
            [sys.executable, *arguments],
            check=False,
            cwd=self.folder,
            env={**os.environ, **ours},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{arguments}\n{done.stderr}"


def write_files_and_program(page: Path, folder: Path) -> None:
    """Write each block that begins with the name of a file to that file, and all others to `program.py`."""
    program = ""
    for language, contents in fenced_blocks(page.read_text()):
        file = re.match(r"# ([\w/]+\.py)\n", contents)
        if language != "python":
            continue
        if file:
            path = folder / file[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(contents)
        else:
            program += contents
    (folder / "program.py").write_text(program)


def write_data(folder: Path) -> None:
    """Write the files that the commands of the pages read."""
    texts = (" ".join(str(number**2) for number in range(first, first + 300)) for first in range(60))
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "questions.jsonl").write_text(json.dumps({"prompt": "1 4 9", "reference": "9 4 1"}) + "\n")


def commands_of(page: Path) -> list[list[str]]:
    """Return the words of each command of a page, without `python`."""
    blocks = [contents for _, contents in fenced_blocks(page.read_text())]
    lines = (line for block in blocks for line in re.findall(r"^python (-m birdie_jax\..+)", block, re.M))
    return list(map(shlex.split, lines))


def test_every_page_is_listed():
    assert [page.stem for page in PAGES] == [
        "add_a_mixer",
        "add_a_policy",
        "add_a_reward",
        "add_a_task",
        "add_an_objective",
        "optimizers",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page(page, tmp_path):
    reader = Reader(page, tmp_path)
    write_files_and_program(page, reader.folder)
    reader.run("-W", "error", "program.py")
    write_data(reader.folder)
    commands = commands_of(page)
    for words in commands:
        reader.run(*words, *(SMALL if words[1] == "birdie_jax.train" else ()))
    verbs = {words[1] for words in commands}
    assert "birdie_jax.train" in verbs
    assert not {"birdie_jax.generate", "birdie_jax.evaluate"}.isdisjoint(verbs)
