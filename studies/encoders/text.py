"""The text of a scale: prepared prose, and the samples of every task.

Training never reads a measured sample. Training samples come from training documents. Measured samples come
from held-out documents: one half for validation, the other for the test. The task `verse` is an exception:
pre-training reads most of its verses, each separately, and only the pairs are held out.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from birdie_jax.errors import DataError
from birdie_jax.storage import write_json, write_whole
from birdie_jax.tasks.records import read_records, read_text
from birdie_jax.text import Tokenizer, load_manifest, load_tokenizer
from birdie_jax.text.tokenization import split_of
from studies.encoders.plans import Scale
from studies.encoders.tasks import PAIR, PROSE, TRANSFER_TASKS, Document
from studies.verbs import Command, RunVerb, StudyError
from studies.workdirs import json_lines, read_record

TRAIN, VALIDATION, TEST = "train", "validation", "test"
SPLITS = (TRAIN, VALIDATION, TEST)
_DEAL = (*[TRAIN] * 6, VALIDATION, *[TEST] * 3)
_COMMON_WORDS = 400
_MIN_LETTERS = 3
# Subject, prepositional phrase and verb as in Marvin and Linzen 2018, with words of old prose.
_NOUNS = (
    ("man", "men"),
    ("woman", "women"),
    ("king", "kings"),
    ("servant", "servants"),
    ("son", "sons"),
    ("friend", "friends"),
    ("brother", "brothers"),
    ("captain", "captains"),
    ("child", "children"),
    ("lady", "ladies"),
)
_PREPOSITIONS = ("near", "beside", "with", "before", "behind")
_VERBS = (("is", "are"), ("was", "were"), ("has", "have"))
_ENDS = {
    "is": ("not here", "very good"),
    "was": ("not there", "very great"),
    "has": ("been here", "come to the house"),
}
_NUMBERS = ("singular", "plural")


class Corpus(NamedTuple):
    """The files of a corpus, made by `prepare_corpus`.

    Attributes:
        folder: the folder of the files.
    """

    folder: Path

    @property
    def prose(self) -> Path:
        """The documents for pre-training, with the held-out ones, as JSON lines."""
        return self.folder / "prose.jsonl"

    @property
    def prepared(self) -> Path:
        """The output folder of prepare_data."""
        return self.folder / "prepared"

    @property
    def agreement(self) -> Path:
        """The sentences of the agreement test, as JSON."""
        return self.folder / "agreement.json"

    def samples(self, task: str, split: str) -> Path:
        """Return the file of a task's samples, as JSON lines."""
        return self.folder / f"{task}_{split}.jsonl"

    @property
    def record(self) -> Path:
        """The record of the corpus, as JSON. `prepare_corpus` writes it last."""
        return self.folder / "corpus.json"


def corpus_of(workdirs: Path, scale: Scale) -> Corpus:
    """Return the files of the corpus of a scale."""
    return Corpus(workdirs / scale.name / "text")


def corpus_command(scale: Scale, corpus: Corpus) -> Command:
    """Return the command that prepares the prose."""
    return Command(
        "prepare_data",
        (
            f"--input={corpus.prose}",
            f"--output={corpus.prepared}",
            f"--vocab_size={scale.pieces}",
            f"--validation_fraction={scale.validation_fraction}",
            "--record_tokens=4096",
            "--noprogress",
        ),
    )


def prepare_corpus(scale: Scale, text: str, corpus: Corpus, run_verb: RunVerb) -> dict[str, Any]:
    """Make the files of a corpus unless they exist; return its record.

    Args:
        scale: the scale.
        text: a file of JSON lines with the fields `text` and `source`.
        corpus: the files.
        run_verb: runs the verb prepare_data.

    Raises:
        StudyError: the text cannot be read or gives no samples of a task, or the folder has another text.
    """
    made = read_record(corpus.record, text)
    if made is not None:
        return made
    documents = _documents(text)
    corpus.folder.mkdir(parents=True, exist_ok=True)
    prose = [{"text": document.text} for document in documents if document.source in PROSE]
    write_whole(corpus.prose, json_lines(prose))
    run_verb(corpus_command(scale, corpus), corpus.folder / "log.txt")
    counts = _write_samples(scale, documents, corpus)
    sentences = agreement_sentences(scale.agreement_questions, np.random.default_rng([0, 100]))
    write_json(corpus.agreement, sentences)
    record = {
        "text": text,
        "documents": {split: len(found) for split, found in _split(documents, scale).items()},
        "samples": counts,
        "tokens": {split: load_manifest(corpus.prepared).tokens(split) for split in (TRAIN, VALIDATION)},
    }
    write_json(corpus.record, record)
    return record


