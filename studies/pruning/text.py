"""The corpus of a scale: prepared text, and texts to continue in fine-tuning."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from birdie_jax.storage import write_json, write_whole
from birdie_jax.text import Tokenizer, TokenShards, load_manifest, load_tokenizer
from studies.pruning.plans import Scale
from studies.verbs import Command, RunVerb, StudyError
from studies.workdirs import json_lines, read_record

_RECORD_TOKENS = 4096
# Marker, start token and END, and a margin for other pieces at a cut.
_SPARE_POSITIONS = 6


class Corpus(NamedTuple):
    """The files of a corpus, made by `prepare_corpus`.

    Attributes:
        folder: the folder of the files.
    """

    folder: Path

    @property
    def prepared(self) -> Path:
        """The output folder of prepare_data."""
        return self.folder / "prepared"

    @property
    def continuations(self) -> Path:
        """Texts of the training split in two halves, a prompt and its continuation, as JSON lines."""
        return self.folder / "continuations.jsonl"

    @property
    def record(self) -> Path:
        """The record of the corpus, as JSON. `prepare_corpus` writes it last."""
        return self.folder / "corpus.json"


def corpus_command(scale: Scale, text: str, corpus: Corpus) -> Command:
    """Return the command that prepares the text of a scale."""
    return Command(
        "prepare_data",
        (
            f"--input={text}",
            f"--output={corpus.prepared}",
            f"--vocab_size={scale.pieces}",
            f"--validation_fraction={scale.validation_fraction}",
            f"--record_tokens={_RECORD_TOKENS}",
            "--noprogress",
        ),
    )


def prepare_corpus(scale: Scale, text: str, corpus: Corpus, run_verb: RunVerb) -> dict[str, Any]:
    """Make the files of a corpus unless they exist; return its record.

    Args:
        scale: the scale.
        text: the documents, in the form of prepare_data's input.
        corpus: the files.
        run_verb: runs the verb prepare_data.

    Raises:
        StudyError: the text cannot be prepared or has no text to continue, or the folder has another text.
    """
    made = read_record(corpus.record, text)
    if made is not None:
        return made
    corpus.folder.mkdir(parents=True, exist_ok=True)
    run_verb(corpus_command(scale, text, corpus), corpus.folder / "log.txt")
    tokenizer = load_tokenizer(corpus.prepared)
    shards = TokenShards(str(corpus.prepared), "train", tokenizer_sha256=tokenizer.sha256)
    plan, continuations = scale.text_tuning, []
    if plan is not None:
        length = plan.length - _SPARE_POSITIONS
        continuations = list(_continuations(shards, tokenizer, length, plan.steps * plan.rows))
        if not continuations:
            raise StudyError(
                f"{text}: no record for training has {length} tokens; allowed: longer documents"
            )
        write_whole(corpus.continuations, json_lines(continuations))
    manifest = load_manifest(corpus.prepared)
    record = {
        "text": text,
        "tokenizer_sha256": tokenizer.sha256,
        "tokens": {split: manifest.tokens(split) for split in ("train", "validation")},
        "continuations": len(continuations),
    }
    write_json(corpus.record, record)
    return record


def _continuations(
    shards: TokenShards, tokenizer: Tokenizer, length: int, count: int
) -> Iterator[dict[str, str]]:
    """Yield up to `count` texts of `length` tokens from random records, without repetition."""
    rng = np.random.default_rng(0)
    # A record gives as many texts as fit into it.
    for _, number in zip(range(count), _drawn_places(shards, length, rng), strict=False):
        record, begin = number
        tokens = shards[record].tokens[begin : begin + length]
        halves = (
            tokenizer.decode(half.tolist()) for half in (tokens[: length // 2], tokens[length // 2 :])
        )
        yield dict(zip(("prompt", "reference"), halves, strict=True))


def _drawn_places(shards: TokenShards, length: int, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Yield the record and first position of texts that do not overlap, in random order."""
    places = [
        (record, begin)
        for record in range(len(shards))
        for begin in range(0, len(shards[record].tokens) - length + 1, length)
    ]
    for index in rng.permutation(len(places)).tolist():
        yield places[index]
