"""Checks of an objective's parameters.

Every error names the objective or the arm, the field, its value and the allowed values.
"""

import numbers
from collections.abc import Callable
from typing import TypeGuard

from birdie_jax.errors import shown
from birdie_jax.storage import is_finite

MAX_TOKENS = 1 << 30
"""The largest allowed number of tokens, or of parts of a text, which is far more than any row holds."""


def refusal(owner: str, field: str, value: object, allowed: str) -> ValueError:
    """Return the error for an invalid `value` in `field` of `owner`. It lists the allowed values."""
    return ValueError(f"{owner}: {field}: found {shown(value)}; allowed: {allowed}")


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether `value` is an integer. `True` and `False` do not count."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is a finite real number. `True` and `False` do not count."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and is_finite(value)


def check_integer(owner: str, field: str, value: object, minimum: int) -> None:
    """Raise `ValueError` unless `value` is an integer of at least `minimum` and at most `MAX_TOKENS`."""
    if not is_integer(value) or value < minimum:
        raise refusal(owner, field, value, f"an integer of at least {minimum}")
    if value > MAX_TOKENS:
        raise refusal(owner, field, value, f"an integer of at most {MAX_TOKENS:,}")


def check_flag(owner: str, field: str, value: object) -> None:
    """Raise `ValueError` unless `value` is a bool."""
    if not isinstance(value, bool):
        raise refusal(owner, field, value, "True or False")


def check_number(
    owner: str, field: str, value: object, allowed: str, accept: Callable[[float], bool]
) -> None:
    """Raise `ValueError`, quoting `allowed`, unless `value` is finite and `accept(value)` is true."""
    if not is_number(value) or not accept(value):
        raise refusal(owner, field, value, allowed)


def check_integer_range(owner: str, field: str, value: object, minimum: int) -> None:
    """Raise `ValueError` unless `value` is a pair of integers, minimum <= low <= high <= `MAX_TOKENS`."""
    if not (_is_pair(value, is_integer) and minimum <= value[0] <= value[1]):
        raise refusal(owner, field, value, f"a pair (low, high) of integers with {minimum} <= low <= high")
    if value[1] > MAX_TOKENS:
        raise refusal(owner, field, value, f"a pair (low, high) of integers of at most {MAX_TOKENS:,}")


def check_fractions(owner: str, field: str, value: object) -> None:
    """Raise `ValueError` unless `value` is a pair (low, high) of numbers with 0 <= low <= high <= 1."""
    if not (_is_pair(value, is_number) and 0 <= value[0] <= value[1] <= 1):
        raise refusal(owner, field, value, "a pair (low, high) of numbers with 0 <= low <= high <= 1")


def _is_pair(value: object, accept: Callable[[object], bool]) -> TypeGuard[tuple[float, float]]:
    return isinstance(value, tuple) and len(value) == 2 and all(accept(end) for end in value)
