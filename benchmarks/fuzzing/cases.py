"""One case of the fuzzer: pass one input to the program in a separate process, and judge the result.

A case depends only on its kind and its seed. The child inherits the parent's imports and returns its
verdict through a pipe. Without a verdict, the parent knows the signal or the limit that ended the child.
"""

import contextlib
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from benchmarks.fuzzing.isolation import protect_files
from birdie_jax.errors import BirdieError

CPU_SECONDS = 20
IDLE_SECONDS = 20
MAX_RESIDENT_BYTES = 2 << 30
_MAX_FILE_BYTES = 1 << 30
_MEMORY = "/dev/shm"
_POLL_MILLISECONDS = 50
_PAGE = os.sysconf("SC_PAGE_SIZE")

PASSED = ("refused", "correct")
FINDINGS = ("traceback", "wrong", "lines", "unnamed", "hang", "memory", "crash", "generator")
"""The outcomes; `generator` is a fault of the fuzzer."""

_TRACEBACK = "Traceback (most recent call last)"
_FRAME = re.compile(r'File "[^"]*/(birdie_jax/[^"]+|ml_collections/[^"]+)", line (\d+), in (\S+)')
# The last line of a verb; warnings and progress can come before it.
_VERDICT = re.compile(r"^birdie_jax\.\S+: ", re.MULTILINE)


class Wrong(Exception):  # noqa: N818 - a verdict on what the program did
    """The program accepted an input that an independent reader rejects or reads differently."""


class Refused(Exception):  # noqa: N818 - a verdict on what a verb did
    """A verb refused the input with these lines."""


class Case(NamedTuple):
    """An input of the program.

    Attributes:
        what: the description of the input.
        names: fields and files; every refusal must name one of them, unless this is empty.
        run: the function that gives the input to the program, and returns a description of the result. It
            raises a `BirdieError` or `Refused` if the program refuses the input, and `Wrong`.
    """

    what: str
    names: Sequence[str]
    run: Callable[[], str]


# (random numbers, an empty folder, the folder of valid files) -> case
MakeCase = Callable[[random.Random, Path, Path], Case]


@dataclass(frozen=True)
class Outcome:
    """The end of a case.

    Attributes:
        kind: the kind of the case.
        seed: the seed of the case.
        outcome: one of `PASSED` or `FINDINGS`.
        message: the message of the program.
        what: the description of the input.
        seconds: the wall time.
    """

    kind: str
    seed: int
    outcome: str
    message: str
    what: str
    seconds: float


def run_case(kind: str, seed: int, make: MakeCase, valid: Path, keep: Path | None = None) -> Outcome:
    """Run a case in a fork of this process.

    Args:
        kind: the name of the kind.
        seed: the seed.
        make: the function that makes a case of the kind.
        valid: the folder of valid files.
        keep: the folder for the files of the case; if None, they are removed.
    """
    folder = keep or _new_folder()
    began = time.monotonic()
    with tempfile.TemporaryFile() as stderr:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _run_in_child(random.Random(f"{kind}/{seed}"), make, folder, valid, stderr.fileno(), writing)
        os.close(writing)
        verdict, limit = _watch(child, reading)
        _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    if limit or "outcome" not in verdict:
        number = os.waitstatus_to_exitcode(status)
        verdict |= {"outcome": limit or "crash", "message": f"ended with {number}"}
    seconds = round(time.monotonic() - began, 3)
    return Outcome(kind, seed, verdict["outcome"], verdict["message"], verdict.get("what", ""), seconds)


def _new_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="birdie_fuzz_", dir=_MEMORY if os.path.isdir(_MEMORY) else None))


def _watch(child: int, reading: int) -> tuple[dict[str, str], str]:
    """Return the verdict of a child, and the limit that it exceeded. Each can be empty."""
    parts, limit = [], ""
    worked, since = 0, time.monotonic()
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while not limit:
            if poll.poll(_POLL_MILLISECONDS):
                part = pipe.read(1 << 16)
                if not part:
                    break
                parts.append(part)
            state = _state_of(child)
            if state.ticks != worked:
                worked, since = state.ticks, time.monotonic()
            if time.monotonic() - since > IDLE_SECONDS:
                limit = "hang"
            elif state.resident_bytes > MAX_RESIDENT_BYTES:
                limit = "memory"
        if limit:
            os.kill(child, signal.SIGKILL)
    verdict = {}
    # The first line has the input. The second has the end, unless the process died before.
    for line in b"".join(parts).splitlines():
        verdict |= json.loads(line)
    return verdict, limit


class _State(NamedTuple):
    """The CPU time of a process, in ticks, and its resident memory, as the system reports them."""

    ticks: int
    resident_bytes: int


def _state_of(process: int) -> _State:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
        return _State(int(fields[11]) + int(fields[12]), int(fields[21]) * _PAGE)
    except (OSError, IndexError):
        return _State(0, 0)


_write_verdict: Callable[[str, str], NoReturn]


def end_as_accepted(message: str) -> NoReturn:
    """End the process of the case: the program accepts the input and would now start its work."""
    _write_verdict("correct", message)


def _run_in_child(
    draws: random.Random, make: MakeCase, folder: Path, valid: Path, *descriptors: int
) -> NoReturn:
    global _write_verdict  # noqa: PLW0603 - one case a process
    stderr, writing = descriptors

    def write(**fields: str) -> None:
        data = json.dumps(fields).encode("ascii") + b"\n"
        while data:
            data = data[os.write(writing, data) :]

    def write_verdict(outcome: str, message: str) -> NoReturn:
        write(outcome=outcome, message=message[-2000:])
        os._exit(0)

    def end_as_hanging(signal_number: int, frame: FrameType | None) -> NoReturn:
        del signal_number
        places = [line for line in traceback.format_stack(frame) if "birdie_jax" in line]
        write_verdict("hang", f"{CPU_SECONDS} s of processor time: {''.join(places[-3:])}")

    _write_verdict = write_verdict
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(stderr, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES, _MAX_FILE_BYTES))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        signal.signal(signal.SIGXCPU, end_as_hanging)
        protect_files(folder)
        (folder / "tmp").mkdir()
        os.environ |= {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
        os.chdir(folder)
        what, names, run = make(draws, folder, valid)
        write(what=what[:2000])
    except BaseException:
        write_verdict("generator", describe_traceback(traceback.format_exc()))
    try:
        message = run()
    except (BirdieError, Refused) as error:
        write_verdict(*judge_refusal(str(error), names))
    except Wrong as error:
        write_verdict("wrong", str(error))
    except MemoryError as error:
        write_verdict("memory", repr(error))
    except BaseException:
        write_verdict("traceback", describe_traceback(traceback.format_exc()))
    write_verdict("correct", message)


def judge_refusal(message: str, names: Sequence[str]) -> tuple[str, str]:
    """Return the outcome of a refusal, and its message."""
    if _TRACEBACK in message:
        return "traceback", describe_traceback(message)
    if "panicked" in message:
        return "lines", message
    verdict = _VERDICT.search(message)
    lines = message[verdict.start() if verdict else 0 :].splitlines()
    if len(lines) != 1:
        return "lines", message
    if names and not any(name in lines[0] for name in names):
        return "unnamed", f"{lines[0][:1500]} [names none of {', '.join(names)[:300]}]"
    return "refused", lines[0]


def describe_traceback(text: str) -> str:
    """Return the last line of a traceback, after the last place in the program that the traceback names."""
    frames = _FRAME.findall(text)
    place = ":".join(frames[-1]) if frames else "?"
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    return f"{place}: {last[:500]}"