def _documents(text: str) -> list[Document]:
    def parse(record: Mapping[str, Any], where: str) -> Document:
        return Document(read_text(record, "source", where), read_text(record, "text", where))

    try:
        return read_records(text, parse)[0]
    except DataError as error:
        raise StudyError(str(error)) from error


def _split(documents: Sequence[Document], scale: Scale) -> dict[str, list[Document]]:
    held_out, training = [], []
    for document in documents:
        is_held_out = split_of(document.text, scale.validation_fraction) == VALIDATION
        (held_out if is_held_out else training).append(document)
    # Alternate, because the documents of a source are adjacent.
    return {TRAIN: training, VALIDATION: held_out[::2], TEST: held_out[1::2]}


def _write_samples(scale: Scale, documents: Sequence[Document], corpus: Corpus) -> dict[str, Any]:
    """Write the samples of every task; return the number of samples by task and split."""
    limits = {
        TRAIN: scale.training_samples,
        VALIDATION: scale.validation_samples,
        TEST: scale.test_samples,
    }
    parts = _split(documents, scale)
    words = common_words(parts[TRAIN], load_tokenizer(corpus.prepared))
    counts: dict[str, Any] = {}
    for number, (name, task) in enumerate(TRANSFER_TASKS.items()):
        if name not in scale.tasks:
            continue
        counts[name] = {}
        # Draw the samples of a task of pairs once, and divide them among the splits.
        dealt = (
            _dealt(task.give(documents, words, np.random.default_rng([0, number]))) if task.of_pairs else {}
        )
        for place, split in enumerate(SPLITS):
            rng = np.random.default_rng([0, number, place])
            given = dealt[split] if task.of_pairs else task.give(parts[split], words, rng)
            samples = list(islice(given, limits[split]))
            if not samples:
                raise StudyError(f"the text has no samples of {name} for {split}; allowed: more text")
            write_whole(corpus.samples(name, split), json_lines(samples))
            counts[name][split] = len(samples)
    return counts


def _dealt(samples: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Divide samples among the splits in the ratio 6 : 1 : 3; a pair's samples stay together."""
    dealt: dict[str, list[Mapping[str, Any]]] = {split: [] for split in SPLITS}
    for sample in samples:
        dealt[_DEAL[sample[PAIR] % len(_DEAL)]].append(sample)
    return dealt


def common_words(documents: Sequence[Document], tokenizer: Tokenizer) -> list[str]:
    """Return the most common words of prose; only words of one piece if there are enough of them."""
    found: dict[str, int] = {}
    for document in documents:
        if document.source in PROSE:
            for word in document.text.split():
                if word.isascii() and word.isalpha() and word.islower() and len(word) >= _MIN_LETTERS:
                    found[word] = found.get(word, 0) + 1
    ordered = sorted(found, key=lambda word: (-found[word], word))
    single = [word for word in ordered if len(tokenizer.encode(f" {word}")) == 1]
    return (single if len(single) >= _COMMON_WORDS else ordered)[:_COMMON_WORDS]


def agreement_sentences(count: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return `count` different sentences in the JSON that the task `agreement` reads as `choices`.

    A verb agrees with its subject across another noun ("The man near the kings was ..."). All four
    combinations of the nouns' numbers are equally common.

    Args:
        count: the number of sentences, at most a few thousand.
        rng: the source of every random choice.
    """
    examples: dict[str, dict[str, Any]] = {}
    while len(examples) < count:
        subject, other = rng.choice(len(_NOUNS), size=2, replace=False)
        number, other_number = len(examples) % 2, len(examples) // 2 % 2
        verbs = _VERBS[int(rng.integers(len(_VERBS)))]
        ends = _ENDS[verbs[0]]
        end = ends[int(rng.integers(len(ends)))]
        preposition = _PREPOSITIONS[int(rng.integers(len(_PREPOSITIONS)))]
        begin = f"The {_NOUNS[subject][number]} {preposition} the {_NOUNS[other][other_number]}"
        examples.setdefault(
            f"{begin} {verbs[number]} {end}",
            {
                "input": begin,
                "target_scores": {f"{verbs[number]} {end}.": 1, f"{verbs[1 - number]} {end}.": 0},
                "comment": f"{_NUMBERS[number]}_{_NUMBERS[other_number]}",
            },
        )
    return {"examples": list(examples.values())}
