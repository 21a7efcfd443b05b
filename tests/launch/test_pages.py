"""The pages in docs/: every command of a launcher in them is one that it takes."""

import re

import pytest

from tests.launch.stand_in import REPOSITORY, words_of

PAGES = sorted((REPOSITORY / "docs").glob("launch_*.md"))


def commands() -> list[str]:
    found = []
    for page in PAGES:
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL):
            lines = block.replace("\\\n", " ").splitlines()
            found += [line for line in lines if re.match(r"python3? -m launch\.", line)]
    return found


@pytest.mark.parametrize("command", commands())
def test_command_of_a_page(stand_ins, launch, command):
    _, _, module, *arguments = words_of(command)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    done = launch(module.removeprefix("launch."), *arguments[:end], "--dry_run", *arguments[end:])
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert stand_ins.calls() == []


def test_every_launcher_has_a_page():
    launchers = {"local", "tpu_pod", "gke_jobset", "slurm"}
    assert {re.search(r"launch\.(\w+)", command).group(1) for command in commands()} == launchers
    assert len(PAGES) == 4
