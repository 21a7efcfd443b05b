"""Tests of the pages on additions: write and run their code and commands in an empty folder."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY, fenced_blocks
from tests.forked_runs import WITHOUT_REPORT, ForkedRun
from tests.reader_environment import extras_of_page, hide_in_processes
from tests.whole_runs import run_environment

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


def write_files_and_program(page: Path, folder: Path) -> None:
    """Write each block that begins with the name of a file to that file, and all others to `program.py`.

    A warning ends the program.
    """
    program = "import warnings\nwarnings.simplefilter('error')\n"
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


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The folder of the packages that readers have, by the extras that their page installs."""
    pages = {extras_of_page(page): page for page in PAGES}
    return {
        extras: hide_in_processes(tmp_path_factory.mktemp("reader") / "packages", page)
        for extras, page in pages.items()
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page(page, tmp_path, packages):
    environment = run_environment() | {"PYTHONPATH": packages[extras_of_page(page)]}
    preparations = () if page.stem == "add_a_policy" else WITHOUT_REPORT

    def run(*arguments):
        command = [sys.executable, "-m", *arguments]
        process = ForkedRun(command, environment, folder=tmp_path, preparations=preparations)
        output, _ = process.communicate(300)
        assert process.returncode == 0, f"{arguments}\n{output}"

    write_files_and_program(page, tmp_path)
    run("program")
    write_data(tmp_path)
    commands = commands_of(page)
    for words in commands:
        run(*words[1:], *(SMALL if words[1] == "birdie_jax.train" else ()))
    verbs = {words[1] for words in commands}
    assert "birdie_jax.train" in verbs
    assert not {"birdie_jax.generate", "birdie_jax.evaluate"}.isdisjoint(verbs)
