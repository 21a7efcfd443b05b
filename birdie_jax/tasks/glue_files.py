"""The files of GLUE: columns of each data set, test files without labels, and CoLA's annotations.

GLUE publishes tables with a row a line and tabs between columns, without quotation marks or escapes. The
reader here names each bad row by its line, or skips it. It does not use pyarrow.csv, which fails on the
whole file if one text is not UTF-8.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from etils import epath

from birdie_jax.errors import DataError, shown
from birdie_jax.tasks.head_task import Sample
from birdie_jax.tasks.metrics import F1, MATTHEWS, PEARSON, SPEARMAN
from birdie_jax.tasks.records import check_text, decode_line, read_contents, read_lines, refuse_bad

ACCURACY = "accuracy"
_TWO = ("0", "1")
_ENTAILMENT = ("not_entailment", "entailment")


@dataclass(frozen=True, kw_only=True)
class GlueDataset:
    """The files of a data set: `train.tsv`, and a file for each of `splits` and `predictions`.

    Attributes:
        texts: the column with the text, or the two columns with a pair of texts.
        label: the column with the label.
        metrics: the reported metrics; "Pretraining Without Attention" reports the first.
        classes: the labels, class 0 first; empty = the label is a number.
        splits: the labelled splits except `train`, the default split first.
        columns: the names of all columns, if the labelled files have no header.
        predictions: the unlabelled splits, and the leaderboard's file name for the predictions of each.
        index: the column of an unlabelled split with the number of the row.
    """

    texts: tuple[str, ...]
    label: str
    metrics: tuple[str, ...]
    classes: tuple[str, ...] = _TWO
    splits: tuple[str, ...] = ("dev",)
    columns: tuple[str, ...] = ()
    predictions: Mapping[str, str]
    index: str = "index"


_PAIR = ("sentence1", "sentence2")

GLUE_DATASETS: Mapping[str, GlueDataset] = {
    "cola": GlueDataset(
        texts=("sentence",),
        label="label",
        metrics=(MATTHEWS, ACCURACY),
        columns=("source", "label", "author_mark", "sentence"),
        predictions={"test": "CoLA.tsv"},
    ),
    "sst2": GlueDataset(
        texts=("sentence",), label="label", metrics=(ACCURACY,), predictions={"test": "SST-2.tsv"}
    ),
    "mrpc": GlueDataset(
        texts=("#1 String", "#2 String"),
        label="Quality",
        metrics=(F1, ACCURACY),
        predictions={"test": "MRPC.tsv"},
    ),
    "qqp": GlueDataset(
        texts=("question1", "question2"),
        label="is_duplicate",
        metrics=(F1, ACCURACY),
        predictions={"test": "QQP.tsv"},
        index="id",
    ),
    "stsb": GlueDataset(
        texts=_PAIR,
        label="score",
        metrics=(SPEARMAN, PEARSON),
        classes=(),
        predictions={"test": "STS-B.tsv"},
    ),
    "mnli": GlueDataset(
        texts=_PAIR,
        label="gold_label",
        metrics=(ACCURACY,),
        classes=("contradiction", "entailment", "neutral"),
        splits=("dev_matched", "dev_mismatched"),
        predictions={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
    ),
    "qnli": GlueDataset(
        texts=("question", "sentence"),
        label="label",
        metrics=(ACCURACY,),
        classes=_ENTAILMENT,
        predictions={"test": "QNLI.tsv"},
    ),
    "rte": GlueDataset(
        texts=_PAIR,
        label="label",
        metrics=(ACCURACY,),
        classes=_ENTAILMENT,
        predictions={"test": "RTE.tsv"},
    ),
    "wnli": GlueDataset(texts=_PAIR, label="label", metrics=(ACCURACY,), predictions={"test": "WNLI.tsv"}),
}

# The scores of STS-B.
MAX_SCORE = 5.0


_Parsed = TypeVar("_Parsed")

# (the cells of a row by column, the location of the row) -> the parsed row
ParseRow = Callable[[Mapping[str, str], str], _Parsed]


def read_tsv(
    path: epath.PathLike,
    parse: ParseRow[_Parsed],
    needed: Sequence[str],
    *,
    columns: Sequence[str] = (),
    skip_bad: bool = False,
) -> tuple[list[_Parsed], list[str]]:
    """Return the rows of a file, in order.

    Args:
        path: the file, or its URL; may be compressed (`.tsv.gz`).
        parse: a function from the cells of a row by column, and the row's location (`dev.tsv: line 3`), to
            the parsed row. For a bad row it raises a DataError that names the location.
        needed: the names of the columns that `parse` reads.
        columns: the names of all columns; empty = the first line is a header.
        skip_bad: whether to skip bad rows.

    Returns:
        The parsed rows, and a message for each skipped row.

    Raises:
        DataError: the file cannot be read, has no rows or lacks a needed column; or rows are bad, and
            `skip_bad` is false or no row is good. The message counts the bad rows, and names the lines of
            the first.
    """
    lines = read_lines(read_contents(path), path)
    if not columns and lines:
        (where, head), *lines = lines
        columns = decode_line(head, where).split("\t")
        _check_header(columns, needed, where)
    rows: list[_Parsed] = []
    refused: list[str] = []
    for where, line in lines:
        try:
            cells = decode_line(line, where).split("\t")
            if len(cells) != len(columns):
                raise DataError(
                    f"{where}: found {len(cells)} columns; allowed: {len(columns)}: {', '.join(columns)}"
                )
            rows.append(parse(dict(zip(columns, cells, strict=True)), where))
        except DataError as error:
            refused.append(str(error))
    if not rows and not refused:
        raise DataError(f"{path}: holds no row; allowed: one row a line, columns separated by tabs")
    refuse_bad(path, refused, len(rows), skip_bad=skip_bad)
    return rows, refused


def _check_header(columns: Sequence[str], needed: Sequence[str], where: str) -> None:
    for name in needed:
        if columns.count(name) != 1:
            found = "no column" if name not in columns else f"{columns.count(name)} columns"
            raise DataError(
                f"{where}: has {found} {shown(name)}; its columns are {shown(list(columns), 200)}; "
                f"allowed: {', '.join(needed)}, each once"
            )


# A file of predictions has the header `index`, `prediction`, and a line for each row of the test file with
# its index and its class or number. A submission to the leaderboard is a zip with a file for each data set.

# A placeholder; nothing reads the labels of unlabelled samples.
_ANY_LABEL = 1
_HEADER = ("index", "prediction")


def read_unlabelled(path: epath.PathLike, form: GlueDataset) -> tuple[list[str], list[Sample]]:
    """Return the indices and samples of a test file. The labels of the samples are placeholders.

    Raises:
        DataError: the file cannot be read, a row is bad, or two rows have the same index. The message names
            the lines. No row is skipped, because the leaderboard requires a prediction for each.
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
    """Return the contents of a predictions file for the leaderboard."""
    lines = ["\t".join(row) for row in (_HEADER, *zip(indices, predictions, strict=True))]
    return "".join(f"{line}\n" for line in lines).encode()


