"""Pairs of verses with the same meaning: quotations of one translation, located in another.

The two texts name their verses differently, so the words of a quotation locate it. A word's weight is its
inverse document frequency. A verse matches a quotation if its share of common words, by weight, is the
largest of all verses and more than half. Verses that share words with a quotation without the same meaning
remain among the neighbours of the verse.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_QUOTED = re.compile(r'["“]([^"“”]{24,160})["”]')
_WORD = re.compile(r"[a-z]+")
_MIN_WORDS = 4
_SHARE = 0.5
_CHARACTERS = (20, 200)
_MAX_LINES = 2
_NEAR = 5
# Ignore words that occur in more verses than this.
_MAX_VERSES_OF_A_WORD = 2000


class VersePair(NamedTuple):
    """A quotation and its verse in the other translation.

    Attributes:
        quotation: the verse as quoted.
        translation: the verse in the other translation.
        neighbours: the lines near the translated verse, without the verse.
    """

    quotation: str
    translation: str
    neighbours: tuple[str, ...]


class _Place(NamedTuple):
    """The place of a verse.

    Attributes:
        book: the index of its text.
        line: the index of its first line.
        lines: the number of lines.
    """

    book: int
    line: int
    lines: int


def words_of(text: str) -> set[str]:
    """Return the words of a verse; both names of God are one word."""
    return set(_WORD.findall(text.lower().replace("lord", "yahweh")))


def neighbouring_pairs(quoting: Sequence[str], translated: Sequence[str]) -> Iterator[VersePair]:
    """Yield every quotation that has a matching verse, once, in the order of the quotations.

    Args:
        quoting: the texts with quotations of one translation.
        translated: the texts of another translation, with a verse or a part of a verse on each line.
    """
    books = [[line.strip() for line in text.splitlines() if line.strip()] for text in translated]
    index = _Index(books)
    seen: set[str] = set()
    for text in quoting:
        for match in _QUOTED.finditer(text):
            quotation = " ".join(match[1].split())
            place = index.find(words_of(quotation))
            if place is None:
                continue
            verse = index.text_of(place)
            lines = books[place.book]
            near = [
                lines[n]
                for n in range(
                    max(0, place.line - _NEAR), min(len(lines), place.line + place.lines + _NEAR)
                )
                if not place.line <= n < place.line + place.lines and _is_usual(lines[n])
            ]
            if near and quotation not in seen and verse not in seen:
                seen |= {quotation, verse}
                yield VersePair(quotation, verse, tuple(near))


def _is_usual(line: str) -> bool:
    low, high = _CHARACTERS
    return low <= len(line) <= high


class _Index:
    """An index of verses by word."""

    def __init__(self, books: Sequence[Sequence[str]]):
        self._books = books
        self._places = [
            place
            for book, lines in enumerate(books)
            for line in range(len(lines))
            for count in range(1, _MAX_LINES + 1)
            if line + count <= len(lines) and _is_usual(self.text_of(place := _Place(book, line, count)))
        ]
        words = [words_of(self.text_of(place)) for place in self._places]
        verses = Counter(word for of_verse in words for word in of_verse)
        total = max(len(self._places), 2)
        self._weights = {word: math.log(total / count) for word, count in verses.items()}
        self._unknown = math.log(total)
        self._sizes = [sum(self._weights[word] for word in of_verse) for of_verse in words]
        self._by_word = defaultdict(list)
        for number, of_verse in enumerate(words):
            for word in of_verse:
                if verses[word] <= _MAX_VERSES_OF_A_WORD:
                    self._by_word[word].append(number)

    def text_of(self, place: _Place) -> str:
        """Return the verse at a place."""
        return " ".join(self._books[place.book][place.line : place.line + place.lines])

    def find(self, words: set[str]) -> _Place | None:
        """Return the place of the verse that shares most with these words; None if it shares too little."""
        if len(words) < _MIN_WORDS:
            return None
        shared: Counter[int] = Counter()
        for word in sorted(words):
            for number in self._by_word.get(word, ()):
                shared[number] += self._weights[word]
        size = sum(self._weights.get(word, self._unknown) for word in words)
        # The first verse wins a tie.
        found = [(2 * weight / (size + self._sizes[n]), -n) for n, weight in shared.items()]
        share, number = max(found, default=(0.0, 0))
        return self._places[-number] if share > _SHARE else None
