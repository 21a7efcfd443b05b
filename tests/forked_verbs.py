"""Short commands for tests, each in a fork of a process that has imported everything."""

import os
import sys
import tempfile
from collections.abc import Sequence

from tests.forked_runs import ForkedRun
from tests.quick_jit import QUICK_FLAGS


class ForkedVerbs:
    """Runs commands one after another."""

    def __init__(self, *preparations: str, **environment: str | None):
        """Set the options that all commands share.

        Args:
            preparations: the names of modules with a function `prepare` that changes the process.
            environment: variables to set, or with None to remove.
        """
        quick = f"{os.environ.get('XLA_FLAGS', '')} {QUICK_FLAGS}".strip()
        changed = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": quick, **environment}
        # This names the running test.
        changed.pop("PYTEST_CURRENT_TEST", None)
        self._environment = {name: value for name, value in changed.items() if value is not None}
        self._preparations = preparations

    def run(self, verb: str, *arguments: object) -> tuple[int, str, str]:
        """Return exit status, stdout and stderr of `python -m birdie_jax.VERB ARGUMENTS`."""
        command = [sys.executable, "-m", f"birdie_jax.{verb}", *map(str, arguments)]
        with tempfile.TemporaryFile("w+") as stderr:
            run = ForkedRun(command, self._environment, preparations=self._preparations, stderr=stderr)
            # Less than the five minutes that a thread of a failed save would wait.
            stdout, _ = run.communicate(240)
            stderr.seek(0)
            return run.wait(0), stdout, stderr.read()


def run_commands(
    commands: Sequence[Sequence[str]], **environment: str | None
) -> list[tuple[int, str, str]]:
    """Return exit status, stdout and stderr of each of `python -m birdie_jax.VERB ARGUMENTS`.

    Args:
        commands: verbs with their arguments.
        environment: variables to set, or with None to remove.
    """
    verbs = ForkedVerbs(**environment)
    return [verbs.run(*command) for command in commands]
