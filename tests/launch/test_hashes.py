"""hashes.txt: it agrees with constraints.txt, and has all that an installation needs."""

import configparser
import importlib.metadata
import re
import subprocess

import pytest
from packaging.requirements import Requirement

from tests.hashes import LEFT_OUT, REPOSITORY, extras, normal, pins

UNHASHED = {"gpu", "cuda12", "cuda13", "wandb", "mlflow"}
HASHED = [extra for extra in ["", *extras()] if extra not in UNHASHED]


def selected(*wanted: str) -> tuple[int, list[str]]:
    """Return the status of the function of the launchers, and the requirements that it prints."""
    command = 'set -u; . launch/environment.sh; find_hashes "$*"'
    done = subprocess.run(
        ["bash", "-c", command, "bash", *wanted],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, re.findall(r"^[^#\s].*==.*(?= \\$)", done.stdout, re.MULTILINE)


def needed(extra: str) -> set[str]:
    """Return the packages that an installation here needs, by what the installed ones say."""
    found: set[str] = set()
    config = configparser.ConfigParser()
    config.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    lines = config["options"]["install_requires"].split()
    lines += config["options.extras_require"][extra].split() if extra else []
    waiting = [Requirement(line) for line in lines]
    while waiting:
        requirement = waiting.pop()
        where = [{"extra": name} for name in ("", *requirement.extras)]
        if normal(requirement.name) in found and not requirement.extras:
            continue
        found.add(normal(requirement.name))
        try:
            lines = importlib.metadata.requires(requirement.name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of an extra that the tests do without
        below = [Requirement(line) for line in lines]
        waiting += [b for b in below if b.marker is None or any(map(b.marker.evaluate, where))]
    return found


def test_the_versions_are_those_of_the_constraints():
    _, found = selected(*(pins().keys() - LEFT_OUT))
    assert found == [line for name, lines in pins().items() if name not in LEFT_OUT for line in lines]


def test_each_requirement_has_hashes():
    head, *blocks = (REPOSITORY / "hashes.txt").read_text(encoding="utf-8").split("\n\n")
    assert head.startswith("# ")
    for block in blocks:
        assert re.fullmatch(r"# [^\n]+\n[^\n#]+( \\\n    --hash=sha256:[0-9a-f]{64})+\n?", block), block


@pytest.mark.parametrize("extra", HASHED)
def test_an_installation_finds_all_that_it_needs(extra):
    status, found = selected("[base]", *([f"[{extra}]"] if extra else []))
    assert status == 0
    assert needed(extra) <= {normal(line.partition("==")[0]) for line in found}


def test_what_has_no_hashes_is_refused():
    assert selected("numpy", *LEFT_OUT)[0] == 1
    assert selected("[cuda13]") == (1, [])
