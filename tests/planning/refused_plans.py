"""Run by test_plan.py: the verb with several argument lists, each in a fork of a process with all imports.

Argument lists are read from stdin as JSON; exit statuses and what stderr received are printed as JSON.
"""

import json
import os
import runpy
import sys
import tempfile
import traceback

# What the verb imports, so that no fork has to import it again.
import birdie_jax.command_line
import birdie_jax.planning
import birdie_jax.text  # noqa: F401


def run_verb(arguments: list[str]) -> tuple[int, str]:
    """Return the exit status of `python -m birdie_jax.plan ARGUMENTS`, and what it wrote to stderr."""
    with tempfile.TemporaryFile("w+") as stderr:
        child = os.fork()
        if child == 0:
            os.dup2(stderr.fileno(), sys.stderr.fileno())
            sys.argv = ["birdie_jax.plan", *arguments]
            os._exit(exit_status_of_verb())
        _, status = os.waitpid(child, 0)
        stderr.seek(0)
        return os.waitstatus_to_exitcode(status), stderr.read()


def exit_status_of_verb() -> int:
    """Run the verb as Python itself runs a program."""
    try:
        runpy.run_module("birdie_jax.plan", run_name="__main__", alter_sys=True)
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
    print(json.dumps([run_verb(arguments) for arguments in json.load(sys.stdin)]))
