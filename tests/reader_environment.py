"""The packages of a page's reader: the base installation and the extras that the page installs."""

import configparser
import contextlib
import importlib.metadata
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("birdie_jax", "hlo_analysis", "launch", "pallas_kernels")
# The packages that run these tests, which cannot be hidden.
_TEST_TOOLS = ("beartype", "hypothesis", "packaging", "psutil", "pytest", "pytest-timeout", "pytest-xdist")
_FINDER = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"the page's reader has no module {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def extras_of_page(page: Path) -> frozenset[str]:
    """Return the extras that a page installs: `birdie-jax[gcs]`, `.[gcs,s3]`."""
    named = re.findall(r"(?:birdie-jax|\.)\[([\w,]+)\]", page.read_text(encoding="utf-8"))
    return frozenset(extra for each in named for extra in each.split(","))


@cache
def hidden_modules(extras: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return the installed top-level modules outside the base installation and `extras`."""
    requirements = _requirements()
    known = [line for name in ("", *extras) for line in requirements.get(name, ())]
    # Every environment has pip.
    had = _closure(known) | {"birdie-jax", "pip"}
    return frozenset(
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if not any(canonicalize_name(owner) in had for owner in owners)
    )


def hide_in_processes(folder: Path, page: Path) -> str:
    """Return the PYTHONPATH of a process with the packages of this checkout and those of a page's reader.

    Args:
        folder: an empty folder for the module that hides the other packages.
        page: the page.
    """
    folder.mkdir()
    for name in PACKAGES:
        (folder / name).symlink_to(REPOSITORY / name)
    finder = _FINDER.format(hidden=set(hidden_modules(extras_of_page(page))))
    (folder / "sitecustomize.py").write_text(finder)
    return str(folder)


@contextlib.contextmanager
def reader_packages(page: Path) -> Iterator[None]:
    """Hide packages that the reader of a page lacks from this process, except test tools."""
    tools = _modules_of(_closure(_TEST_TOOLS))
    hidden = hidden_modules(extras_of_page(page)) - tools
    # Other modules imported meanwhile stay.
    with pytest.MonkeyPatch.context() as patch:
        for module in hidden:
            patch.setitem(sys.modules, module, None)
        yield


def _requirements() -> dict[str, list[str]]:
    """Return the requirements in setup.cfg: of the base installation under "", and of each extra."""
    config = configparser.ConfigParser()
    config.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    found = {"": config["options"]["install_requires"], **config["options.extras_require"]}
    return {name: lines.split() for name, lines in found.items()}


def _modules_of(distributions: set[str]) -> set[str]:
    found = importlib.metadata.packages_distributions().items()
    return {module for module, owners in found if distributions & set(map(canonicalize_name, owners))}


def _closure(lines: Iterable[str]) -> set[str]:
    """Return the names of the distributions that requirements install on this machine."""
    found: dict[tuple[str, frozenset[str]], None] = {}
    waiting = [Requirement(line) for line in lines]
    while waiting:
        requirement = waiting.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in found:
            continue
        found[key] = None
        try:
            needed = importlib.metadata.requires(requirement.name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for one in map(Requirement, needed):
            extras = requirement.extras or {""}
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(one)
    return {name for name, _ in found}
