"""Changes of valid input: bytes, JSON values, and texts that no field expects."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

# JSON that Python's encoder does not write, or that few readers expect.
HOSTILE_JSON = (
    *("NaN", "-Infinity", "1e999", "-0", "1" * 5000, "0.1" + "0" * 400, "tru", "", "nul", "'a'", "+1"),
    *('"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"a\\nb"', '"\x01"', '"\\x41"', '"', '"\u2028"'),
    *("[" * 100_000, "[" * 3000 + "]" * 3000, '{"a":' * 5000 + "1" + "}" * 5000, "{}", "[]", "[[]]"),
    *('{"a": 1, "a": 2}', '{"": ""}', '{"a": {"b": 1, "b": 2}}', "null", "true", "-1", "0", "1.5", "[1]"),
    *("9223372036854775808", "-9223372036854775809", "18446744073709551616", "1e300", "5e-324", '"1"'),
    *('"' + "x" * 100_000 + '"', '{"' + "k" * 5000 + '": 1}', '[null, 1, "a", {}]', '{"$ref": "#"}'),
)

HOSTILE_TEXTS = (
    *("", " ", "\n", "a\nb", "\0", "a\0b", "\ud800", "\udc80", "\x1b[31m", "\u202eabc", "\u2028", "\ufeff"),
    *(
        "x" * 5000,
        "..",
        ".",
        "/",
        "//",
        "~",
        "-",
        "--",
        "=",
        ",",
        ":",
        "%s%n",
        "{}",
        "{0}",
        "$HOME",
        "`id`",
    ),
    *(
        "None",
        "null",
        "nan",
        "inf",
        "-inf",
        "1e999",
        "-1",
        "0",
        "9" * 30,
        "9" * 5000,
        "1_000",
        "0x10",
        "1.5",
    ),
    *(
        "True",
        "[1]",
        "{'a': 1}",
        "{'a': {'b': 1}, 'a': 2}",
        "[" * 2000,
        "(",
        "lambda: 0",
        "a b",
        "ä",
        "漢字",
    ),
    *(
        "/dev/zero",
        "/dev/null",
        "/dev/full",
        "/proc/self/mem",
        "/proc/self/environ",
        "/etc/passwd",
        "*",
        "**",
    ),
)

HOSTILE_VALUES = (
    *(-1, 0, 1, 2, 2**31 - 1, 2**31, 2**63, 10**18, 10**400, 10**5000, True, False, None, 0.5, -0.0, 1e-9),
    *(float("nan"), float("inf"), float("-inf"), 1e300, -1e300, 5e-324, "", "x", "x" * 100_000, "a\nb"),
    *("a\0b", "a\ud800b", [], [1], [1] * 1000, ["a", 1, None], {}, {1: 2}, {"a\nb": 1}, {"a": {"b": {}}}),
    *([[[[]]]], {"task": "phonebook"}, {"objective": "copying"}, "0", "true", (1, 2), b"bytes"),
)


def mutate_bytes(draws: random.Random, data: bytes, max_changes: int = 4) -> bytes:
    """Return `data` with some changes: flips, insertions, deletions, copies, splices, or a cut."""
    changed = bytearray(data)
    for _ in range(draws.randint(1, max_changes)):
        draws.choice(_BYTE_CHANGES)(draws, changed)
    return bytes(changed)


def _flip(draws: random.Random, data: bytearray) -> None:
    if data:
        data[draws.randrange(len(data))] ^= 1 << draws.randrange(8)


def _replace(draws: random.Random, data: bytearray) -> None:
    if data:
        data[draws.randrange(len(data))] = draws.choice((0, 1, 0x7F, 0x80, 0xFF, 0x0A, 0x22, 0x7B))


def _insert(draws: random.Random, data: bytearray) -> None:
    place = draws.randint(0, len(data))
    data[place:place] = draws.randbytes(draws.choice((1, 1, 2, 4, 8, 64)))


def _delete(draws: random.Random, data: bytearray) -> None:
    place = draws.randint(0, len(data))
    del data[place : place + draws.choice((1, 1, 2, 4, 8, 64, 1024))]


def _cut(draws: random.Random, data: bytearray) -> None:
    del data[draws.randint(0, len(data)) :]


def _duplicate(draws: random.Random, data: bytearray) -> None:
    begin = draws.randint(0, len(data))
    part = data[begin : begin + draws.choice((1, 4, 16, 256, 4096))]
    place = draws.choice((begin, draws.randint(0, len(data)), len(data)))
    data[place:place] = part


def _splice(draws: random.Random, data: bytearray) -> None:
    one, other = sorted((draws.randint(0, len(data)), draws.randint(0, len(data))))
    size = draws.choice((1, 4, 16, 256))
    data[one : one + size], data[other : other + size] = data[other : other + size], data[one : one + size]


def _overwrite_number(draws: random.Random, data: bytearray) -> None:
    """Overwrite bytes with an integer that is unusual for a size or an offset."""
    width = draws.choice((1, 2, 4, 8))
    number = draws.choice((0, 1, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1))
    place = draws.randint(0, max(0, len(data) - width))
    data[place : place + width] = (number % 256**width).to_bytes(width, draws.choice(("little", "big")))


_BYTE_CHANGES: Sequence[Callable[[random.Random, bytearray], None]] = (
    *(_flip, _flip, _replace, _insert, _delete, _cut, _duplicate, _splice, _overwrite_number),
)


def mutate_json(draws: random.Random, value: Any, changes: int = 1) -> str:
    """Return a JSON value as text, with some parts, drawn uniformly, replaced or removed."""
    holder = [json.loads(json.dumps(value))]
    raw: dict[str, str] = {}
    for _ in range(changes):
        places = [*_places(holder)]
        container, key = draws.choice(places)
        match draws.randrange(6):
            case 0 if isinstance(container, dict):
                del container[key]
            case 1 if isinstance(container, dict):
                container[draws.choice((key + "x", "", "a\nb", key.upper(), "x" * 300))] = container.pop(
                    key
                )
            case 2:
                other, its_key = draws.choice(places)
                container[key] = json.loads(json.dumps(other[its_key])) if _holds(other, its_key) else 0
            case 3 if isinstance(container[key], list):
                container[key] = container[key] * 2
            case _:
                mark = f"@{draws.getrandbits(60)}@"
                raw[json.dumps(mark)] = draws.choice(HOSTILE_JSON)
                container[key] = mark
    text = json.dumps(holder[0], ensure_ascii=draws.random() < 0.5)
    for mark, replacement in raw.items():
        text = text.replace(mark, replacement)
    return text


def _holds(container: Any, key: Any) -> bool:
    return key in container if isinstance(container, dict) else key < len(container)


def _places(container: Any) -> Any:
    """Yield (container, key) for every value inside a container."""
    for key in [*container] if isinstance(container, dict) else range(len(container)):
        yield container, key
        if isinstance(container[key], dict | list):
            yield from _places(container[key])


def encode_loosely(text: str) -> bytes:
    """Return UTF-8, with lone surrogates encoded like characters."""
    return text.encode("utf-8", "surrogatepass")
