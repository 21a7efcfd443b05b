import pytest

from tests.english import refused_lines


def diff_of(removed: list[str], added: list[str], file: str = "docs/a.md") -> str:
    lines = [f"--- a/{file}", f"+++ b/{file}", f"@@ -3,{len(removed)} +7,{len(added)} @@"]
    return "\n".join([*lines, *(f"-{line}" for line in removed), *(f"+{line}" for line in added)])


@pytest.mark.parametrize(
    "word",
    [
        *("told", "Tell", "tells", "asked of", "goes on", "go on with", "hangs on", "is had", "are had"),
        *("of which", "by which", "whose fault", "no more", "Likewise", "besides"),
    ],
)
def test_each_word_is_refused_in_a_new_line(word: str):
    found = refused_lines(diff_of(["old"], ["plain", f"a {word} b"]))
    assert len(found) == 1
    assert found[0].lower().startswith(f"docs/a.md:8: {word.lower()}")


@pytest.mark.parametrize(
    ("removed", "added", "file"),
    [
        ([], ["stream.tell() and no more than two, untold, retells"], "a.py"),
        (["it is told here"], ["    it is told here"], "a.py"),
        (["it is told here"], ["it logs here"], "a.py"),
        ([], ["told"], "docs/glossary.md"),
    ],
    ids=["other words", "moved", "mended", "the glossary"],
)
def test_other_lines_pass(removed: list[str], added: list[str], file: str):
    assert refused_lines(diff_of(removed, added, file)) == []


def test_a_line_copied_twice_is_new_once():
    assert len(refused_lines(diff_of(["told"], ["told", "told"]))) == 1


def test_text_that_looks_like_a_header_is_text():
    assert refused_lines(diff_of([], ["++ b/docs/glossary.md", "told"])) == ["docs/a.md:8: told: told"]
