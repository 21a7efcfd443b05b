"""The registry of tasks. To add a task, write a file and import it in `__init__.py`."""

import json
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from birdie_jax.errors import ConfigError, nearest_first, shown
from birdie_jax.registry import Registry
from birdie_jax.storage import inner_path, parse_typed, to_plain
from birdie_jax.storage.json_text import RepeatedField, parse_json
from birdie_jax.tasks.task import Task

_Task = TypeVar("_Task", bound=type[Task])

TASKS: Registry[type[Task]] = Registry("task")
# The field of a config section that names the task. The other fields are the task's settings.
TASK_KEY = "task"


def register_task(task: _Task) -> _Task:
    """Register the class `task` by its `name`; a decorator.

    Raises:
        ValueError: another task has that name.
    """
    TASKS.register(task.name, task)
    return task


def make_task(name: object, settings: Mapping[str, Any], where: str) -> Task:
    """Return a task with settings.

    Args:
        name: a key of `TASKS`.
        settings: the task's fields, as its class documents them.
        where: the path of the settings for error messages: `config.eval.tasks.phonebook`, or a flag.

    Raises:
        ConfigError: the name, a setting or a value is invalid; or a setting without a default is
            missing. The message lists what is allowed.
    """
    kind = TASKS.find(name, f"{where}: task")
    hints = typing.get_type_hints(kind, include_extras=True)
    types = {field.name: hints[field.name] for field in fields(kind)}
    for setting in settings:
        if setting not in types:
            raise ConfigError(
                f"{inner_path(where, setting)}: unknown setting of {name}; allowed: "
                f"{nearest_first(setting, types)}"
            )
    for field in fields(kind):
        if field.name not in settings and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{where}.{field.name}: missing; {name} needs it")
    parsed = {
        key: parse_typed(types[key], value, inner_path(where, key), ConfigError)
        for key, value in settings.items()
    }
    try:
        return kind(**parsed)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def task_of_section(section: object, where: str) -> Task:
    """Return the task of a config section `{"task": name, **settings}`.

    Raises:
        ConfigError: as `make_task`; or the section is not a mapping, or does not name a task.
    """
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where}: found {shown(section)}; allowed: a section with the field {TASK_KEY}")
    settings = dict(section)
    if TASK_KEY not in settings:
        raise ConfigError(f"{where}.{TASK_KEY}: missing; allowed: {', '.join(TASKS)}")
    return make_task(settings.pop(TASK_KEY), settings, where)


def task_of_flag(text: str, flag: str = "--task") -> Task:
    """Return the task of a flag: `phonebook` or `phonebook:max_entries=16,max_numbers=4`.

    Values are parsed as JSON if they are valid JSON, else they are texts. To include a comma in a text,
    write the text as a JSON string.

    Raises:
        ConfigError: as `make_task`; or a setting has no value or occurs twice.
    """
    name, colon, rest = text.partition(":")
    settings: dict[str, Any] = {}
    for part in _split_settings(rest) if colon else ():
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or not key or key in settings:
            raise ConfigError(
                f"{flag}={shown(text)}: found the setting {shown(part)}; allowed: name=value, each once"
            )
        settings[key] = _plain(value.strip(), f"{flag}={name.strip()}.{key}")
    return make_task(name.strip(), settings, f"{flag}={name.strip()}")


def task_flag(name: str, task: Task, changes: Mapping[str, Any]) -> str:
    """Return the flag value for a task with a name and changed settings."""
    settings = {
        field.name: to_plain(getattr(task, field.name))
        for field in fields(task)
        if getattr(task, field.name) != field.default
    }
    texts = [f"{key}={_written(value)}" for key, value in {**settings, **changes}.items()]
    called = "" if name == task.name else f"{name}="
    return f"{called}{task.name}:{','.join(texts)}"


def _written(value: Any) -> str:
    """Return a plain value in the syntax of a flag."""
    if isinstance(value, str) and _plain(value, "") == value and _split_settings(value) == [value]:
        return value
    return json.dumps(value, separators=(",", ":"))


def _split_settings(text: str) -> list[str]:
    """Split a text at the commas outside of quotation marks and brackets."""
    parts, depth, quoted, last = [], 0, False, 0
    for place, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[last:place])
            last = place + 1
    return [*parts, text[last:]]


def _plain(text: str, where: str) -> Any:
    try:
        return parse_json(text)
    except RepeatedField as error:
        raise ConfigError(f"{where}: {error}") from error
    except ValueError:
        return text
