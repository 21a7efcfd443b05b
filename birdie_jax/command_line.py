"""The start of every command: flags are parsed, and an error in them is printed as one line."""

import keyword
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import ml_collections
from absl import app, flags

from birdie_jax.config import ConfigError, default_config

_OVERRIDE = "--config."


def start(verb: str, main: Callable[[list[str]], None]) -> None:
    """Parse the flags, and call `main` with the remaining arguments.

    Args:
        verb: the name of the command's module, for messages.
        main: the command itself; it gets the program's name and the arguments that are no flags.
    """

    def parse(arguments: Sequence[str]) -> list[str]:
        try:
            check_overrides(arguments)
            # ml_collections reads the arguments of the program itself.
            sys.argv[:] = subscript_keywords(arguments)
            return flags.FLAGS(list(sys.argv))
        except (flags.Error, ConfigError, AttributeError, TypeError, ValueError) as error:
            # A config file runs while flags are parsed; its error arrives as text with a traceback.
            message = str(error)
            if "Traceback" in message:
                message = message.strip().splitlines()[-1]
            sys.exit(f"birdie_jax.{verb}: {message} (--help lists the flags)")

    app.run(main, flags_parser=parse)


def subscript_keywords(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `--config.init.from` written as `--config.init["from"]`.

    ml_collections reads the path of a field as Python, where `from` is a keyword and cannot be a name.
    """

    def written(argument: str) -> str:
        if not argument.startswith(_OVERRIDE):
            return argument
        path, equals, value = argument.partition("=")
        first, *parts = path.split(".")
        names = [f'["{part}"]' if keyword.iskeyword(part) else f".{part}" for part in parts]
        return first + "".join(names) + equals + value

    return [written(argument) for argument in arguments]


def cache_folder() -> Path:
    """Return the folder for files that can be made again: $XDG_CACHE_HOME, or else ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "birdie_jax"


def cache_compiled_programs() -> None:
    """Use JAX's persistent compilation cache, so that the next command need not compile again."""
    jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def check_overrides(arguments: Sequence[str]) -> None:
    """Check that every `--config.section.field=value` names a field.

    Raises:
        ConfigError: one does not; the message names it and the fields that are allowed.
    """
    for argument in arguments:
        if not argument.startswith(_OVERRIDE):
            continue
        path = argument.removeprefix("--").split("=", 1)[0]
        section = default_config()
        parts = path.split(".")[1:]
        for depth, part in enumerate(parts, start=1):
            if parts[: depth - 1] == ["objectives", "arms"]:
                break
            if not isinstance(section, ml_collections.ConfigDict) or part not in section:
                known = (
                    ", ".join(section) if isinstance(section, ml_collections.ConfigDict) else "no fields"
                )
                raise ConfigError(f"{path}: unknown field {part!r}; allowed: {known}")
            section = section[part]
