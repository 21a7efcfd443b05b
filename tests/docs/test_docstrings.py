"""Every public module, class, function and field has a description; ruff's D rules omit fields."""

import ast
import functools
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import birdie_jax.bandit
import birdie_jax.batching.packing
import birdie_jax.models
import birdie_jax.objectives
import pallas_kernels.linear_scan
from tests.docs.pages import REPOSITORY

PACKAGES = ("birdie_jax", "pallas_kernels", "hlo_analysis", "launch")

# The library names that other programs rely on.
LIBRARY = (
    birdie_jax.objectives.Example,
    birdie_jax.objectives.make_objective,
    birdie_jax.batching.packing.layout_example,
    birdie_jax.models.build_model,
    birdie_jax.bandit.reward,
    birdie_jax.bandit.init_bandit,
    birdie_jax.bandit.observe,
    birdie_jax.bandit.propose,
    pallas_kernels.linear_scan.linear_scan,
)

_RECORD_BASES = {"NamedTuple", "Module", "Protocol", "PyTreeNode"}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def modules() -> list[Path]:
    return sorted(
        file.relative_to(REPOSITORY)
        for package in PACKAGES
        for file in (REPOSITORY / package).rglob("*.py")
        if not any(part.startswith("_") and part != "__init__.py" for part in file.parts)
    )


def public_definitions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Yield every public class and function, and the members that a class's docstring does not describe."""
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                attributes = described(ast.get_docstring(node) or "", "Attributes")
                members = [part for part in node.body if getattr(part, "name", "") not in attributes]
                yield from public_definitions(members, f"{prefix}{node.name}.")


def fields_of(node: ast.ClassDef) -> list[str]:
    """Return the public fields of a NamedTuple, dataclass or linen module."""
    decorators = {_last_name(decorator) for decorator in node.decorator_list}
    if "dataclass" not in decorators and not _RECORD_BASES & {_last_name(base) for base in node.bases}:
        return []
    return [
        statement.target.id
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and not statement.target.id.startswith("_")
    ]


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    return getattr(node, "attr", getattr(node, "id", ""))


def described(docstring: str, section: str) -> set[str]:
    """Return the names that a section, "Args" or "Attributes", of a docstring describes."""
    match = re.search(rf"^{section}:\n((?: +.*\n?|\n)*)", inspect.cleandoc(docstring), re.MULTILINE)
    lines = match[1] if match else ""
    return {
        name
        for names in re.findall(r"^ {4}([\w*][\w*, ]*): \S", lines, re.MULTILINE)
        for name in re.split(", ", names.replace("*", ""))
    }


def described_by_bases(bases: list[ast.expr]) -> set[str]:
    """Return the fields that the classes of these names, or their bases, describe."""
    found = set()
    for base in {_last_name(base) for base in bases} & set(classes()):
        node = classes()[base]
        found |= described(ast.get_docstring(node) or "", "Attributes") | described_by_bases(node.bases)
    return found


@functools.cache
def classes() -> dict[str, ast.ClassDef]:
    """Return all public classes of the packages by name."""
    trees = (ast.parse((REPOSITORY / module).read_text()) for module in modules())
    definitions = (node for tree in trees for _, node in public_definitions(tree.body))
    return {node.name: node for node in definitions if isinstance(node, ast.ClassDef)}


def lacks(source: str) -> list[str]:
    """Return the undescribed names of a module's source."""
    tree = ast.parse(source)
    found = [] if ast.get_docstring(tree) or not tree.body else ["the module"]
    for name, node in public_definitions(tree.body):
        docstring = ast.get_docstring(node) or ""
        if not docstring:
            found.append(name)
        elif isinstance(node, ast.ClassDef):
            missing = set(fields_of(node)) - described(docstring, "Attributes")
            missing -= described_by_bases(node.bases)
            # The class's sentence may describe a single field.
            if len(fields_of(node)) > 1:
                found += [f"{name}.{field}" for field in sorted(missing)]
    return found


@pytest.mark.parametrize("module", modules(), ids=str)
def test_every_public_name_is_described(module):
    assert lacks((REPOSITORY / module).read_text()) == []


@pytest.mark.parametrize("thing", LIBRARY, ids=lambda thing: f"{thing.__module__}.{thing.__name__}")
def test_every_argument_of_a_library_name_is_described(thing):
    section = "Attributes" if inspect.isclass(thing) else "Args"
    arguments = {name for name in inspect.signature(thing).parameters if name != "self"}
    assert arguments - described(thing.__doc__ or "", section) == set()


_UNDESCRIBED = '''
from typing import NamedTuple


class Pair(NamedTuple):
    """Two numbers.

    Attributes:
        first: the first number.
    """

    first: int
    second: int


def add(pair):
    return sum(pair)


def _add(pair):
    return sum(pair)
'''


def test_the_check_finds_missing_descriptions():
    assert lacks(_UNDESCRIBED) == ["the module", "Pair.second", "add"]
    docstring = "Sum.\n\nArgs:\n    a, b: numbers.\n    c: a number\n        of two lines: yes.\n"
    assert described(docstring, "Args") == {"a", "b", "c"}
