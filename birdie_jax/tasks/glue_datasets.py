"""The nine data sets of GLUE (Wang et al. 2019) as their files are published: columns, labels, metrics."""

from collections.abc import Mapping
from dataclasses import dataclass

from birdie_jax.tasks.label_metrics import F1, MATTHEWS, PEARSON, SPEARMAN

ACCURACY = "accuracy"
_TWO = ("0", "1")
_ENTAILMENT = ("not_entailment", "entailment")


@dataclass(frozen=True)
class GlueDataset:
    """The form of a data set's files, `train.tsv` and those of `splits`.

    Attributes:
        texts: the columns with the text, or with the two texts of a pair.
        label: the column with the label.
        metrics: the metrics that are told; the first is the one that "Pretraining Without Attention" tells.
        classes: the labels, class 0 first; none: the label is a number.
        splits: the splits with labels beside `train`, the default one first.
        columns: the names of all columns, where a file has no line with them.
    """

    texts: tuple[str, ...]
    label: str
    metrics: tuple[str, ...]
    classes: tuple[str, ...] = _TWO
    splits: tuple[str, ...] = ("dev",)
    columns: tuple[str, ...] = ()


_PAIR = ("sentence1", "sentence2")

GLUE_DATASETS: Mapping[str, GlueDataset] = {
    "cola": GlueDataset(
        ("sentence",),
        "label",
        (MATTHEWS, ACCURACY),
        columns=("source", "label", "author_mark", "sentence"),
    ),
    "sst2": GlueDataset(("sentence",), "label", (ACCURACY,)),
    "mrpc": GlueDataset(("#1 String", "#2 String"), "Quality", (F1, ACCURACY)),
    "qqp": GlueDataset(("question1", "question2"), "is_duplicate", (F1, ACCURACY)),
    "stsb": GlueDataset(_PAIR, "score", (SPEARMAN, PEARSON), classes=()),
    "mnli": GlueDataset(
        _PAIR,
        "gold_label",
        (ACCURACY,),
        classes=("contradiction", "entailment", "neutral"),
        splits=("dev_matched", "dev_mismatched"),
    ),
    "qnli": GlueDataset(("question", "sentence"), "label", (ACCURACY,), classes=_ENTAILMENT),
    "rte": GlueDataset(_PAIR, "label", (ACCURACY,), classes=_ENTAILMENT),
    "wnli": GlueDataset(_PAIR, "label", (ACCURACY,)),
}

# The scores of STS-B.
MAX_SCORE = 5.0
