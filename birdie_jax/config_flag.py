"""The flag --config: a Python file that returns a configuration, and flags that set its fields.

ml_collections parses the fields, `--config.section.field=value`. This module loads the file, and reports
any error in it as one line.
"""

import ast
import contextlib
import dataclasses
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import ml_collections
from absl import flags
from ml_collections import config_flags
from ml_collections.config_flags import config_path

from birdie_jax.command_line import check_flag_files, refuse_command_line, subscript_keywords
from birdie_jax.config import default_config, import_named
from birdie_jax.config_sections import CorpusConfig
from birdie_jax.errors import ConfigError, nearest_first, one_line, shown

# The flag belongs to the command that calls `define_config`.
flags.disclaim_key_flags()

_NAME = "config"
_OVERRIDE = re.compile(rf"--?(?:no)?{_NAME}\.(?P<path>[^=]*)")


class _UserNamed(NamedTuple):
    """A section with fields that the user names.

    Attributes:
        kind: the word for a field.
        kinds: the plural of the word.
        example: a value of the flag that sets all fields.
    """

    kind: str
    kinds: str
    example: str


_ARM = "{'copy': {'objective': 'copying', 'weight': 1.0}}"
_TASK = "{'recall': {'task': 'associative_recall'}}"
_STAGE = "{'1_book': {'task': 'phonebook', 'length': 1024, 'rows': 8, 'steps': 100}}"
_CORPORA = "{'web': {'source': 'web/*.jsonl', 'weight': 0.7}, 'code': {'source': 'code'}}"
_CORPORA_PATH = ("data", "corpora")
_CORPUS = dataclasses.asdict(CorpusConfig())
_USER_NAMED = {
    _CORPORA_PATH: _UserNamed("corpus", "corpora", f'--{_NAME}.data.corpora="{_CORPORA}"'),
    ("objectives", "arms"): _UserNamed("arm", "arms", f'--{_NAME}.objectives.arms="{_ARM}"'),
    ("eval", "tasks"): _UserNamed("task", "tasks", f'--{_NAME}.eval.tasks="{_TASK}"'),
    ("finetune", "stages"): _UserNamed("stage", "stages", f'--{_NAME}.finetune.stages="{_STAGE}"'),
}
_USER_NAMED_DEPTH = 2
_FIELDS_HELP = (
    f"Each of its fields is a flag: --{_NAME}.SECTION.FIELD=VALUE, as in "
    f"--{_NAME}.optimizer.learning_rate=2e-3; birdie_jax/config_sections.py explains them."
)


class ConfigFlagError(flags.Error):
    """An invalid value of --config or of one of its fields; the message has the allowed values."""


class ConfigFileParser(flags.ArgumentParser):
    """The parser of --config, from `FILE` or `FILE:VARIANT` to the configuration that the file returns."""

    def parse(self, argument: str) -> ml_collections.ConfigDict:
        """Load a configuration and check that it has every field that a flag sets.

        Raises:
            ConfigFlagError: the file or a field is unusable.
        """
        arguments = flags.FLAGS.read_flags_from_files(sys.argv, force_gnu=False)
        try:
            config = load_config(argument)
            check_overrides(arguments)
            _add_fields_of_corpora(arguments, config)
            _check_user_named(arguments, config)
            _check_types(arguments, config)
        except ConfigError as error:
            raise ConfigFlagError(str(error)) from error
        return config.lock()

    def flag_type(self) -> str:
        """Return the type of the flag's value, for --help."""
        return "config file"


def define_config(help_text: str) -> flags.FlagHolder:
    """Define and return the flag --config; its value is the configuration with all fields set.

    Args:
        help_text: the flag's text in --help.
    """
    check_flag_files(Path(sys.argv[0]).stem, sys.argv)
    try:
        holder = config_flags.DEFINE_config_file(_NAME, None, f"{help_text} {_FIELDS_HELP}")
    except (flags.Error, ValueError, OSError) as error:
        # This already reads the command line, including a --flagfile, which may not be text.
        refuse_command_line(Path(sys.argv[0]).stem, str(error))
    flags.FLAGS[_NAME].parser = ConfigFileParser()
    return holder


