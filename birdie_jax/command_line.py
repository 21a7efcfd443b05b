"""Starts a command: parses its flags and prints a user's error as one line."""

import keyword
import os
import re
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from absl import app, flags

from birdie_jax.cpu_threads import start_enough_threads
from birdie_jax.errors import BirdieError, ConfigError, exit_status, one_line, shown, without_secrets
from birdie_jax.imports import import_extension
from birdie_jax.storage import endless_kind
from birdie_jax.termination import named_sigterm

# The flags that the functions below define belong to the calling commands.
flags.disclaim_key_flags()

_OVERRIDE = "--config."
_IMPORT = "import"
_HELP = frozenset({"--help", "-help", "--h", "-h", "--helpshort"})
_MISSING = re.compile(r"flag --(\w+)=None: Flag --\w+ must have a value other than None\.")
_COMMAND = re.compile(r"python -m birdie_jax\.[^`\n]*[^`\n. \\]")
# Text between dots that is not a Python name.
_NO_NAME = re.compile(rf"\d\w*|{'|'.join(keyword.kwlist)}")
_BAD_COMMAND_LINE = 2
_INTERRUPTED = 130


def start(verb: str, main: Callable[[list[str]], None], *user_errors: type[Exception]) -> None:
    """Parse the flags and call `main` with the program's name.

    An invalid command line ends the program with status 2, an error with `exit_status`, an interruption
    with 130, SIGTERM with 143. If the reader of standard output closes it, as `head` does, the program
    ends without a message.

    Args:
        verb: the name of the command's module, for messages.
        main: the command itself.
        user_errors: exceptions that end this command like a `BirdieError`.
    """
    start_enough_threads()
    if _IMPORT not in flags.FLAGS:
        flags.DEFINE_multi_string(
            _IMPORT,
            [],
            "A module or a .py file that registers objectives, tasks, mixers, policies or hooks.",
        )
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[_IMPORT])
    with named_sigterm(verb):
        try:
            app.run(main, flags_parser=lambda arguments: parse_command_line(verb, arguments))
        except (BirdieError, *user_errors) as error:
            if not (isinstance(error, BrokenPipeError) and is_output_closed()):
                refuse(verb, error)
        except KeyboardInterrupt:
            print(f"birdie_jax.{verb}: stopped", file=sys.stderr)
            sys.exit(_INTERRUPTED)
        except BrokenPipeError:
            if not is_output_closed():
                raise
        finally:
            if is_output_closed():
                # Otherwise Python would raise when it flushes the rest.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_output_closed() -> bool:
    """Return whether the reader of standard output has closed its pipe."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # it is not a file
        return False
    # A flush would not show this: it may already have dropped the unwritten text.
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def parse_command_line(verb: str, arguments: Sequence[str]) -> list[str]:
    """Set the flags, or end the command with status 2; return the program's name.

    With `--help`, print the command's docstring and its flags, and end with status 0.

    Args:
        verb: the name of the command's module, for messages.
        arguments: the program's name and its arguments.
    """
    if not _HELP.isdisjoint(arguments[1:]):
        print(f"{_docstring().strip()}\n{flags.FLAGS.main_module_help()}")
        sys.exit()
    check_flag_files(verb, arguments)
    try:
        # Import before reading --config: an import may define fields.
        for name in _values_of(_IMPORT, arguments):
            import_extension(name, f"--{_IMPORT}")
        # ml_collections reads the program's arguments itself.
        sys.argv[:] = subscript_keywords(arguments)
        left = flags.FLAGS(list(sys.argv))
    except ConfigError as error:
        refuse_command_line(verb, str(error))
    except (flags.Error, LookupError, AttributeError, TypeError, ValueError, OSError) as error:
        # absl writes one line per flag.
        refuse_command_line(verb, str(error).replace("\nflag --", "; flag --"))
    except RecursionError:
        # absl searches for similar flags with a recursion over characters.
        refuse_command_line(verb, "the name of a flag is too long")
    if len(left) > 1:
        refuse_command_line(verb, f"unknown argument {shown(left[1])}; every option begins with --")
    return left


def check_flag_files(verb: str, arguments: Sequence[str]) -> None:
    """End the command with status 2 if a --flagfile may never end, such as a device or a named pipe.

    Args:
        verb: the name of the command's module, for messages.
        arguments: the program's name and its arguments.
    """
    for path in _values_of("flagfile", arguments):
        if endless := endless_kind(os.path.expanduser(path)):
            refuse_command_line(verb, f"--flagfile={path}: found {endless}; allowed: a file of flags")


def given_imports() -> tuple[str, ...]:
    """Return the names in --import."""
    return tuple(flags.FLAGS[_IMPORT].value or ()) if _IMPORT in flags.FLAGS else ()


def _values_of(name: str, arguments: Sequence[str]) -> Iterator[str]:
    """Yield the values of the flags with a name, before flags are parsed."""
    for number, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag in (f"--{name}", f"-{name}"):
            if equals:
                yield value
            elif number + 1 < len(arguments):
                yield arguments[number + 1]


def refuse(verb: str, error: Exception, message: str = "") -> NoReturn:
    """End the command with an error on one line, and with the status of the error (`exit_status`).

    Args:
        verb: the name of the command's module.
        error: the error.
        message: replaces the error's own message.
    """
    print(f"birdie_jax.{verb}: {one_line(without_secrets(message or str(error)))}", file=sys.stderr)
    sys.exit(exit_status(error))


def refuse_command_line(verb: str, message: str) -> NoReturn:
    """End the command with status 2, and one line about its command line.

    Args:
        verb: the name of the command's module.
        message: the found value and the allowed ones.
    """
    # absl's message about missing required flags.
    message, missing = _MISSING.subn(r"--\1 is not given", message)
    if missing:
        message = with_example(message)
    message = one_line(without_secrets(message), 800)
    print(f"birdie_jax.{verb}: {message} (--help lists the flags)", file=sys.stderr)
    sys.exit(_BAD_COMMAND_LINE)


def with_example(message: str) -> str:
    """Return a message about missing flags, with the example command from the verb's docstring."""
    example = _COMMAND.search(_docstring())
    return f"{message}; example: {example[0]}" if example else message


def _docstring() -> str:
    """Return the docstring of the running command."""
    return sys.modules["__main__"].__doc__ or ""


def define_path(name: str, help_text: str, *, required: bool = False) -> flags.FlagHolder:
    """Define and return a flag for the name of a file or folder; refuse an empty name.

    A shell expands an unset variable to an empty name, which Python reads as the current folder.

    Args:
        name: the name of the flag.
        help_text: the flag's text in --help.
        required: whether the command needs it.
    """
    holder = flags.DEFINE_string(name, None, help_text, required=required)
    forbid_empty(name)
    return holder


def forbid_empty(name: str) -> None:
    """Refuse an empty value of a defined flag.

    Args:
        name: the name of the flag.
    """
    flags.register_validator(
        name, lambda value: value != "", "found ''; allowed: the name of a file or folder"
    )


def subscript_keywords(arguments: Sequence[str]) -> list[str]:
    """Return the arguments, with `--config.init.from` rewritten as `--config.init["from"]`.

    ml_collections reads the path of a field as Python, in which `from` (a keyword) and `1_flan` are not
    names.
    """

    def written(argument: str) -> str:
        if not argument.startswith(_OVERRIDE):
            return argument
        path, equals, value = argument.partition("=")
        first, *parts = path.split(".")
        names = [f'["{part}"]' if _NO_NAME.fullmatch(part) else f".{part}" for part in parts]
        return first + "".join(names) + equals + value

    return [written(argument) for argument in arguments]
