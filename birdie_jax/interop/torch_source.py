"""Build the single PyTorch file of an exported model from the parts in torch_models/ that it needs.

Parts import other parts with relative imports. The builder follows these imports and omits them from the
file. Each mixer is one part, so an exported file contains only the mixers of its model.
"""

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

from birdie_jax.errors import InteropError

_FOLDER = Path(__file__).parent / "torch_models"
_CONFIGURATION = "configuration_"


def read_part(name: str) -> str:
    """Return the text of a part.

    Raises:
        InteropError: the part does not exist.
    """
    path = _FOLDER / f"{name}.py"
    if not path.is_file():
        mixers = sorted(
            part.stem for part in _FOLDER.glob("*.py") if "\nMIXERS[" in part.read_text("utf-8")
        )
        raise InteropError(
            f"model.name: found the mixer {name!r}, which has no PyTorch implementation; allowed: "
            f"{', '.join(mixers)}"
        )
    return path.read_text(encoding="utf-8")


def put_together(mixers: Sequence[str], last: str) -> str:
    """Return the text of one file with the mixers, the parts that they import, and `last`.

    Args:
        mixers: the names of the mixers' parts.
        last: the name of the last part, which has the docstring of the file.

    Raises:
        InteropError: a part is missing.
    """
    parts = _in_order([*mixers, last])
    trees = {name: ast.parse(read_part(name)) for name in parts}
    imports: dict[str, None] = {}
    bodies = []
    for name in parts:
        lines = read_part(name).splitlines()
        begin = 0
        for node in trees[name].body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                if not (isinstance(node, ast.ImportFrom) and _imported_part(node)):
                    imports["\n".join(lines[node.lineno - 1 : node.end_lineno])] = None
            elif not (isinstance(node, ast.Expr) and node is trees[name].body[0]):
                break
            begin = node.end_lineno or 0
        bodies.append("\n".join(lines[begin:]).strip())
    return "\n\n\n".join([_head(trees[last], list(imports)), *bodies]) + "\n"


def _head(tree: ast.Module, imports: list[str]) -> str:
    # The standard library, then other libraries, then relative imports.
    groups: list[list[str]] = [[], [], []]
    for one in sorted(imports, key=lambda one: (one.startswith("from"), one)):
        module = one.split()[1]
        library = int(module.split(".")[0] not in sys.stdlib_module_names)
        groups[2 if module.startswith(".") else library].append(one)
    return "\n\n".join(
        [f'"""{ast.get_docstring(tree)}"""', *("\n".join(group) for group in groups if group)]
    )


def _in_order(names: Sequence[str]) -> list[str]:
    """Return the parts and all parts that they import. Imported parts come first."""
    found: dict[str, None] = {}

    def add(name: str) -> None:
        if name in found:
            return
        for node in ast.parse(read_part(name)).body:
            if isinstance(node, ast.ImportFrom) and (imported := _imported_part(node)):
                add(imported)
        found[name] = None

    for name in names:
        add(name)
    return list(found)


def _imported_part(node: ast.ImportFrom) -> str:
    """Return the part that an import names. Return an empty string for a library or the configuration."""
    module = node.module or ""
    return module if node.level and not module.startswith(_CONFIGURATION) else ""
