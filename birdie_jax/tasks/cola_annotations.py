"""Which grammatical phenomena a sentence of CoLA shows (Warstadt and Bowman 2019).

The annotated development set is a table with a first line: a column `Sentence`, and a column of 0 and 1 for
each phenomenon, the major ones in one file and the minor ones in another. Both have columns beside these.
"""

from collections.abc import Mapping

from etils import epath

from birdie_jax.storage import shown
from birdie_jax.tasks.tsv import read_tsv
from birdie_jax.text import DataError

PHENOMENON_GROUP = "phenomenon"
"""What the names of the groups begin with, before a slash and the name of the phenomenon."""

_SENTENCE = "Sentence"
# Of the sentences and of their judgements, not of what they show.
_OTHER_COLUMNS = frozenset({_SENTENCE, "Domain", "Label", "Source"})
_FLAGS = ("0", "1")


def read_phenomena(path: epath.PathLike) -> dict[str, dict[str, int]]:
    """Return of each sentence the group of each phenomenon, 1 where the sentence shows it.

    Args:
        path: the table, or its URL.

    Raises:
        DataError: it cannot be read, has no column of a phenomenon, or a value that is neither 0 nor 1.
    """

    def parse(row: Mapping[str, str], where: str) -> tuple[str, dict[str, int]]:
        groups = {}
        for name, value in row.items():
            if name in _OTHER_COLUMNS:
                continue
            if value.strip() not in _FLAGS:
                raise DataError(f"{where}: {name}: found {shown(value)}; allowed: {', '.join(_FLAGS)}")
            groups[f"{PHENOMENON_GROUP}/{name.strip().replace(' ', '_')}"] = int(value)
        if not groups:
            raise DataError(f"{where}: has no column of a phenomenon beside {', '.join(row)}")
        return row[_SENTENCE].strip(), groups

    rows, _ = read_tsv(path, parse, (_SENTENCE,))
    return dict(rows)
