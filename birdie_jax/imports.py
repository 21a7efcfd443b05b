"""Imports of the user's own code, which registers objectives, tasks, mixers, policies or hooks.

A configuration names the code in `config.imports`, a command line with `--import`. A run records the name
and the hash of the code, "my_objectives.reversal#sha256:0123...", so it detects changes.
"""

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from birdie_jax.errors import ConfigError, one_line, shown

_MARK = "#sha256:"
_ALLOWED = "a module that Python can import from this folder, such as my_objectives.reversal, or a .py file"

# The hash of each imported extension, by name.
_imported: dict[str, str] = {}


def name_of(entry: str) -> str:
    """Return the name in an entry of `config.imports`."""
    return entry.partition(_MARK)[0]


def unknown_extensions(entries: Iterable[str]) -> list[str]:
    """Return the names of the entries that this process has not imported."""
    return [name for entry in entries if (name := name_of(entry)) not in _imported]


def import_extension(entry: str, where: str) -> str:
    """Import an entry, once per process, and return it with the hash of its current code.

    Args:
        entry: a module or a .py file, with or without the hash.
        where: the flag or field that messages name.

    Raises:
        ConfigError: the entry does not exist or does not run.
    """
    name = name_of(entry)
    if name not in _imported:
        _imported[name] = _import(name, where)
    return f"{name}{_MARK}{_imported[name]}"


def import_extensions(entries: Iterable[str], where: str) -> tuple[str, ...]:
    """Import all of `config.imports`; return them with their hashes.

    Raises:
        ConfigError: an entry does not exist or does not run.
    """
    return tuple(import_extension(entry, f"{where}[{number}]") for number, entry in enumerate(entries))


def changed_extensions(recorded: Iterable[str]) -> list[str]:
    """Return the names of imported entries with code that differs from the recorded code."""
    pairs = (entry.partition(_MARK)[::2] for entry in recorded)
    return [name for name, code in pairs if code and _imported.get(name, code) != code]


def _import(name: str, where: str) -> str:
    folder, module = os.getcwd(), name
    if name.endswith(".py"):
        folder, module = os.path.dirname(os.path.abspath(name)), Path(name).stem
        if not os.path.isfile(name):
            raise ConfigError(f"{where}: found {shown(name)}, which does not exist; allowed: {_ALLOWED}")
    # Child processes also need this: they look up classes by module name.
    if folder not in sys.path and "" not in sys.path[:1]:
        sys.path.insert(0, folder)
    elif name.endswith(".py") and folder not in sys.path:
        sys.path.insert(1, folder)
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        found = f"{where}: found {shown(name)}: {_describe(error)}"
        raise ConfigError(f"{found}; allowed: {_ALLOWED}") from error
    if spec is None or spec.origin is None:
        raise ConfigError(f"{where}: found {shown(name)}, which Python cannot find; allowed: {_ALLOWED}")
    if name.endswith(".py") and not os.path.samefile(spec.origin, name):
        raise ConfigError(
            f"{where}: found {shown(name)}, a module name that {spec.origin} already has; allowed: another"
        )
    files = [Path(spec.origin)]
    if spec.submodule_search_locations:
        files = sorted(Path(spec.origin).parent.rglob("*.py"))
    code = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    try:
        importlib.import_module(module)
    except Exception as error:
        raise ConfigError(f"{where}: {name} does not run: {_describe(error)}") from error
    return code


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(str(error), 300)}"
