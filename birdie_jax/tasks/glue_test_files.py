"""GLUE's published test files, which have no labels, and the predictions that its leaderboard takes.

A file of predictions has a first line `index`, `prediction`, and a line for every row of the test file: its
index, and the class by its name or the number. What is sent in is a zip of one for each data set.
"""

from collections.abc import Mapping, Sequence

from etils import epath

from birdie_jax.storage import shown
from birdie_jax.tasks.glue_datasets import GlueDataset
from birdie_jax.tasks.records import check_text
from birdie_jax.tasks.samples import Sample
from birdie_jax.tasks.tsv import read_tsv
from birdie_jax.text import DataError

# Of a label that nothing reads.
_ANY_LABEL = 1
_HEADER = ("index", "prediction")


def read_unlabelled(path: epath.PathLike, form: GlueDataset) -> tuple[list[str], list[Sample]]:
    """Return the indices of a test file's rows, and their samples, whose labels mean nothing.

    Raises:
        DataError: the file cannot be read, or rows are bad or have an index twice; names them by their
            lines. None is passed over: the leaderboard wants a prediction for each.
    """
    places: dict[str, str] = {}

    def parse(row: Mapping[str, str], where: str) -> tuple[str, Sample]:
        index = row[form.index]
        if not (index.isascii() and index.isdigit()):
            raise DataError(f"{where}: {form.index}: found {shown(index)}; allowed: a number of digits")
        if index in places:
            raise DataError(
                f"{where}: {form.index}: found {index}, which {places[index]} has; allowed: another"
            )
        texts = tuple(check_text(row[column], f"{where}: {column}").strip() for column in form.texts)
        places[index] = where
        return index, Sample(where, texts, _ANY_LABEL)

    rows, _ = read_tsv(path, parse, (form.index, *form.texts))
    return [index for index, _ in rows], [sample for _, sample in rows]


def predictions_table(indices: Sequence[str], predictions: Sequence[str]) -> bytes:
    """Return the file that the leaderboard takes."""
    lines = ["\t".join(row) for row in (_HEADER, *zip(indices, predictions, strict=True))]
    return "".join(f"{line}\n" for line in lines).encode()
