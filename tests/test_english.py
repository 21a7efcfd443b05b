import pytest

from tests.english import long_lines, refused_words

LONG = "word " * 21


@pytest.mark.parametrize(
    "word",
    [
        *("told", "Tell", "tells", "asked of", "goes on", "go on with", "hangs on", "is had", "are had"),
        *("of which", "by which", "whose fault", "no more", "Likewise", "besides"),
    ],
)
def test_each_word_is_refused(word: str):
    (found,) = refused_words("docs/a.md", f"plain\na {word} b")
    assert found.lower().startswith(f"docs/a.md:2: {word.lower()}")


def test_other_words_pass():
    assert refused_words("a.py", "stream.tell() and no more than two, untold, retells") == []


def test_a_long_line_of_prose_is_refused():
    (found,) = long_lines("docs/a.md", f"short\n- {LONG}")
    assert found.startswith("docs/a.md:2: 107 columns; allowed: 100: - word")


@pytest.mark.parametrize(
    "text",
    [
        f"| {LONG}|",
        f"# {LONG}",
        f"```\n{LONG}\n```",
        f"    {LONG}",
        f"<!-- begin x -->\n{LONG}\n<!-- end x -->",
        f"[a link]({'x' * 100})",
    ],
    ids=["table", "heading", "code", "indented code", "generated", "link"],
)
def test_lines_that_cannot_be_wrapped_pass(text: str):
    assert long_lines("docs/a.md", text) == []
