"""The files, functions, modules and links that the pages of the repository name."""

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")], key=lambda page: page.as_posix()
)
FOLDERS = (
    "birdie_jax",
    "pallas_kernels",
    "hlo_analysis",
    "launch",
    "configs",
    "docs",
    "benchmarks",
    "studies",
    "tests",
)
# Paths in a page are relative to one of these.
ROOTS = (REPOSITORY, REPOSITORY / "birdie_jax")


def code_spans(text: str) -> list[str]:
    """Return the texts between single backticks, outside of fenced blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """Return (language, contents) of each fenced block."""
    return re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def named_files(text: str) -> list[tuple[str, str]]:
    """Return (path, name) of each code span `path.py` or `path.py:name`; the name may be empty."""
    found = []
    for span in code_spans(text):
        match = re.fullmatch(r"([\w./-]+\.py)(?::([\w.]+))?", span)
        if match:
            found.append((match[1], match[2] or ""))
    return found


def find_file(path: str) -> Path | None:
    """Return the file of a page's `path`, or None; a bare name may be in any code folder."""
    if "/" not in path and not (REPOSITORY / path).is_file():
        places = (file for folder in FOLDERS for file in sorted((REPOSITORY / folder).rglob(path)))
        return next(places, None)
    return next((root / path for root in ROOTS if (root / path).is_file()), None)


def defines(file: Path, name: str) -> bool:
    """Return whether a module defines `name`: a function, class, value or `Class.member`."""
    body: list[ast.stmt] = ast.parse(file.read_text()).body
    for part in name.split("."):
        found = next((node for node in body if part in _names_of(node)), None)
        if found is None:
            return False
        body = getattr(found, "body", [])
    return True


def _names_of(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]
