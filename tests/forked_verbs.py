"""Run by tests: commands that end soon, each in a fork of a process that has imported what they import.

Argument lists, verb first, are read from stdin as JSON; for each of them exit status, stdout and stderr are
printed as JSON.
"""

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def run_commands(
    commands: Sequence[Sequence[str]], **environment: str | None
) -> list[tuple[int, str, str]]:
    """Return exit status, stdout and stderr of each of `python -m birdie_jax.VERB ARGUMENTS`.

    Args:
        commands: a verb with its arguments each.
        environment: variables to set, or with None to remove.
    """
    changed: Mapping[str, str | None] = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
    done = subprocess.run(
        [sys.executable, "-m", "tests.forked_verbs"],
        cwd=REPOSITORY,
        env={name: value for name, value in changed.items() if value is not None},
        input=json.dumps([list(map(str, command)) for command in commands]),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [tuple(result) for result in json.loads(done.stdout)]


def run_verb(verb: str, *arguments: str) -> tuple[int, str, str]:
    """Return the exit status of a command, and what it wrote to stdout and to stderr."""
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
    """Run the verb as Python itself runs a program."""
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


if __name__ == "__main__":
    # What the verbs import, so that no fork has to import it again.
    import birdie_jax.config_flag
    import birdie_jax.generation
    import birdie_jax.planning
    import birdie_jax.pretraining.run
    import birdie_jax.reporting
    import birdie_jax.tasks.evaluation
    import birdie_jax.trained_model  # noqa: F401

    print(json.dumps([run_verb(*command) for command in json.load(sys.stdin)]))
