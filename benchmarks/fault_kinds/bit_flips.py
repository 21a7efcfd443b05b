"""Flips of one bit in a file of a resumed run, or of prepared text."""

import random
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.fault_kinds.layer import Action, Class, Disturbance
from benchmarks.fault_kinds.play import Reference, differences, read_end
from benchmarks.fault_kinds.programs import Program
from benchmarks.fault_kinds.starts import Ended, run_in_forks

_NUMBERED = re.compile(r"(?<=/d/)[0-9a-f]{32}|\d{5,}|(?<=events)\..*")


def kind_of_file(name: str) -> str:
    """Return the kind of a file: its path, with stars for numbers and random names."""
    return _NUMBERED.sub("*", name)


def files_by_kind(folder: Path) -> dict[str, list[str]]:
    """Return the nonempty files of a folder by kind."""
    kinds: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.stat().st_size:
            name = str(path.relative_to(folder))
            kinds.setdefault(kind_of_file(name), []).append(name)
    return kinds


def make_template(reference: Reference, folder: Path, *, midway: bool) -> Path:
    """Return the folder of a program that was killed midway, or that ended."""
    folder.mkdir(parents=True)
    workdir = folder / "run"
    changes = reference.count(Class.CHANGES)
    kill = Disturbance(str(workdir), "", Class.CHANGES, 7 * changes // 10, Action.KILL)
    run_in_forks(reference.program.actions(workdir, False), folder, disturbance=kill if midway else None)
    return workdir


def flip_and_start(
    draws: random.Random, reference: Reference, template: Path, folder: Path
) -> dict[str, Any]:
    """Flip a bit in a copy of the template, start a program on it, and compare the results.

    The function draws a kind of file first, so rare kinds count as much as frequent ones. A program that
    refuses the file must name it, or the folder of the checkpoint or the text. Then the function restores
    the bit and starts the program again.

    Args:
        draws: the random numbers that choose the bit.
        reference: the undisturbed run.
        template: the folder to copy.
        folder: an empty folder.
    """
    program, workdir, began = reference.program, folder / "run", time.monotonic()
    shutil.copytree(template, workdir)
    before = program.saved(workdir)
    kinds = files_by_kind(workdir)
    kind = draws.choice(sorted(kinds))
    path = workdir / draws.choice(kinds[kind])
    contents = path.read_bytes()
    # Small shards consist mostly of zeros, so half of the flips are in nonzero bytes.
    places = [place for place, byte in enumerate(contents) if byte] if draws.random() < 0.5 else []
    bit = 8 * draws.choice(places or range(len(contents))) + draws.randrange(8)
    flipped = bytearray(contents)
    flipped[bit // 8] ^= 1 << bit % 8
    path.write_bytes(flipped)
    case: dict[str, Any] = {"program": program.name, "file": kind, "bit": bit, "starts": [], "lines": []}
    case |= {"different": [], "lost": [], "tracebacks": [], "odd": []}
    start = _starter(program, workdir, folder, case)
    ended = start()
    name = str(path.relative_to(workdir))
    checkpoint = "/".join(name.split("/")[:2])
    if ended.status:
        line, odd = read_end(program, ended)
        case |= {"lines": [line], "odd": odd, "verdict": "refused"}
        if not any(text in line for text in (name, str(workdir / checkpoint), path.name)):
            case["odd"].append(f"{name} is not named in: {line}")
        path.write_bytes(contents)
        ended = start()
    elif (workdir / "damaged_checkpoints").exists():
        case["verdict"] = "set aside"
    else:
        case["verdict"] = "ended"
    if ended.status:
        case["odd"].append(f"status {ended.status} after the bit was mended: {ended.errors[-500:]}")
    else:
        found = differences(reference.end, program.end(workdir))
        # If no start noticed the bit, only the file and its checkpoint may differ: the start can have
        # read a newer checkpoint.
        own = (name, f"{checkpoint.removeprefix('checkpoints/')}/") if case["verdict"] == "ended" else ()
        case["different"] = [each for each in found if not each.startswith(own)]
        if len(found) > len(case["different"]):
            case["verdict"] = "not noticed"
    now = program.saved(workdir)
    damaged = {checkpoint.removeprefix("checkpoints/"), name}
    case["lost"] = [each for each in program.lost(before, now) if each not in damaged]
    return case | {"seconds": round(time.monotonic() - began, 2)}


def _starter(program: Program, workdir: Path, folder: Path, case: dict[str, Any]) -> Callable[[], Ended]:
    def start() -> Ended:
        ended = run_in_forks(program.actions(workdir, False), folder)
        case["starts"].append({"status": ended.status, "cpu_seconds": ended.cpu_seconds})
        if "Traceback" in ended.errors + ended.printed:
            case["tracebacks"].append((ended.printed + ended.errors)[-3000:])
        return ended

    return start