def load_config(argument: str) -> ml_collections.ConfigDict:
    """Return the configuration of a file or a preset, `FILE`, `PRESET`, `FILE:VARIANT` or `PRESET:VARIANT`.

    Raises:
        ConfigError: the file or preset does not exist, does not run, or returns something else; the message
            names the file, and the line if there is one.
    """
    name, colon, variant = argument.partition(":")
    where = f"--{_NAME}={one_line(argument, 300)}"
    file = _find_file(name, where)
    with _user_errors(where, file):
        module = _run_file(file)
    get_config = getattr(module, "get_config", None)
    if not callable(get_config):
        raise ConfigError(f"{where}: found no function get_config; allowed: one, as in configs/tiny.py")
    variants = [variant] if colon else []
    _check_variant(get_config, variants, where)
    with _user_errors(where, file):
        config = get_config(*variants)
    if not isinstance(config, ml_collections.ConfigDict):
        raise ConfigError(
            f"{where}: get_config returned a value of type {type(config).__name__}; allowed: a ConfigDict, "
            "as birdie_jax.config.default_config() returns one to be changed"
        )
    with _user_errors(where, file):
        import_named(config)
    if isinstance(config, ml_collections.FrozenConfigDict):
        # Flags cannot set the fields of a frozen configuration.
        return ml_collections.ConfigDict(config.to_dict())
    return config


def preset_files() -> dict[str, Path]:
    """Return the files of configs/ by their names without `.py`."""
    package = Path(__file__).resolve().parent
    # A wheel has configs/ below birdie_jax/; a checkout has it next to birdie_jax/.
    inside = package / "configs"
    folder = inside if inside.is_dir() else package.with_name("configs")
    return {path.stem: path for path in sorted(folder.glob("*.py"))}


def _find_file(name: str, where: str) -> Path:
    if os.path.isfile(name):
        return Path(name)
    presets = preset_files()
    if name in presets:
        return presets[name]
    found = "a folder" if os.path.isdir(name) else "no file"
    allowed = f"a Python file such as configs/tiny.py, or a preset: {nearest_first(name, presets)}"
    raise ConfigError(f"{where}: found {found}; allowed: {allowed}")


@contextlib.contextmanager
def _user_errors(where: str, file: Path) -> Iterator[None]:
    """Convert any exception of a config file, which is a user's program, to one line."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where}: cannot be used: {_describe(error, file)}") from error


def _run_file(path: Path) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(f"{_NAME}_file", str(path))
    spec = importlib.util.spec_from_file_location(loader.name, path, loader=loader)
    assert spec is not None  # `loader` is set
    module = importlib.util.module_from_spec(spec)
    # The file's classes look up their module here.
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


def _check_variant(get_config: Any, variants: Sequence[str], where: str) -> None:
    try:
        signature = inspect.signature(get_config)
    except ValueError:
        return
    try:
        signature.bind(*variants)
    except TypeError as error:
        file = where.removesuffix(f":{variants[0]}") if variants else where
        allowed = f"{file} without a variant" if variants else f"{file}:VARIANT, as the file describes them"
        raise ConfigError(f"{where}: get_config{signature}: {error}; allowed: {allowed}") from error


def _describe(error: BaseException, file: Path) -> str:
    """Return a text about the exception of a config file, with the last line that ran in the file."""
    path = str(file)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines, message = [error.lineno], error.msg
    else:
        message = str(error)
    place = f"line {lines[-1]}: " if lines and lines[-1] else ""
    return place + f"{type(error).__name__}: {one_line(message, 500)}".removesuffix(": ")


def check_overrides(arguments: Sequence[str]) -> None:
    """Check that every `--config.section.field=value` names a field.

    Raises:
        ConfigError: one does not; the message names it and the allowed fields.
    """
    for written, path, value in _overrides(arguments):
        section: Any = default_config()
        if value is not None and (key := _repeated_key(value)) is not None:
            raise ConfigError(f"{_NAME}.{written}: has the key {shown(key)} twice; allowed: once")
        for depth, part in enumerate(path):
            if path[:depth] in _USER_NAMED:
                break
            if not isinstance(section, ml_collections.ConfigDict) or part not in section:
                fields = section if isinstance(section, ml_collections.ConfigDict) else ()
                known = nearest_first(part, fields) or "no fields"
                raise ConfigError(f"{_NAME}.{written}: unknown field {shown(part)}; allowed: {known}")
            section = section[part]
        if isinstance(section, ml_collections.ConfigDict) and value is not None and not _is_mapping(value):
            if path[:_USER_NAMED_DEPTH] not in _USER_NAMED:
                one = next(iter(section), "field")
                raise ConfigError(
                    f"{_NAME}.{written}: found {shown(value)}; allowed: its fields one by one, as "
                    f"--{_NAME}.{written}.{one}=...: {', '.join(section)}"
                )
            if path in _USER_NAMED:
                _, kinds, example = _USER_NAMED[path]
                raise ConfigError(
                    f"{_NAME}.{written}: found {shown(value)}; allowed: all {kinds}, as in {example}"
                )


def _repeated_key(text: str) -> object | None:
    """Return a key that a dictionary or a nested one repeats; Python would use the last value."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            for number, key in enumerate(keys):
                if key in keys[:number]:
                    return key
    return None


