"""The results of finished runs: one compressed file of JSON lines per run, written atomically.

    xz -dc docs/measurements/retrieval/small.hawk.birdie.0.jsonl.xz | less

The first line describes the run: study, format version, fields of the run, circumstances. Every other line
is one part of the measurements and names its place:

    {"part": "pretraining/config/optimizer", "learning_rate": 0.003, ...}
    {"part": "pretraining/mixture[]", "step": 150, "probabilities": {"copying": 0.4, ...}}
    {"part": "fine_tuned/phonebook/test/entries_2", "scores": {"exact_match": [1, 0, ...], ...}, ...}

A part whose name ends with [] is one item of a list. A study may add keys or parts; readers ignore unknown
parts.
"""

import datetime
import importlib.metadata
import json
import lzma
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from birdie_jax.storage import write_whole
from studies.verbs import REPOSITORY, StudyError, cores

FORMAT_VERSION = 3
SUFFIX = ".jsonl.xz"

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "sentencepiece", "grain", "orbax-checkpoint")
_ITEM = "[]"
# The significant digits of a number. All digits would take twice the space.
_DIGITS = 6


class StudyRun(Protocol):
    """A run of a study: a NamedTuple whose fields and `name` identify it within its study."""

    @property
    def scale(self) -> str: ...  # noqa: D102

    @property
    def name(self) -> str: ...  # noqa: D102

    def _asdict(self) -> dict[str, Any]: ...


AnyRun = TypeVar("AnyRun", bound=StudyRun)


def circumstances() -> dict[str, Any]:
    """Return date, commit, versions and machine."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "changed_since_commit": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "machine": {
            "processor": _processor(),
            "cores_used": len(cores()),
            "cores": os.cpu_count(),
            "system": platform.platform(),
        },
    }


def _git(*arguments: str) -> str | None:
    """Return git's output for the repository; None outside of a repository, as in an unpacked archive."""
    try:
        found = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(REPOSITORY), *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def result_file(results: Path, run: StudyRun) -> Path:
    """Return the file of a run's result."""
    return results / f"{run.scale}.{run.name}{SUFFIX}"


def write_result(file: Path, description: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Write a result, with numbers rounded to six significant digits.

    Args:
        file: the file.
        description: the first line without the format version.
        found: the measurements: nested mappings, lists of mappings, and plain values as leaves. They depend
            only on the code and the run: a stopped and resumed run measures the same.

    Raises:
        ValueError: a part's name contains / or ends with [].
    """
    lines = [{**description, "format_version": FORMAT_VERSION}, *map(_rounded, _lines_of(found, ()))]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def _lines_of(value: Mapping[str, Any], place: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a mapping: one line with its plain values, then the lines of its parts."""
    parts = {name: part for name, part in value.items() if isinstance(part, Mapping) or _has_items(part)}
    plain = {name: part for name, part in value.items() if name not in parts}
    if plain or (place and not parts):
        yield {"part": "/".join(place), **plain}
    for name, part in parts.items():
        if "/" in name or name.endswith(_ITEM):
            raise ValueError(
                f"{'/'.join(place)}: found the name {name!r}; allowed: one without / and {_ITEM}"
            )
        if isinstance(part, Mapping):
            yield from _lines_of(part, (*place, name))
        else:
            yield from ({"part": "/".join((*place, name)) + _ITEM, **item} for item in part)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return {name: _rounded(part) for name, part in value.items()} if isinstance(value, Mapping) else value


def _has_items(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def read_result(file: Path) -> dict[str, Any]:
    """Return a result, with the keys of its first line and of its parts in one mapping.

    Raises:
        StudyError: the file is damaged or of another format.
    """
    try:
        with lzma.open(file, "rt", encoding="utf-8") as lines:
            description, *parts = map(json.loads, lines)
    except (EOFError, ValueError, lzma.LZMAError) as error:
        raise StudyError(f"{file}: is not a complete file of JSON lines: {error}") from error
    version = description.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise StudyError(f"{file}: found format_version {version}; allowed: {FORMAT_VERSION}")
    result = dict(description)
    for line in parts:
        *folders, name = line.pop("part").split("/")
        place = result
        for folder in folders:
            place = place.setdefault(folder, {})
        if not name:
            place.update(line)
        elif name.endswith(_ITEM):
            place.setdefault(name.removesuffix(_ITEM), []).append(line)
        else:
            place.setdefault(name, {}).update(line)
    return result


def read_results(
    results: Path, scale: str, make_run: Callable[..., AnyRun]
) -> dict[AnyRun, dict[str, Any]]:
    """Return the available results of a scale, sorted by run.

    Raises:
        StudyError: a file is damaged or of another format.
    """
    found: dict[AnyRun, dict[str, Any]] = {}
    for file in sorted(results.glob(f"{scale}.*{SUFFIX}")):
        result = read_result(file)
        found[make_run(**result.pop("run"))] = result
    return dict(sorted(found.items()))  # pyright: ignore[reportArgumentType] - tuples have an order
