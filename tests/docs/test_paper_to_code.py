"""The map of the papers has every section, table, figure and appendix, each with an answer."""

import re

import pytest

from tests.docs.pages import REPOSITORY

PAGE = (REPOSITORY / "docs" / "paper_to_code.md").read_text()

# Sections, appendices, and the last table, figure and numbered equation of each paper.
PAPERS = {
    "Birdie (EMNLP 2024)": (
        "1 2.1 2.2 2.3 3.1 3.2 3.3 3.4 4.1 4.2 4.3 4.4 4.5 5 6 A.1 A.2 A.3 A.4 A.5 B C D E.1 E.2 E.3",
        8,
        6,
        0,
    ),
    "Birdie, early draft": ("1 2.1 2.2 2.3 3.1 4 4.1 4.2 5.1 5.2 5.3 6 7 8 A.1 A.2 A.3 A.4 A.5", 5, 4, 0),
    "BiGS": ("1 2 3.1 3.2 3.3 4 5 6.1 6.2 7.1 7.2 7.3 7.4 8 9 10 A.1 A.2 A.3 A.4", 8, 10, 0),
    "Simba": ("1 2 3.1 3.2 4.1 4.2 4.3 4.4 5 A.1 A.2 A.3 B.1 B.2 C.1 C.2", 5, 6, 4),
}


def rows_of(paper: str) -> list[tuple[str, str, str]]:
    """Return (place in the paper, content, code) of each row of a paper's table."""
    chapter = PAGE.split(f"## {paper}\n")[1].split("\n## ")[0]
    lines = [line for line in chapter.splitlines() if line.startswith("|")][2:]
    return [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]


def numbers_after(word: str, places: list[str]) -> set[str]:
    """Return all numbers of lists such as "Tables 6 and 7" or "Appendix C.1, C.2"."""
    found = set()
    number = r"(?:\d+(?:\.\d+)?|[A-E](?:\.\d)?)"
    for listed in re.findall(rf"{word} ({number}(?:(?:, | and ){number})*)", " ; ".join(places)):
        found |= set(re.split(", | and ", listed))
    return found


@pytest.mark.parametrize("paper", PAPERS)
def test_every_part_of_a_paper_is_listed(paper):
    sections, tables, figures, equations = PAPERS[paper]
    places = [place for place, _, _ in rows_of(paper)]
    assert numbers_after("(?:Sections?|Appendix)", places) == set(sections.split())
    assert numbers_after("Tables?", places) == {str(number) for number in range(1, tables + 1)}
    assert numbers_after("Figures?", places) == {str(number) for number in range(1, figures + 1)}
    found = set(re.findall(r"equation \((\d+)\)", " ".join(places)))
    assert found == {str(number) for number in range(1, equations + 1)}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_row_has_an_answer(paper):
    for place, what, code in rows_of(paper):
        assert what, place
        assert re.search(r"\.py(:\w|`)|\*\*not yet\*\*|\*no code\*|^the files of section", code), place
