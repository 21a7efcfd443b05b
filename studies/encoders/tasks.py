"""The fine-tuning tasks of the study, made from a corpus of documents with sources.

- source: predict the source of a sentence.
- follows: predict whether the second sentence follows the first or is elsewhere in the same document.
- verse: predict whether two verses have the same meaning. The first is a quotation of the King James
  version in a commentary, the second its verse in the World English Bible or a neighbour of that verse.
- acceptable: predict whether a sentence is as written. A changed sentence has two neighbouring words
  exchanged, or a verb or determiner in the other number.
- equal_fixed, equal_variable: predict whether two rows of words are equal or differ in one word. Fixed rows
  have ten words, so a word and its counterpart always have the same distance. Variable rows have six to
  sixteen words.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from studies.encoders.verses import neighbouring_pairs

Record = dict[str, Any]
Rng = np.random.Generator

PROSE = ("sotu", "moby-dick", "austen-novels", "treasury-of-david", "world-english-bible")
"""The sources of the pre-training text."""

_SOURCES = (*PROSE, "python-docs", "sqlite-docs", "rust-books")
_QUOTING, _TRANSLATION = "treasury-of-david", "world-english-bible"
PAIR = "pair"
_YES_NO = ("no", "yes")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_SENTENCE_CHARACTERS = (40, 200)
_ORDER, _NUMBER = 0, 1
_MIN_WORDS = 6
_APART = 3
_FIXED, _VARIABLE = (10, 10), (6, 16)
# The maximum number of samples that a document gives to a task.
_MAX_OF_DOCUMENT = 60

_NUMBERS: Mapping[str, str] = MappingProxyType(
    {
        "is": "are",
        "was": "were",
        "has": "have",
        "does": "do",
        "this": "these",
        "that": "those",
        "hath": "have",
    }
    | {"are": "is", "were": "was", "have": "has", "do": "does", "these": "this", "those": "that"}
)


class Document(NamedTuple):
    """A document of the corpus.

    Attributes:
        source: the name of its source.
        text: its text.
    """

    source: str
    text: str


class TransferTask(NamedTuple):
    """A task of the study.

    Attributes:
        classes: the names of its classes.
        give: (documents, words, rng) -> records in random order, endless or until the documents are used
            up.
        groups: the names of the integer fields that group the scores.
        of_pairs: whether a record relates two documents, so records come from the documents of all splits;
            records with the same `PAIR` belong to one split.
    """

    classes: tuple[str, ...]
    give: Callable[[Sequence[Document], Sequence[str], Rng], Iterator[Record]]
    groups: tuple[str, ...] = ()
    of_pairs: bool = False


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text, without line breaks."""
    return [" ".join(part.split()) for part in _SENTENCE_END.split(text) if part.strip()]


def _is_usual(sentence: str) -> bool:
    low, high = _SENTENCE_CHARACTERS
    return low <= len(sentence) <= high and sentence[0].isupper()


def _drawn(items: Sequence[Any], rng: Rng, count: int | None = None) -> Iterator[Any]:
    for index in rng.permutation(len(items))[:count].tolist():
        yield items[index]


def _sources(documents: Sequence[Document], words: Sequence[str], rng: Rng) -> Iterator[Record]:
    del words
    found = {source: [] for source in _SOURCES}
    for document in documents:
        usual = list(filter(_is_usual, sentences_of(document.text)))
        found.get(document.source, []).extend(_drawn(usual, rng, _MAX_OF_DOCUMENT))
    drawn = {source: list(_drawn(sentences, rng)) for source, sentences in found.items() if sentences}
    for number in range(min(map(len, drawn.values()), default=0)):
        # Every source gives the same number of samples.
        for source, sentences in drawn.items():
            yield {"text": sentences[number], "label": source}


def _follows(documents: Sequence[Document], words: Sequence[str], rng: Rng) -> Iterator[Record]:
    del words
    pairs = []
    for document in _prose(documents):
        sentences = sentences_of(document.text)
        places = [n for n in range(len(sentences) - 1) if all(map(_is_usual, sentences[n : n + 2]))]
        for place in _drawn(places, rng, _MAX_OF_DOCUMENT):
            far = [other for other in places if abs(other - place) >= _APART]
            follows = bool(rng.integers(2)) or not far
            second = place + 1 if follows else far[int(rng.integers(len(far)))]
            pairs.append((sentences[place], sentences[second], follows))
    for first, second, follows in _drawn(pairs, rng):
        yield {"text": first, "text_pair": second, "label": _YES_NO[follows]}


