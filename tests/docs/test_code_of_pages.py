"""The code of the pages on adding something works: its files are written, and what follows is run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY, fenced_blocks
from tests.reader_environment import hide_in_processes

PAGES = sorted((REPOSITORY / "docs").glob("add_*.md"))


def write_files_and_program(page: Path, folder: Path) -> Path:
    """Write each block that begins with the name of a file to that file; return a program of all others."""
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
    path = folder / "program.py"
    path.write_text(program + "\n".join(checks_of_configs(page.read_text())))
    return path


def checks_of_configs(text: str) -> list[str]:
    """Return lines that check the configuration of each training command on a page of a file of its own."""
    commands = re.findall(r"^python -m birdie_jax\.train --config=(my_\w+/\w+\.py(?::\w+)?) ", text, re.M)
    assert commands
    lines = [
        "",
        "from birdie_jax.config import parse_config",
        "from birdie_jax.config_flag import load_config",
    ]
    return [*lines, *(f"parse_config(load_config({command!r}))" for command in commands)]


def test_every_page_is_here():
    assert [page.stem for page in PAGES] == [
        "add_a_mixer",
        "add_a_policy",
        "add_a_reward",
        "add_a_task",
        "add_an_objective",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_of_a_page(page, tmp_path):
    """In a folder that holds what the page writes alone, and with the packages of its reader."""
    folder = tmp_path / "anywhere"
    folder.mkdir()
    program = write_files_and_program(page, folder)
    ours = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": hide_in_processes(tmp_path / "packages", page)}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        check=False,
        cwd=folder,
        env={**os.environ, **ours},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
