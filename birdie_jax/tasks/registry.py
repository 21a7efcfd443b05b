"""Every task by its name. A new one is one file, and a line in `__init__.py` that imports it."""

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
# The field of a configuration's section that names the task; the others are its settings.
TASK_KEY = "task"


def register_task(task: _Task) -> _Task:
    """Make the class `task` known by its `name`; a decorator.

    Raises:
        ValueError: there is another task of that name.
    """
    TASKS.register(task.name, task)
    return task


def make_task(name: object, settings: Mapping[str, Any], where: str) -> Task:
    """Make the task called `name`.

    Args:
        name: a key of `TASKS`.
        settings: the task's fields, as its class documents them.
        where: the path of the settings, for messages: `config.eval.tasks.phonebook`, or a flag.

    Raises:
        ConfigError: the name, a setting or its value is not one that is allowed, which the error lists; or
            a setting without a default is not given.
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
    """Return the task of a section of a configuration: `{"task": name, **settings}`.

    Raises:
        ConfigError: as `make_task`; or the section is no mapping, or names no task.
    """
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where}: found {shown(section)}; allowed: a section with the field {TASK_KEY}")
    settings = dict(section)
    if TASK_KEY not in settings:
        raise ConfigError(f"{where}.{TASK_KEY}: missing; allowed: {', '.join(TASKS)}")
    return make_task(settings.pop(TASK_KEY), settings, where)


def task_of_flag(text: str, flag: str = "--task") -> Task:
    """Return the task that a flag asks for: `phonebook` or `phonebook:max_entries=16,max_numbers=4`.

    A value that is JSON is read as JSON, and any other as a text; a comma within a value is written as
    part of a JSON string.

    Raises:
        ConfigError: as `make_task`; or a setting has no value, or is given twice.
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
    """Return the value of a flag that asks for a task under a name, with some settings changed."""
    settings = {
        field.name: to_plain(getattr(task, field.name))
        for field in fields(task)
        if getattr(task, field.name) != field.default
    }
    texts = [f"{key}={_written(value)}" for key, value in {**settings, **changes}.items()]
    called = "" if name == task.name else f"{name}="
    return f"{called}{task.name}:{','.join(texts)}"


def _written(value: Any) -> str:
    """Return a plain value as a flag has it."""
    if isinstance(value, str) and _plain(value, "") == value and _split_settings(value) == [value]:
        return value
    return json.dumps(value, separators=(",", ":"))


def _split_settings(text: str) -> list[str]:
    """Split at the commas that are not within quotation marks or brackets."""
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
