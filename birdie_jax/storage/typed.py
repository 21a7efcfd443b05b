"""Convert plain values (from JSON and configuration files) to typed Python values, and back.

This module checks the types of every file and configuration. An error names the path of the field, the
value that was found, and the allowed values.

It does not use pydantic. In pydantic's strict mode, a list is not a tuple, a mapping is not a dataclass and
a NumPy integer is not an int. In its lax mode, "3" is an int. In both modes, a field with a default may be
missing.
"""

import math
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Annotated, Any

from birdie_jax.errors import nearest_first, one_line, shown
from birdie_jax.storage.bounds import Rule

# The key in a dataclass field's metadata for the name of the field in files, if it differs.
FILE_KEY = "file_key"

Refuse = Callable[[str], Exception]


def parse_typed(kind: Any, value: Any, where: str, error: Refuse) -> Any:
    """Return the plain `value` as `kind`.

    A kind is a dataclass (from a mapping with exactly its fields), None, bool, int, float (also from an
    integer; not NaN or infinity), str, a `typing.Literal`, a tuple of one kind (`tuple[int, ...]`) or of
    several, a list, a dict with str keys, a union of these, one of them with a `Rule` in `Annotated`,
    `Any`, or another class, if `value` is an instance of it.

    Args:
        kind: the wanted type.
        value: the plain value: a mapping, a list or tuple, a str, a number, a bool or None.
        where: the path of the value, for messages: `config.model`, or a file's name.
        error: the class of the exception.

    Raises:
        Exception: an instance of `error`, if the value, or a value inside it, has the wrong kind or breaks
            a rule, or if a mapping lacks a field or has an unknown one.
    """
    if typing.get_origin(kind) is Annotated:
        return _parse_annotated(kind, value, where, error)
    options = _union_options(kind)
    if len(options) > 1:
        return _parse_union(options, value, where, error)
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _parse_dataclass(typing.cast(type, kind), value, where, error)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple or origin is list:
        return _parse_sequence(kind, value, where, error)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise error(f"{where}: found {shown(value)}; allowed: a section with fields")
        for key in value:
            if not isinstance(key, str):
                raise error(f"{where}: found the key {shown(key)} ({type(key).__name__}); allowed: str")
        return {
            key: parse_typed(arguments[1], item, inner_path(where, key), error)
            for key, item in value.items()
        }
    if origin is typing.Literal:
        # `value in arguments` does not work: a list is not hashable, and 1 equals True.
        if not any(type(value) is type(argument) and value == argument for argument in arguments):
            raise error(f"{where}: found {shown(value)}; allowed: {describe_type(kind)}")
        return value
    if kind is float and _is_number(value):
        if not is_finite(value):
            raise error(f"{where}: found {shown(value)}; allowed: a finite number")
        return float(value)
    if kind is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    if kind in (int, float) or not isinstance(value, kind):
        raise _mismatch(kind, value, where, error)
    return value


