"""One case: disturb the first starts of a program, let it end, and compare the results."""

import errno
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.fault_kinds.layer import Disturbance
from benchmarks.fault_kinds.programs import Program
from benchmarks.fault_kinds.starts import Ended, HungError, Moment, run_in_forks

# Lines that commands log, in addition to their last line.
_LOGGED = re.compile(r"[IWE]\d{4} \d\d:\d\d:\d\d|(WARNING|ERROR):absl:|\s*$")
# The message and the stack that JAX's C++ runtime writes if the coordinator process is gone.
_ABORTED = re.compile(r"^F\d{4} \d\d:\d\d:\d\d.*?(?=^birdie_jax)", re.DOTALL | re.MULTILINE)
_CLEAN_ENDS = (0, -9, -15, 143)
# A process returns 75 if it reports the loss of another process.
_STOPPED = (1, 2, 75)
_MAX_ENDINGS = 3


class Operation(NamedTuple):
    """A file operation: its class, its name and its path."""

    kind: int
    name: str
    path: str


def parse_operations(lines: Sequence[str], workdir: Path) -> list[Operation]:
    """Parse the lines that the layer writes; return operations with paths below the folder."""
    operations = []
    for line in lines:
        _, kind, name, path = line.split(" ", 3)
        operations.append(Operation(int(kind), name, path.removeprefix(str(workdir))))
    return operations


class Reference(NamedTuple):
    """An undisturbed run of a program.

    Attributes:
        program: the program.
        end: the results at its end, with a checkpoint of every step.
        operations: the file operations of its only start.
        resumed: the file operations of a start after its end, which only restores.
        cpu_seconds: the CPU time of that start.
    """

    program: Program
    end: dict[str, str]
    operations: list["Operation"]
    resumed: list["Operation"]
    cpu_seconds: float

    def count(self, classes: int, part: str = "", *, resumed: bool = False) -> int:
        """Return the number of operations of the given classes on paths that contain a text."""
        operations = self.resumed if resumed else self.operations
        return sum(bool(each.kind & classes) and part in each.path for each in operations)


class Step(NamedTuple):
    """A start of a case.

    Attributes:
        disturbance: the disturbed operation, below the folder of the case.
        moment: the moment of a signal.
        prepare: the function that the process runs first.
        before: the function that this process runs on the folder first.
        fault: the description of the fault, if neither the layer nor a signal makes it.
        check: (how the start ended, its line) -> the description of anything unexpected.
    """

    disturbance: Disturbance | None = None
    moment: Moment | None = None
    prepare: Callable[[], None] | None = None
    before: Callable[[Path], None] | None = None
    fault: str = ""
    check: Callable[[Ended, str], list[str]] | None = None


def play(reference: Reference, steps: Sequence[Step], folder: Path) -> dict[str, Any]:
    """Run the starts of a case, then start the program until it ends, and return the record of the case.

    Args:
        reference: the undisturbed run.
        steps: the disturbed starts.
        folder: an empty folder; the folder of the program is below it.
    """
    program, workdir = reference.program, folder / "run"
    began = time.monotonic()
    case: dict[str, Any] = {"program": program.name, "starts": [], "lines": []}
    case |= {"different": [], "lost": [], "tracebacks": [], "odd": []}
    saved: dict[str, str] = {}
    undisturbed = [Step(prepare=steps[-1].prepare)] * _MAX_ENDINGS
    try:
        for number, step in enumerate([*steps, *undisturbed]):
            ended = _start(program, step, workdir, folder)
            now = program.saved(workdir)
            case["lost"] += program.lost(saved, now)
            saved = now
            _note_start(case, program, step, ended)
            complete = not any(each.status for each in (ended, *ended.others))
            if complete and number >= len(steps) - 1:
                break
        else:
            case["odd"].append("the program does not end when it is no longer disturbed")
    except HungError as error:
        case["odd"].append(str(error))
    else:
        if complete:
            case["different"] = differences(reference.end, program.end(workdir))
    case["seconds"] = round(time.monotonic() - began, 2)
    return case


