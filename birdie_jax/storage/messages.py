"""Values and texts as messages show them: on one line, and short however long they are."""

import math

_MAX_CHARACTERS = 200
# Python writes no integer of more digits than about this in decimal: it raises ValueError instead.
_MAX_INTEGER_BITS = 4096


def shown(value: object, max_characters: int = _MAX_CHARACTERS) -> str:
    """Return how a message shows a value that a user gave or a file holds.

    It is `repr(value)`, with control characters and other unprintable ones escaped. Of a longer one than
    `max_characters` the middle is left out, and the whole length is told.

    Args:
        value: the value, of any type and size.
        max_characters: the maximum number of characters shown of the value itself.
    """
    if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
        return f"an integer of about {math.ceil(value.bit_length() * math.log10(2)):,} digits"
    if isinstance(value, str | bytes):
        if len(value) <= max_characters and len(text := repr(value)) <= max_characters:
            return text
        # Only its ends are represented: the whole may be of gigabytes.
        ends = repr(value[:max_characters]), repr(value[-max_characters:])
        unit = "characters" if isinstance(value, str) else "bytes"
        return f"{_join_ends(*ends, max_characters)} ({len(value):,} {unit})"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # it holds an endless integer, or is nested too deeply
        return f"a {type(value).__name__} too large to show"
    return one_line(text, max_characters)


def one_line(text: str, max_characters: int = 2000) -> str:
    """Return a text with its line ends, control characters and lone surrogates escaped, and not too long.

    For texts that are shown without quotes, as a file's path or a whole message. Of a longer one than
    `max_characters` the middle is left out, and the whole length is told. What is on one line already, and
    short enough, comes back as it is.

    Args:
        text: the text.
        max_characters: the maximum number of characters shown of it.
    """
    if len(text) <= max_characters:
        escaped = _escape(text)
        if len(escaped) <= max_characters:
            return escaped
    ends = _escape(text[:max_characters]), _escape(text[-max_characters:])
    return f"{_join_ends(*ends, max_characters)} ({len(text):,} characters)"


def _join_ends(head: str, tail: str, max_characters: int) -> str:
    half = (max_characters - len("...")) // 2
    return f"{head[:half]}...{tail[-half:]}"


def _escape(text: str) -> str:
    if text.isprintable():
        return text
    # A space other than ' ' is not printable for Python, but readable, except where it ends a line.
    return "".join(
        character if character.isprintable() or _is_plain_space(character) else _escape_one(character)
        for character in text
    )


def _is_plain_space(character: str) -> bool:
    return character.isspace() and len(f"a{character}b".splitlines()) == 1 and ord(character) >= 0xA0


def _escape_one(character: str) -> str:
    return repr(character)[1:-1]
