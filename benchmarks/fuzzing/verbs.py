"""Verbs in the process of a case, up to the point where they would compile their work."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.fuzzing.cases import Refused, Wrong, end_as_accepted
from tests.forked_runs import exit_status_of

# JAX compiles programs of a few operations for the values of settings, and a program for checksums.
_SMALL_PROGRAM_CHARACTERS = 6000
_SMALL = ("jit_checksums", "jit__identity_fn", "jit_all_finite", "jit__threefry")
_REFUSED_STATUS = (1, 2)


def run_verb(verb: str, arguments: Sequence[str]) -> str:
    """Run a verb, but end the process before the verb compiles a program of its work.

    Raises:
        Refused: the verb refuses the command line or a file.
        Wrong: the verb ends with an undocumented status, or fails without a message.
    """
    stop_at_compilation()
    sys.argv = [f"birdie_jax.{verb}", *arguments]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    status = exit_status_of(sys.argv[0])
    sys.stderr.flush()
    stderr = read_stderr()
    if status == 0:
        return "ends with status 0"
    if status not in _REFUSED_STATUS and "Traceback" not in stderr:
        raise Wrong(f"ends with status {status}: {stderr[-500:]}")
    if not stderr.strip():
        raise Wrong(f"ends with status {status} without a word")
    if f"birdie_jax.{verb}: " not in stderr and "Traceback" not in stderr:
        raise Wrong(f"ends with status {status}, and no line is the verb's: {stderr[-500:]}")
    raise Refused(stderr)


class _Process(subprocess.Popen):
    def __init__(self, args: Any, *rest: Any, **options: Any):
        if isinstance(args, list) and args[:1] == [sys.executable]:
            end_as_accepted(f"starts {args[1:3]}")
        super().__init__(args, *rest, **options)


def read_stderr() -> str:
    """Return the standard error of this process so far."""
    return os.pread(2, 1 << 20, 0).decode(errors="replace")


def stop_at_compilation() -> None:
    """End this process with an accepted input when JAX is about to compile a large program.

    The process also ends when it would start another Python process for its work, as the search of mixtures
    does.
    """
    from jax._src import compiler

    compile_small = compiler.compile_or_get_cached

    def compile_or_end(backend: Any, computation: Any, *rest: Any, **options: Any) -> Any:
        name = str(computation.operation.attributes["sym_name"]).strip('"')
        if not name.startswith(_SMALL) and len(str(computation)) > _SMALL_PROGRAM_CHARACTERS:
            end_as_accepted(f"reaches the compilation of {name}")
        return compile_small(backend, computation, *rest, **options)

    compiler.compile_or_get_cached = compile_or_end
    subprocess.Popen = _Process
