"""Run other programs by argument vectors, and print each command.

The commands run without a shell. For the shell at the other end of an ssh connection, `format_remote`
writes a script that the shell reads back as the same arguments.
"""

import argparse
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

_PARENT = Path(__file__).resolve().parents[1]
IS_CHECKOUT = (_PARENT / "setup.cfg").is_file()
"""Whether these launchers are in a checkout; in a wheel, they have no code to send."""
REPOSITORY = _PARENT if IS_CHECKOUT else Path.cwd()
"""The folder in which commands run: the checkout's root, or for a wheel the current folder."""

# A name that Google Cloud, Kubernetes and Slurm all accept.
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_MAX_MESSAGE = 600
_MAX_DIGITS = 9
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


# The exit status if the command line or configuration must change; see docs/launch_local.md.
WRONG_COMMAND = 2


class LaunchError(Exception):
    """Raised if a program that a launcher runs fails; the message names it.

    Attributes:
        status: the exit status of the launcher.
    """

    status = 1


class UsageError(LaunchError):
    """Raised if a launcher's options or command are wrong; the message names the option or the command."""

    status = WRONG_COMMAND


class Parser(argparse.ArgumentParser):
    """An option parser that reports errors in one short line."""

    def error(self, message: str) -> NoReturn:
        """End the launcher with status 2."""
        launcher = f"launch.{self.prog.rpartition('.')[2]}"
        # A wrong value may be long, and the message ends with the allowed values. Keep both ends.
        if len(message) > _MAX_MESSAGE:
            message = f"{message[: _MAX_MESSAGE // 2]}...{message[-_MAX_MESSAGE // 2 :]}"
        self.exit(2, f"{launcher}: {_one_line(message)} (--help lists the options)\n")


def program(launcher: str) -> str:
    """Return the command of a launcher, for its help; in a wheel, its package is below birdie_jax."""
    return f"python -m {__package__}.{launcher}"


class Commands:
    """Runs commands one after another in `REPOSITORY`, or only prints them.

    A dry run and a real run use the same code. So a dry run prints the commands of a real run, if the
    programs answer as the launcher assumes.
    """

    def __init__(self, dry_run: bool):
        self.dry_run = dry_run

    def run(self, command: Sequence[str], *, stdin: str | None = None) -> None:
        """Run a command with `stdin` as its standard input, which is never printed.

        Raises:
            LaunchError: the command failed, or there is no such program.
        """
        status = self.status(command, stdin=stdin)
        if status:
            raise LaunchError(f"{' '.join(command[:5])}: failed with exit status {status}")

    def status(self, command: Sequence[str], *, assumed: int = 0, stdin: str | None = None) -> int:
        """Run a command and return its exit status; in a dry run, return `assumed`."""
        self._show(command)
        if self.dry_run:
            return assumed
        return self._subprocess(command, input=stdin).returncode

    def capture(self, command: Sequence[str], *, assumed: tuple[int, str]) -> tuple[int, str, str]:
        """Run a command and return its exit status, standard output and standard error."""
        self._show(command)
        if self.dry_run:
            return (*assumed, "")
        done = self._subprocess(command, capture_output=True)
        return done.returncode, done.stdout.strip(), done.stderr.strip()

    def _show(self, command: Sequence[str]) -> None:
        # Print one line for each command, whatever it contains: a shell reads $'...' back.
        print(format_command(command), flush=True)

    def _subprocess(self, command: Sequence[str], **options) -> subprocess.CompletedProcess:
        try:
            return subprocess.run(command, cwd=REPOSITORY, text=True, check=False, **options)
        except FileNotFoundError as error:
            raise LaunchError(f"{command[0]}: no such program on PATH") from error
        except OSError as error:
            raise LaunchError(f"{command[0]}: cannot be run: {error.strerror}") from error


def format_command(command: Sequence[str]) -> str:
    """Return a command as one line that bash reads back as the same arguments.

    This is `shlex.join`, except that unprintable characters are escaped, to keep the command on one line.
    """
    return " ".join(shlex.quote(word) if word.isprintable() else _escaped(word) for word in command)


