"""The streamed parts join to the text of all tokens, and never break a character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.generation.text_generation import StopStrings, TextStream
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS


def streamed(tokenizer, tokens, size):
    stream = TextStream(tokenizer)
    parts = [stream.push(tokens[begin : begin + size]) for begin in range(0, len(tokens), size)]
    return [*parts, stream.finish()]


TEXTS = [
    "the river",
    "   the  river\n\n  seven ",
    "naïve façade — 日本語, русский, 🐦🏽‍🦱!",
    "\u2581 marks \u2581\u2581 of spaces",
    "\ufffd a replacement character of its own \ufffd\ufffd",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_parts_join_to_the_text(tokenizer, text, size):
    tokens = tokenizer.encode(text).tolist()
    parts = streamed(tokenizer, tokens, size)
    assert "".join(parts) == text == tokenizer.decode(tokens)
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in parts)


def test_whole_characters_are_returned_at_once(tokenizer):
    tokens = tokenizer.encode("ab🐦the").tolist()
    stream = TextStream(tokenizer)
    shown = [stream.push([token]) for token in tokens]
    assert "".join(shown[:2]) == "ab"
    assert shown[2:6] == ["", "", "", "🐦"]
    assert "".join(shown[6:]) == "the"
    assert stream.finish() == ""


@given(
    st.lists(
        st.one_of(st.integers(0, 255), st.integers(256, 555), st.integers(NUM_SPECIAL_TOKENS + 3, 300)),
        max_size=30,
    ),
    st.integers(1, 4),
)
def test_the_stream_of_any_tokens_matches_decode(tokenizer, tokens, size):
    """They include bytes that are not a character, and special tokens."""
    assert "".join(streamed(tokenizer, tokens, size)) == tokenizer.decode(tokens)


def cut(text, strings, sizes):
    stops, shown, begin = StopStrings(strings), "", 0
    for size in [*sizes, len(text)]:
        shown += stops.push(text[begin : begin + size])
        begin += size
    return shown + stops.finish(), stops.found


@given(
    st.text("ab", max_size=20),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 5), max_size=6),
)
def test_a_text_is_cut_before_the_first_stop_string(text, strings, sizes):
    """In parts of any size, the text ends where a stop string is first complete."""
    shown, found = cut(text, strings, sizes)
    positions = [text.find(string) for string in strings if string in text]
    if not positions:
        assert (shown, found) == (text, None)
    else:
        assert found in strings
        assert text.startswith(shown + found)
        assert not any(string in shown for string in strings)


def test_the_earliest_then_the_longest_stop_string_wins():
    assert cut("xaaby", ["b", "aa", "aab"], []) == ("x", "aab")


def test_a_possible_start_of_a_stop_string_is_held_back():
    stops = StopStrings(["\n\n"])
    assert stops.push("one\n") == "one"
    assert stops.push("two") == "\ntwo"
    assert stops.push("\n") == ""
    assert stops.push("\nthree") == ""
    assert stops.found == "\n\n"
    assert stops.finish() == ""


def test_an_empty_stop_string_is_refused():
    with pytest.raises(
        ValueError, match=r"^stop string: found ''; allowed: text of at least one character$"
    ):
        StopStrings(["a", ""])