def _is_mapping(text: str) -> bool:
    try:
        return isinstance(ast.literal_eval(text), dict)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False


def _add_fields_of_corpora(arguments: Sequence[str], config: ml_collections.ConfigDict) -> None:
    """Give a corpus of the file the default of each field that a flag sets and the file omits."""
    for _, path, _ in _overrides(arguments):
        if path[:_USER_NAMED_DEPTH] != _CORPORA_PATH or len(path) != _USER_NAMED_DEPTH + 2:
            continue
        corpus: Any = config
        for part in path[:-1]:
            corpus = corpus.get(part) if isinstance(corpus, ml_collections.ConfigDict) else None
        field = path[-1]
        if isinstance(corpus, ml_collections.ConfigDict) and field in _CORPUS and field not in corpus:
            with corpus.unlocked():
                corpus[field] = _CORPUS[field]


def _check_user_named(arguments: Sequence[str], config: ml_collections.ConfigDict) -> None:
    """Check that the configuration has every corpus, arm, task or stage that a flag changes."""
    for written, path, _ in _overrides(arguments):
        section: Any = config
        for depth, part in enumerate(path):
            if not isinstance(section, ml_collections.ConfigDict) or part not in section:
                if path[:_USER_NAMED_DEPTH] not in _USER_NAMED:
                    return
                noun, nouns, example = _USER_NAMED[path[:_USER_NAMED_DEPTH]]
                known = list(section) if isinstance(section, ml_collections.ConfigDict) else []
                kind = noun if depth == _USER_NAMED_DEPTH else f"field of that {noun}"
                if path[:_USER_NAMED_DEPTH] == _CORPORA_PATH and depth > _USER_NAMED_DEPTH:
                    known = list(_CORPUS)
                raise ConfigError(
                    f"{_NAME}.{written}: the file of --{_NAME} has no {kind} {shown(part)}; allowed: one "
                    f"of it ({', '.join(known) or 'there is none'}), or all {nouns} in one value: {example}"
                )
            section = section[part]


# These parse a value like the flag of a field of that type.
_PARSERS: dict[type, tuple[flags.ArgumentParser, str]] = {
    bool: (flags.BooleanParser(), "true or false"),
    int: (flags.IntegerParser(), "an integer"),
    float: (flags.FloatParser(), "a number"),
}


def _check_types(arguments: Sequence[str], config: ml_collections.ConfigDict) -> None:
    """Check that a flag sets a number to a number, and a boolean to a boolean.

    Raises:
        ConfigError: a flag has another value.
    """
    for written, path, value in _overrides(arguments):
        found: Any = config
        for part in path:
            found = found[part] if isinstance(found, ml_collections.ConfigDict) and part in found else None
        if value is None or type(found) not in _PARSERS:
            continue
        parser, allowed = _PARSERS[type(found)]
        try:
            parser.parse(value)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{_NAME}.{written}: found {shown(value)}; allowed: {allowed}") from error


def _overrides(arguments: Sequence[str]) -> list[tuple[str, tuple[Any, ...], str | None]]:
    """Return the fields that the arguments set: the text, the path of names, and the value.

    The value is None if the next argument has it.
    """
    found = []
    for argument, subscripted in zip(arguments, subscript_keywords(arguments), strict=True):
        if (match := _OVERRIDE.match(argument)) and (as_python := _OVERRIDE.match(subscripted)):
            written = one_line(match["path"], 200)
            try:
                path = config_path.split(as_python["path"])
            except (ValueError, RecursionError, MemoryError) as error:
                raise ConfigError(
                    f"{_NAME}.{written}: found no name of a field; allowed: --{_NAME}.section.field=value"
                ) from error
            equals, value = argument.partition("=")[1:]
            found.append((written, path, value if equals else None))
    return found