def _one_line(text: str) -> str:
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _escaped(word: str) -> str:
    parts = []
    for character in word:
        if character in "\\'":
            parts.append("\\" + character)
        elif character.isprintable():
            parts.append(character)
        else:
            parts += [f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape")]
    return f"$'{''.join(parts)}'"


def format_remote(*commands: Sequence[str]) -> str:
    """Return a POSIX shell script that runs the commands in order, until one fails."""
    return " && ".join(shlex.join(command) for command in commands)


def parse_arguments(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> tuple[argparse.Namespace, list[str]]:
    """Return a launcher's own options, and the command that follows `--`, which may be missing.

    A command that begins with a dash is refused, because programs would take it for an option.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, command = parser.parse_args(arguments[:end]), arguments[end + 1 :]
    if command and command[0].startswith("-"):
        parser.error(f"command: found {command[0]!r}; allowed: a program, not an option")
    return options, command


def require_command(command: Sequence[str]) -> None:
    """Check that a command was given.

    Raises:
        UsageError: there is no command.
    """
    if not command:
        raise UsageError("no command: give it after --, as in -- python -m birdie_jax.train --config=...")


def parse_name(text: str) -> str:
    """Parse the name of a run, for argparse."""
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"found {text!r}; allowed: a small letter, then small letters, digits and dashes, 40 at most"
        )
    return text


def parse_positive(text: str) -> int:
    """Parse a number that is 1 or more, for argparse."""
    number = _parse_number(text)
    if number is None or number < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: 1 or more")
    return number


def parse_non_negative(text: str) -> int:
    """Parse a number that is 0 or more, for argparse."""
    number = _parse_number(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: 0 or more")
    return number


def parse_port(text: str) -> int:
    """Parse the number of a port, for argparse."""
    number = _parse_number(text)
    if number is None or not 1 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: 1 to 65535")
    return number


def parse_text(text: str) -> str:
    """Parse a name or path that must not be empty, for argparse.

    A shell expands a variable that is not set to an empty text.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: a name that is not empty")
    return text


def _parse_number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else None


def parse_variable(text: str) -> str:
    """Parse the name of an environment variable, without a value, for argparse.

    The message does not show the text: it may be NAME=VALUE, and values are secrets.
    """
    if not _VARIABLE.fullmatch(text):
        raise argparse.ArgumentTypeError("allowed: the name of an environment variable, without its value")
    if text not in os.environ:
        raise argparse.ArgumentTypeError(f"{text} is not set in the environment")
    return text


def read_variables(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the named environment variables."""
    return {one: environment[one] for one in names}


def check_configuration(run: Commands, launcher: str, command: Sequence[str]) -> None:
    """Check the configuration of a train command on this machine, before the launcher requests others.

    If the command cannot run here, for example without its packages, this is printed, and the check is
    skipped.

    Args:
        run: runs the command.
        launcher: the launcher's name, for messages.
        command: the command of the run.

    Raises:
        UsageError: the command line or the configuration is wrong.
    """
    if not _trains(command):
        return
    try:
        status, _, said = run.capture([*command, "--check"], assumed=(0, ""))
    except LaunchError as error:
        status, said = 1, str(error)
    reason = said.strip().splitlines()[-1] if said.strip() else f"it ended with {status}"
    if status == WRONG_COMMAND:
        raise UsageError(reason)
    if status:
        print(f"launch.{launcher}: the configuration is not checked on this machine: {reason}", flush=True)


def _trains(command: Sequence[str]) -> bool:
    """Return whether a command is `... -m birdie_jax.train ...` or `birdie train ...`."""
    pairs = list(itertools.pairwise(command))
    return ("-m", "birdie_jax.train") in pairs or any(
        Path(program).name == "birdie" and verb == "train" for program, verb in pairs[:1]
    )


def exit_with_error(launcher: str, error: Exception) -> NoReturn:
    """Print an error in one line, and end the launcher with the status of the error."""
    print(f"launch.{launcher}: {_one_line(str(error))}", file=sys.stderr)
    sys.exit(error.status if isinstance(error, LaunchError) else 1)