def _verses(documents: Sequence[Document], words: Sequence[str], rng: Rng) -> Iterator[Record]:
    del words
    texts = {
        source: [document.text for document in documents if document.source == source]
        for source in (_QUOTING, _TRANSLATION)
    }
    pairs = list(neighbouring_pairs(texts[_QUOTING], texts[_TRANSLATION]))
    for number, pair in enumerate(_drawn(pairs, rng)):
        neighbour = pair.neighbours[int(rng.integers(len(pair.neighbours)))]
        for same, second in enumerate((neighbour, pair.translation)):
            yield {"text": pair.quotation, "text_pair": second, "label": _YES_NO[same], PAIR: number}


def _acceptable(documents: Sequence[Document], words: Sequence[str], rng: Rng) -> Iterator[Record]:
    del words
    usual = []
    for document in _prose(documents):
        usual.extend(_drawn(list(filter(_is_usual, sentences_of(document.text))), rng, _MAX_OF_DOCUMENT))
    for number, sentence in enumerate(_drawn(usual, rng)):
        kind = _ORDER if number % 2 else _NUMBER
        changed = (_exchange if kind == _ORDER else _change_number)(sentence, rng)
        # Unchanged sentences also allow the change, so its possibility does not reveal the label.
        if changed is not None:
            real = bool(rng.integers(2))
            yield {"text": sentence if real else changed, "label": _YES_NO[real], "kind": kind}


def _exchange(sentence: str, rng: Rng) -> str | None:
    """Exchange two neighbouring words, never the first or the last one; None if that is impossible."""
    words = sentence.split()
    places = [
        n
        for n in range(1, len(words) - 2)
        if words[n].isalpha() and words[n + 1].isalpha() and words[n].lower() != words[n + 1].lower()
    ]
    if len(words) < _MIN_WORDS or not places:
        return None
    place = places[int(rng.integers(len(places)))]
    words[place : place + 2] = words[place + 1], words[place]
    return " ".join(words)


def _change_number(sentence: str, rng: Rng) -> str | None:
    """Put a verb or determiner into the other number; None if that is impossible."""
    words = sentence.split()
    places = [n for n, word in enumerate(words) if word in _NUMBERS]
    if len(words) < _MIN_WORDS or not places:
        return None
    place = places[int(rng.integers(len(places)))]
    words[place] = _NUMBERS[words[place]]
    return " ".join(words)


def _equal(lengths: tuple[int, int]) -> Callable[..., Iterator[Record]]:
    def give(documents: Sequence[Document], words: Sequence[str], rng: Rng) -> Iterator[Record]:
        del documents
        while True:
            first = rng.choice(words, size=int(rng.integers(lengths[0], lengths[1] + 1))).tolist()
            second, equal = list(first), bool(rng.integers(2))
            if not equal:
                place = int(rng.integers(len(first)))
                while second[place] == first[place]:
                    second[place] = str(rng.choice(words))
            texts = (" ".join(row) for row in (first, second))
            yield {**dict(zip(("text", "text_pair"), texts, strict=True)), "label": _YES_NO[equal]}

    return give


def _prose(documents: Sequence[Document]) -> list[Document]:
    return [document for document in documents if document.source in PROSE]


TRANSFER_TASKS: Mapping[str, TransferTask] = MappingProxyType(
    {
        "source": TransferTask(_SOURCES, _sources),
        "follows": TransferTask(_YES_NO, _follows),
        "verse": TransferTask(_YES_NO, _verses, of_pairs=True),
        "acceptable": TransferTask(_YES_NO, _acceptable, ("kind",)),
        "equal_fixed": TransferTask(_YES_NO, _equal(_FIXED)),
        "equal_variable": TransferTask(_YES_NO, _equal(_VARIABLE)),
    }
)
"""The tasks by name."""
