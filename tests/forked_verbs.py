"""Runs short commands for tests, each in a fork of a process that has imported everything.

It reads argument lists, verb first, from stdin, one JSON list per line. For each it prints exit status,
stdout and stderr as a line of JSON. Its own arguments are test modules; it first calls their functions
`prepare`.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from tests.quick_jit import QUICK_FLAGS

REPOSITORY = Path(__file__).resolve().parents[1]


class ForkedVerbs:
    """A context manager: a process that runs commands in forks, one after another."""

    def __init__(self, *preparations: str, **environment: str | None):
        """Set the options that all commands share.

        Args:
            preparations: the names of modules with a function `prepare` that changes the process.
            environment: variables to set, or with None to remove.
        """
        self._environment = _with_changes(environment)
        self._preparations = preparations

    def __enter__(self) -> "ForkedVerbs":
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked_verbs", *self._preparations],
            cwd=REPOSITORY,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        return self

    def run(self, verb: str, *arguments: object) -> tuple[int, str, str]:
        """Return exit status, stdout and stderr of `python -m birdie_jax.VERB ARGUMENTS`."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps([verb, *map(str, arguments)]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._errors.seek(0)
            raise AssertionError(self._errors.read()[-3000:])
        status, stdout, stderr = json.loads(answer)
        return status, stdout, stderr

    def __exit__(self, *error: object) -> None:
        with self._errors, self._process:
            assert self._process.stdin
            self._process.stdin.close()
            self._process.wait(60)


def run_commands(
    commands: Sequence[Sequence[str]], **environment: str | None
) -> list[tuple[int, str, str]]:
    """Return exit status, stdout and stderr of each of `python -m birdie_jax.VERB ARGUMENTS`.

    Args:
        commands: verbs with their arguments.
        environment: variables to set, or with None to remove.
    """
    verbs = _last_verbs(tuple(sorted(_with_changes(environment).items())))
    return [verbs.run(*command) for command in commands]


def _with_changes(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment of commands: this process's with changes, and quick compilation by default."""
    quick = f"{os.environ.get('XLA_FLAGS', '')} {QUICK_FLAGS}".strip()
    changed = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": quick, **changes}
    # This names the running test.
    changed.pop("PYTEST_CURRENT_TEST", None)
    return {name: value for name, value in changed.items() if value is not None}


@lru_cache(maxsize=1)
def _last_verbs(environment: tuple[tuple[str, str], ...]) -> ForkedVerbs:
    """Return the process for an environment, which later commands reuse."""
    _open_verbs.close()
    gone = dict.fromkeys(os.environ.keys() - dict(environment).keys())
    return _open_verbs.enter_context(ForkedVerbs(**gone, **dict(environment)))


_open_verbs = contextlib.ExitStack()
atexit.register(_open_verbs.close)


def run_verb(verb: str, *arguments: str) -> tuple[int, str, str]:
    """Return the exit status, stdout and stderr of a command."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        child = os.fork()
        if child == 0:
            os.dup2(stdout.fileno(), 1)
            os.dup2(stderr.fileno(), 2)
            sys.argv = [f"birdie_jax.{verb}", *arguments]
            status = exit_status_of_verb(verb)
            sys.stdout.flush()
            os._exit(status)
        _, status = os.waitpid(child, 0)
        stdout.seek(0)
        stderr.seek(0)
        return os.waitstatus_to_exitcode(status), stdout.read(), stderr.read()


def exit_status_of_verb(verb: str) -> int:
    """Run the verb like Python runs a program."""
    try:
        runpy.run_module(f"birdie_jax.{verb}", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr, flush=True)
            return 1
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def prepare_forks() -> None:
    """Import the modules of the verbs, so no fork has to."""
    import birdie_jax.config_flag
    import birdie_jax.finetuning.run
    import birdie_jax.generation
    import birdie_jax.planning
    import birdie_jax.reporting
    import birdie_jax.resolve
    import birdie_jax.tasks.evaluation
    import birdie_jax.trained_model  # noqa: F401

    # Exclude these objects from garbage collection in forks, and collect less often.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


if __name__ == "__main__":
    prepare_forks()
    for module in sys.argv[1:]:
        importlib.import_module(module).prepare()
    for line in sys.stdin:
        print(json.dumps(run_verb(*json.loads(line))), flush=True)
