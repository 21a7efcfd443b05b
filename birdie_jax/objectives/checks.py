"""Checks of an objective's parameters.

Every error names the objective or the arm, the field, the value that was found, and what is allowed.
"""

import math
import numbers
import types
import typing
from collections.abc import Callable


def refusal(owner: str, field: str, value: object, allowed: str) -> ValueError:
    """Return the error that says `value` cannot be `field` of `owner`, and what can."""
    return ValueError(f"{owner}: {field} = {value!r}; allowed: {allowed}")


def is_integer(value: object) -> bool:
    """Tell whether `value` is an integer: `True` and `False` are not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Tell whether `value` is a finite real number: `True` and `False` are not."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def check_integer(owner: str, field: str, value: object, least: int) -> None:
    """Raise `ValueError` unless `value` is an integer of at least `least`."""
    if not is_integer(value) or value < least:
        raise refusal(owner, field, value, f"an integer of at least {least}")


def check_flag(owner: str, field: str, value: object) -> None:
    """Raise `ValueError` unless `value` is a bool."""
    if not isinstance(value, bool):
        raise refusal(owner, field, value, "True or False")


def check_number(
    owner: str, field: str, value: object, allowed: str, accept: Callable[[float], bool]
) -> None:
    """Raise `ValueError`, quoting `allowed`, unless `value` is a finite number that `accept` takes."""
    if not is_number(value) or not accept(value):
        raise refusal(owner, field, value, allowed)


def check_integer_range(owner: str, field: str, value: object, least: int) -> None:
    """Raise `ValueError` unless `value` is a pair (low, high) of integers with least <= low <= high."""
    is_pair = isinstance(value, tuple) and len(value) == 2 and all(is_integer(end) for end in value)
    if not is_pair or not least <= value[0] <= value[1]:
        raise refusal(owner, field, value, f"a pair (low, high) of integers with {least} <= low <= high")


def check_fractions(owner: str, field: str, value: object) -> None:
    """Raise `ValueError` unless `value` is a pair (low, high) of numbers with 0 <= low <= high <= 1."""
    is_pair = isinstance(value, tuple) and len(value) == 2 and all(is_number(end) for end in value)
    if not is_pair or not 0 <= value[0] <= value[1] <= 1:
        raise refusal(owner, field, value, "a pair (low, high) of numbers with 0 <= low <= high <= 1")


def conform(owner: str, field: str, value: object, kind: object) -> object:
    """Return `value`, as a configuration has it, as the type `kind` of the field it is meant for.

    Integers serve as floats and lists as tuples. The kinds are None, bool, int, float, tuples of them, and
    unions of all these; any other is left to the objective's own checks.

    Raises:
        ValueError: `value` is of another type.
    """
    for option in _options(kind):
        accepted, conformed = _conform_to(value, option)
        if accepted:
            return conformed
    raise refusal(owner, field, value, " or ".join(_described(option) for option in _options(kind)))


def _options(kind: object) -> tuple:
    is_union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    return typing.get_args(kind) if is_union else (kind,)


def _conform_to(value: object, kind: object) -> tuple[bool, object]:
    if kind is types.NoneType:
        return value is None, value
    if kind is bool:
        return isinstance(value, bool), value
    if kind is int:
        return is_integer(value), value
    if kind is float:
        is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
        return is_real, float(value) if is_real else value
    if typing.get_origin(kind) is tuple:
        elements = typing.get_args(kind)
        if not isinstance(value, list | tuple) or len(value) != len(elements):
            return False, value
        conformed = [_conform_to(*pair) for pair in zip(value, elements, strict=True)]
        return all(accepted for accepted, _ in conformed), tuple(element for _, element in conformed)
    return True, value


def _described(kind: object) -> str:
    simple = {types.NoneType: "None", bool: "True or False", int: "an integer", float: "a number"}
    if kind in simple:
        return simple[kind]
    return "[" + ", ".join(_described(element) for element in typing.get_args(kind)) + "]"