# The annotated development set is a table with the columns `Source`, `Domain`, `Acceptability` and
# `Sentence`, then a column of 0 and 1 for each phenomenon. Major and minor phenomena are in two files.
# As in CoLA's other files, nothing is quoted.

PHENOMENON = "phenomenon"
"""The kind of CoLA's categories."""

_SENTENCE = "Sentence"
# Columns after `Sentence` that are not phenomena.
_OTHER_COLUMNS = frozenset({"Acceptability", "Domain", "Label", "Source"})
_FLAGS = ("0", "1")
_QUOTE = '"'


def read_phenomena(path: epath.PathLike) -> dict[str, list[tuple[str, ...]]]:
    """Return the phenomena of each sentence, in a list with an item for each row of the sentence.

    Two sentences of the development set occur twice, with different annotations.

    Args:
        path: the table, or its URL.

    Raises:
        DataError: the table cannot be read, has no column for a phenomenon, has a value other than 0 and 1,
            or quotes a sentence. A quoted sentence would match no sentence of CoLA.
    """

    def parse(row: Mapping[str, str], where: str) -> tuple[str, tuple[str, ...]]:
        columns = list(row)
        names = [name for name in columns[columns.index(_SENTENCE) + 1 :] if name not in _OTHER_COLUMNS]
        if not names:
            raise DataError(
                f"{where}: has no column of a phenomenon after {_SENTENCE}; its columns are "
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
