"""The nine data sets of GLUE (Wang et al. 2019) as their files are published: columns, labels, metrics."""

from collections.abc import Mapping
from dataclasses import dataclass

from birdie_jax.tasks.label_metrics import F1, MATTHEWS, PEARSON, SPEARMAN

ACCURACY = "accuracy"
_TWO = ("0", "1")
_ENTAILMENT = ("not_entailment", "entailment")


@dataclass(frozen=True, kw_only=True)
class GlueDataset:
    """The form of a data set's files, `train.tsv`, those of `splits` and those of `predictions`.

    Attributes:
        texts: the columns with the text, or with the two texts of a pair.
        label: the column with the label.
        metrics: the metrics that are told; the first is the one that "Pretraining Without Attention" tells.
        classes: the labels, class 0 first; none: the label is a number.
        splits: the splits with labels beside `train`, the default one first.
        columns: the names of all columns, where a file with labels has no line with them.
        predictions: the splits without labels, and for each the leaderboard's name for what is predicted.
        index: the column of such a split with the number of a row.
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