def to_plain(value: Any) -> Any:
    """Return dataclasses as dicts and tuples as lists, for JSON; `parse_typed` reads them back."""
    if is_dataclass(value) and not isinstance(value, type):
        return {file_key(field): to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    return value


def describe_type(kind: Any) -> str:
    """Return the name of a kind in messages: `int or None`, `[float, float]`, `a list of int`."""
    if typing.get_origin(kind) is Annotated:
        return describe_type(typing.get_args(kind)[0])
    options = _union_options(kind)
    if len(options) > 1:
        return " or ".join(describe_type(option) for option in options)
    if kind is types.NoneType:
        return "None"
    if is_dataclass(kind):
        return "a section with fields"
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is list or (origin is tuple and arguments[-1] is Ellipsis):
        of = arguments[0]
        return f"a list of {'sections with fields' if is_dataclass(of) else describe_type(of)}"
    if origin is tuple:
        return "[" + ", ".join(describe_type(argument) for argument in arguments) + "]"
    if origin is typing.Literal:
        return ", ".join(map(str, arguments))
    return getattr(kind, "__name__", str(kind))


def inner_path(where: str, key: object) -> str:
    """Return the path of the value of `key` in a mapping at `where`, short enough for a message."""
    if isinstance(key, str) and one_line(key, 80) == key:
        return f"{where}.{key}"
    return f"{where}[{shown(key, 80)}]"


def is_finite(number: Any) -> bool:
    """Return whether a number is finite as a float; False for an integer larger than any float."""
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def _parse_annotated(kind: Any, value: Any, where: str, error: Refuse) -> Any:
    plain_kind, *rules = typing.get_args(kind)
    parsed = parse_typed(plain_kind, value, where, error)
    allowed = _allowed_by_rules(rules, parsed)
    if allowed is not None:
        raise error(f"{where}: found {shown(parsed)}; allowed: {allowed}")
    return parsed


def _allowed_by_rules(rules: Iterable[object], parsed: Any) -> str | None:
    """Return what the first broken rule allows; None if `parsed` breaks no rule."""
    broken = (rule.allowed_instead(parsed) for rule in rules if isinstance(rule, Rule))
    return next((allowed for allowed in broken if allowed is not None), None)


def _parse_dataclass(kind: type, value: Any, where: str, error: Refuse) -> Any:
    if not isinstance(value, Mapping):
        raise error(f"{where}: found {shown(value)}; allowed: a section with fields")
    known = {file_key(field): field.name for field in fields(typing.cast(Any, kind))}
    for key in value:
        if key not in known:
            raise error(f"{inner_path(where, key)}: unknown field; allowed: {nearest_first(key, known)}")
    for key in known:
        if key not in value:
            raise error(f"{where}.{key}: missing")
    hints = typing.get_type_hints(kind, include_extras=True)
    return kind(
        **{
            name: parse_typed(hints[name], value[key], f"{where}.{key}", error)
            for key, name in known.items()
        }
    )


def _parse_sequence(kind: Any, value: Any, where: str, error: Refuse) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if not isinstance(value, list | tuple):
        raise _mismatch(kind, value, where, error)
    if origin is list or arguments[-1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    if len(arguments) != len(value):
        raise _mismatch(kind, value, where, error)
    return origin(
        parse_typed(argument, item, f"{where}[{index}]", error)
        for index, (argument, item) in enumerate(zip(arguments, value, strict=True))
    )


class _NotThisOption(Exception):  # noqa: N818 - callers of the module never see it
    """Raised if the value does not match one kind of a union."""


def _parse_union(options: tuple[Any, ...], value: Any, where: str, error: Refuse) -> Any:
    for option in options:
        # A mapping is meant for the only dataclass of the union, whose own errors say more.
        is_only_section = is_dataclass(option) and isinstance(value, Mapping)
        if is_only_section and sum(is_dataclass(other) for other in options) == 1:
            return parse_typed(option, value, where, error)
        try:
            return parse_typed(option, value, where, _NotThisOption)
        except _NotThisOption:
            continue
    raise error(
        f"{where}: found {shown(value)} ({type(value).__name__}); "
        f"allowed: {' or '.join(_allowed_of_option(option, value) for option in options)}"
    )


def _allowed_of_option(option: Any, value: Any) -> str:
    """Return what one kind of a union allows: the broken rule for a value of its type, else the type."""
    if typing.get_origin(option) is Annotated:
        plain_kind, *rules = typing.get_args(option)
        try:
            parsed = parse_typed(plain_kind, value, "", _NotThisOption)
        except _NotThisOption:
            return describe_type(option)
        return _allowed_by_rules(rules, parsed) or describe_type(option)
    return describe_type(option)


def _union_options(kind: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    options = typing.get_args(kind) if is_union else (kind,)
    return tuple(types.NoneType if option is None else option for option in options)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def file_key(field: Field) -> str:
    """Return the name of a dataclass field in files."""
    return field.metadata.get(FILE_KEY, field.name)


def _mismatch(kind: Any, value: Any, where: str, error: Refuse) -> Exception:
    return error(f"{where}: found {shown(value)} ({type(value).__name__}); allowed: {describe_type(kind)}")
