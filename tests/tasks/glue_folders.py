"""Writers of small synthetic files in the published formats of GLUE."""

import random
from pathlib import Path

_PARSES = ("( a )", "( b )", "(ROOT a)", "(ROOT b)")
_HEADERS = {
    "sst2": ("sentence", "label"),
    "mrpc": ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
    "qqp": ("id", "qid1", "qid2", "question1", "question2", "is_duplicate"),
    "stsb": (
        *("index", "genre", "filename", "year", "old_index", "source1", "source2"),
        *("sentence1", "sentence2", "score"),
    ),
    "mnli": (
        *("index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse"),
        *("sentence1_parse", "sentence2_parse", "sentence1", "sentence2", "label1", "gold_label"),
    ),
    "qnli": ("index", "question", "sentence", "label"),
    "rte": ("index", "sentence1", "sentence2", "label"),
    "wnli": ("index", "sentence1", "sentence2", "label"),
}
_LABELS = {
    "stsb": ("0.000", "2.333", "5.000"),
    "mnli": ("contradiction", "entailment", "neutral"),
    "qnli": ("not_entailment", "entailment"),
    "rte": ("not_entailment", "entailment"),
}

# The columns of the published test files, which have no labels.
UNLABELLED_COLUMNS = {
    **{
        "cola": ("index", "sentence"),
        "sst2": ("index", "sentence"),
        "qqp": ("id", "question1", "question2"),
    },
    "mrpc": ("index", *_HEADERS["mrpc"][1:]),
    "mnli": _HEADERS["mnli"][:-2],
    **{dataset: _HEADERS[dataset][:-1] for dataset in ("stsb", "qnli", "rte", "wnli")},
}


def labels_of(dataset: str) -> tuple[str, ...]:
    return _LABELS.get(dataset, ("0", "1"))


def row(dataset: str, number: int, first: str, second: str, label: str) -> tuple[str, ...]:
    """Return the cells of a row."""
    index = str(number)
    return {
        "cola": ("gj04", label, "*" if label == "0" else "", first),
        "sst2": (f"{first} ", label),
        "mrpc": (label, "12", "34", first, second),
        "qqp": (index, "1", "2", first, second, label),
        "stsb": (
            index,
            "main-captions",
            "MSRvid",
            "2012test",
            "0000",
            "none",
            "none",
            first,
            second,
            label,
        ),
        "mnli": (index, "1", "1n", "slate", *_PARSES, first, second, label, label),
        "qnli": (index, first, second, label),
        "rte": (index, first, second, label),
        "wnli": (index, first, second, label),
    }[dataset]


def write_glue(folder: Path, dataset: str, split: str, rows) -> Path:
    """Write rows of (first text, second text, label) as a file of a data set."""
    header = _HEADERS.get(dataset)
    lines = ["\t".join(header)] if header else []
    lines += ["\t".join(row(dataset, number, *one)) for number, one in enumerate(rows)]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{split}.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_learnable(folder: Path, dataset: str, split: str, count: int, seed: int = 0) -> Path:
    """Write a file with learnable labels: each label has its own letter in the first text."""
    random_letters, labels = random.Random(f"{seed} {split}"), labels_of(dataset)
    rows = []
    for number in range(count):
        which = number % len(labels)
        word = "klm"[which] * random_letters.randrange(4, 9)
        rows.append((f"{word} abc", "".join(random_letters.choices("defgh ", k=9)) + "i", labels[which]))
    return write_glue(folder, dataset, split, rows)


def write_unlabelled(
    folder, dataset, split="test", indices=("0", "1", "2"), texts=("abc", "def ghi", "jkl")
):
    """Write a test file without labels. All columns except the first hold the text."""
    columns = UNLABELLED_COLUMNS[dataset]
    rows = [(index, *[text] * (len(columns) - 1)) for index, text in zip(indices, texts, strict=True)]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{split}.tsv"
    path.write_text("\n".join("\t".join(row) for row in (columns, *rows)) + "\n")
    return path
