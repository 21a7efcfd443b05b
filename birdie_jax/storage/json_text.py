"""Parse a user's JSON; reject repeated fields and, on request, numbers that are not finite."""

import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from birdie_jax.errors import shown


class UnusableJson(ValueError):  # noqa: N818 - about a text; callers add the file
    """Raised for JSON that cannot be used; the message gives the reason."""


class RepeatedField(UnusableJson):
    """Raised if an object has a field twice; the message names it. `json` would use the last value."""


class NestedTooDeeply(UnusableJson):
    """Raised if arrays and objects are nested more deeply than `json` supports."""


def parse_json(
    text: str | bytes, *, finite: bool = False, parse_int: Callable[[str], Any] | None = None
) -> Any:
    """Return the value of a JSON text.

    Args:
        text: the text; bytes are UTF-8, 16 or 32.
        finite: whether to reject NaN, infinity and numbers beyond float64, which Python accepts but JSON
            does not have.
        parse_int: the function that converts digits to an integer; default: `int`.

    Raises:
        UnusableJson: an object has a field twice, or the text is nested too deeply.
        ValueError: the text is not JSON, or has an integer of thousands of digits.
    """
    finite_alone: dict[str, Any] = {"parse_constant": _finite, "parse_float": _finite} if finite else {}
    try:
        return json.loads(text, object_pairs_hook=_to_dict, parse_int=parse_int, **finite_alone)
    except RecursionError as error:
        raise NestedTooDeeply("is nested too deeply") from error


def _to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise RepeatedField(f"has the field {shown(twice)} twice; allowed: once")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"found {text}; allowed: finite numbers")
    return number
