import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.errors import one_line, shown

_ANY_CHARACTER = st.characters(exclude_categories=())


@pytest.mark.parametrize(
    "value", ["", "text", "漢字 é 😀", 5, None, 1.5, ["a", 1], {"key": True}, "it's", "\\n"]
)
def test_short_values_are_shown_as_python_writes_them(value):
    assert shown(value) == repr(value)


@given(value=st.text(_ANY_CHARACTER) | st.lists(st.text(_ANY_CHARACTER)) | st.binary())
def test_a_value_is_one_short_printable_line(value):
    text = shown(value)
    assert len(text.splitlines()) == 1
    assert text.isprintable()
    assert len(text) <= 200 + len(" (1,000,000 characters)")
    text.encode()


@given(text=st.text(_ANY_CHARACTER, max_size=300))
def test_any_text_becomes_one_line_that_can_be_printed(text):
    line = one_line(text, 200)
    assert len(line.splitlines()) <= 1
    assert len(line) <= 200 + len(" (300 characters)")
    assert not set(line) & set("\0\n\r\t\v\f\x1b\x7f\x85\u2028\u2029\u202e")
    line.encode()
    assert one_line(line, 300) == line  # a second call changes nothing


@given(text=st.text(st.characters(categories=("L", "N", "P", "S")), max_size=200))
def test_printable_text_is_shown_as_it_is(text):
    assert one_line(text, 200) == text
    assert one_line(f"{text[:90]}\u00a0{text[:90]}") == f"{text[:90]}\u00a0{text[:90]}"


@pytest.mark.parametrize(
    ("value", "length"),
    [
        ("x" * 100_000, "100,000 characters"),
        ("\n" * 100_000, "100,000 characters"),
        (b"x" * 100_000, "100,000 bytes"),
        ("x" * 199, "199 characters"),
        ([f"field {number}" for number in range(5000)], "characters"),
        ({f"field {number}": number for number in range(5000)}, "characters"),
    ],
)
def test_a_long_value_shows_its_ends_and_length(value, length):
    text = shown(value)
    whole = repr(value)
    assert len(text) < 230
    assert re.fullmatch(rf"{re.escape(whole[:98])}\.\.\.{re.escape(whole[-98:])} \(.*{length}\)", text)


def test_the_caller_limits_the_number_of_characters():
    assert shown("abcdefghij" * 10, 20) == "'abcdefg...defghij' (100 characters)"
    assert one_line("abcdefghij" * 10, 20) == "abcdefgh...cdefghij (100 characters)"


@pytest.mark.parametrize("sign", [1, -1])
def test_values_without_a_python_text(sign):
    integer = sign * 10**5000
    with pytest.raises(ValueError, match="digits"):
        repr(integer)
    assert shown(integer) == "an integer of about 5,001 digits"
    deep: list = []
    for _ in range(sys.getrecursionlimit() * 50):
        deep = [deep]
    for value in ([integer], deep):
        assert shown(value) == "a list too large to show"