def _start(program: Program, step: Step, workdir: Path, folder: Path) -> Ended:
    if step.before is not None:
        step.before(workdir)
    disturbance = step.disturbance and step.disturbance._replace(folder=f"{workdir}")
    actions = program.actions(workdir, False)
    return run_in_forks(actions, folder, disturbance=disturbance, moment=step.moment, prepare=step.prepare)


def _note_start(case: dict[str, Any], program: Program, step: Step, ended: Ended) -> None:
    start: dict[str, Any] = {"status": ended.status, "cpu_seconds": ended.cpu_seconds}
    start["seconds"] = ended.seconds
    if step.disturbance is not None and ended.operations:
        start["disturbed"] = ended.operations[-1]
    elif step.fault:
        start["disturbed"] = step.fault
    if ended.others:
        start["others"] = [each.status for each in ended.others]
    case["starts"].append(start)
    for each in (ended, *ended.others):
        _note_end(case, program, step, each)


def _note_end(case: dict[str, Any], program: Program, step: Step, ended: Ended) -> None:
    if "Traceback" in ended.errors + ended.printed:
        case["tracebacks"].append((ended.printed + ended.errors)[-3000:])
    line, odd = "", []
    if ended.status not in _CLEAN_ENDS:
        line, odd = read_end(program, ended)
        case["lines"].append(line)
    case["odd"] += odd
    if step.check is not None:
        case["odd"] += step.check(ended, line)
    if not line:
        return
    error = step.disturbance.error if step.disturbance is not None else ""
    if error and not names_cause(line, error, ended.operations):
        case["odd"].append(f"no cause of {ended.operations[-1:]} in: {line}")


def read_end(program: Program, ended: Ended) -> tuple[str, list[str]]:
    """Return the last line of a command that stops, and a description of unexpected output."""
    prefix = f"birdie_jax.{program.verb}: "
    lines = _ABORTED.sub("", ended.errors).strip().splitlines()
    last = lines[-1] if lines else ""
    if ended.status not in _STOPPED or not last.startswith(prefix):
        errors = _shortened(ended.errors)
        return last, [f"status {ended.status} and no line {prefix!r} at the end: {errors}"]
    others = [line for line in lines[:-1] if not _LOGGED.match(line)]
    return last, [f"more than one line: {others[:5]}"] if others else []


def _shortened(text: str) -> str:
    return text if len(text) <= 4000 else f"{text[:2000]} ... {text[-2000:]}"


def names_cause(line: str, error: str, operations: Sequence[str]) -> bool:
    """Return whether a line names the system's error or the disturbed file."""
    path = operations[-1].split(" ", 3)[3] if operations else ""
    return os.strerror(getattr(errno, error)) in line or (path != "" and path in line)


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the names of the results that are missing or not as expected.

    The last checkpoint of the expected results must exist; the others may be missing.
    """
    checkpoints = sorted({name.split("/")[0] for name in expected if name[:8].isdigit()})
    optional = tuple(f"{name}/" for name in checkpoints[:-1])
    missing = {name for name in expected.keys() - found.keys() if not name.startswith(optional)}
    return sorted(missing | {name for name in found if expected.get(name) != found[name]})


def make_reference(program: Program, folder: Path) -> Reference:
    """Run a program undisturbed, once with a checkpoint of every step, which its results then contain.

    Raises:
        SystemExit: the program fails, or two undisturbed runs differ.
    """
    ends: list[dict[str, str]] = []
    started: list[list[Operation]] = []
    for name in ("every_step", "usual"):
        (folder / name).mkdir(parents=True)
        workdir = folder / name / "run"
        actions = program.actions(workdir, name == "every_step")
        ended = run_in_forks(actions, folder / name, disturbance=Disturbance(str(workdir)))
        if any(each.status for each in (ended, *ended.others)):
            raise SystemExit(f"{program.name} ends with {ended.status}: {ended.printed}{ended.errors}")
        ends.append(program.end(workdir))
        started.append(parse_operations(ended.operations, workdir))
    if differences(*ends):
        raise SystemExit(f"{program.name}: two undisturbed runs differ in {differences(*ends)}")
    actions = program.actions(workdir, False)
    again = run_in_forks(actions, folder / name, disturbance=Disturbance(str(workdir)))
    return Reference(
        program, ends[0], started[1], parse_operations(again.operations, workdir), ended.cpu_seconds
    )
