"""Which grammatical phenomena a sentence of CoLA shows (Warstadt and Bowman 2019).

The annotated development set is a table with a first line: `Source`, `Domain`, `Acceptability`, `Sentence`,
and behind them a column of 0 and 1 for each phenomenon, the major ones in one file and the minor ones in
another. As in CoLA's own files nothing is quoted.
"""

from collections.abc import Mapping

from etils import epath

from birdie_jax.storage import shown
from birdie_jax.tasks.tsv import read_tsv
from birdie_jax.text import DataError

PHENOMENON = "phenomenon"
"""The kind of the categories that phenomena are."""

_SENTENCE = "Sentence"
# Of the sentences and of their judgements, not of what they show, wherever they stand.
_OTHER_COLUMNS = frozenset({"Acceptability", "Domain", "Label", "Source"})
_FLAGS = ("0", "1")
_QUOTE = '"'


def read_phenomena(path: epath.PathLike) -> dict[str, list[tuple[str, ...]]]:
    """Return for each sentence the phenomena that it shows, once for each row that has the sentence.

    Two sentences of the development set occur twice, with other annotations.

    Args:
        path: the table, or its URL.

    Raises:
        DataError: it cannot be read, has no column of a phenomenon, a value that is neither 0 nor 1, or a
            sentence in quotation marks, which no sentence of CoLA's would be the same as.
    """

    def parse(row: Mapping[str, str], where: str) -> tuple[str, tuple[str, ...]]:
        columns = list(row)
        names = [name for name in columns[columns.index(_SENTENCE) + 1 :] if name not in _OTHER_COLUMNS]
        if not names:
            raise DataError(
                f"{where}: has no column of a phenomenon behind {_SENTENCE}; its columns are "
                f"{shown(columns, 200)}"
            )
        for name in names:
            if row[name].strip() not in _FLAGS:
                raise DataError(f"{where}: {name}: found {shown(row[name])}; allowed: {', '.join(_FLAGS)}")
        sentence = row[_SENTENCE].strip()
        if len(sentence) > 1 and sentence[0] == sentence[-1] == _QUOTE:
            raise DataError(
                f"{where}: {_SENTENCE}: found {shown(sentence, 80)} in quotation marks, as spreadsheets "
                "write it; allowed: the sentence as it is published, without them"
            )
        present = (" ".join(name.split()) for name in names if row[name].strip() == "1")
        return sentence, tuple(present)

    found: dict[str, list[tuple[str, ...]]] = {}
    for sentence, present in read_tsv(path, parse, (_SENTENCE,))[0]:
        found.setdefault(sentence, []).append(present)
    return found
