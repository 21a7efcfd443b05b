"""The corpus of a scale: prepared text, held-out documents, and questions made from them.

Training never reads a measured question. Training questions come from training documents. Measured
questions come from held-out documents: the first half for validation (the choice of learning rate and
steps), the second half for the test.

A question on a passage takes one of its sentences and replaces a capitalised span of one to three words
with a blank. The span occurs once in the passage and is the answer:

    Ahab stood upon the deck. The crew were silent. Then Starbuck spoke.

    Fill in the blank: Then ____ spoke.

A story has three short consecutive clauses, one of them missing. The choices are that clause and three
clauses of other documents.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from birdie_jax.storage import write_json, write_whole
from birdie_jax.tasks.infilling import Infilling
from birdie_jax.text import Tokenizer, load_manifest, load_tokenizer, open_source
from birdie_jax.text.tokenization import split_of
from studies.retrieval.plans import ExtractionPlan, Scale
from studies.verbs import Command, RunVerb, StudyError
from studies.workdirs import json_lines, read_record

_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+")
_CLAUSE_END = re.compile(r"(?<=[.!?;:,])\s+")
_SPAN = re.compile(r"\b[A-Z][a-zA-Z'\-]+(?: [A-Z][a-zA-Z'\-]+){0,2}")
_BLANK = "____"
_MAX_SENTENCE_CHARACTERS = 160
_MAX_QUESTION_TOKENS = 72
_STORY_CLAUSES, _CHOICES = 3, 4
_CLAUSE_CHARACTERS = (12, 48)
_DRAWN_ROWS = 32
# The maximum number of questions of a document, so no document dominates.
_MAX_OF_DOCUMENT = 400


class Corpus(NamedTuple):
    """The files of a corpus, made by `prepare_corpus`.

    Attributes:
        prepared: the output folder of prepare_data, shared by scales with the same vocabulary.
        folder: the folder of held-out documents and questions, which differs by scale.
    """

    prepared: Path
    folder: Path

    @property
    def held_out(self) -> Path:
        """The held-out documents, as JSON lines."""
        return self.folder / "held_out.jsonl"

    @property
    def stories(self) -> Path:
        """The stories with a missing clause, as JSON lines."""
        return self.folder / "stories.jsonl"

    def extraction(self, split: str) -> Path:
        """Return the file of questions on passages for a split, as JSON lines."""
        return self.folder / f"extraction_{split}.jsonl"

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
            f"--sample_bytes={scale.sample_bytes}",
            f"--record_tokens={scale.changes.get('data', {}).get('record_tokens', 32_768)}",
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
        StudyError: the text cannot be prepared or gives too few questions, or the folder has another text.
    """
    made = read_record(corpus.record, text)
    if made is not None:
        return made
    corpus.folder.mkdir(parents=True, exist_ok=True)
    run_verb(corpus_command(scale, text, corpus), corpus.folder / "log.txt")
    tokenizer = load_tokenizer(corpus.prepared)
    fraction = scale.validation_fraction
    train = list(_texts(text, fraction, "train"))
    held_out = list(_texts(text, fraction, "validation"))
    if len(held_out) < 2:
        raise StudyError(f"{text}: {len(held_out)} of its documents are held out; allowed: 2 or more")
    write_whole(corpus.held_out, json_lines({"text": document} for document in held_out))
    plan, half = scale.extraction, len(held_out) // 2
    parts = {
        "train": (train, plan.training_questions),
        "validation": (held_out[:half], plan.validation_questions),
        "test": (held_out[half:], plan.test_questions),
    }
    for number, (split, (documents, count)) in enumerate(parts.items()):
        rng = np.random.default_rng([0, number])
        questions = extraction_questions(documents, plan, tokenizer, count, rng)
        write_whole(corpus.extraction(split), json_lines(questions))
    stories = infilling_stories(held_out, tokenizer, scale.measuring.stories, scale.measuring.story_tokens)
    write_whole(corpus.stories, json_lines(stories))
    record = {
        "text": text,
        "documents": {"train": len(train), "held_out": len(held_out)},
        "tokenizer_sha256": tokenizer.sha256,
        "tokens": {
            split: load_manifest(corpus.prepared).tokens(split) for split in ("train", "validation")
        },
    }
    write_json(corpus.record, record)
    return record


def _texts(text: str, fraction: float, split: str) -> Iterator[str]:
    for document in open_source(text, "text").documents():
        if split_of(document.text, fraction) == split:
            yield document.text


def extraction_questions(
    documents: Sequence[str],
    plan: ExtractionPlan,
    tokenizer: Tokenizer,
    count: int,
    rng: np.random.Generator,
) -> list[dict[str, Any]]:
    """Return questions on passages, equally many of each length.

    Args:
        documents: the documents.
        plan: the lengths of passages.
        tokenizer: the tokenizer that counts tokens.
        count: the number of questions.
        rng: the source of every random choice.

    Raises:
        StudyError: the documents give fewer questions.
    """
    sentences = [_parts(document, _SENTENCE_END) for document in documents]
    questions: list[dict[str, Any]] = []
    wanted = [count // len(plan.passage_tokens)] * len(plan.passage_tokens)
    wanted[0] += count - sum(wanted)
    for limit, number in zip(plan.passage_tokens, wanted, strict=True):
        candidates = [
            (document, first)
            for document, of_document in enumerate(sentences)
            for first in rng.permutation(len(of_document))[:_MAX_OF_DOCUMENT].tolist()
        ]
        found = 0
        for index in rng.permutation(len(candidates)).tolist():
            if found == number:
                break
            document, first = candidates[index]
            question = _question(sentences[document][first:], limit, tokenizer, rng)
            if question is not None:
                questions.append({"id": f"{limit}-{found:06d}", **question})
                found += 1
        if found < number:
            raise StudyError(
                f"the corpus has {found} questions on passages of {limit // 2} to {limit} tokens; "
                f"required: {number}; allowed: more text, or a scale with fewer questions"
            )
    return questions


def _parts(text: str, end: re.Pattern[str]) -> list[str]:
    return [" ".join(part.split()) for part in end.split(text) if part.strip()]


def _question(
    sentences: Sequence[str], limit: int, tokenizer: Tokenizer, rng: np.random.Generator
) -> dict[str, Any] | None:
    """Return a question on the passage that begins with the first sentence; None if there is none."""
    passage: list[str] = []
    tokens = 0
    for sentence in sentences:
        added = len(tokenizer.encode(sentence)) + 1
        if tokens + added > limit:
            break
        passage.append(sentence)
        tokens += added
    if tokens < limit // 2:
        return None
    whole = " ".join(passage)
    spans = [
        (sentence, match)
        for sentence in passage
        if len(sentence) <= _MAX_SENTENCE_CHARACTERS
        for match in _SPAN.finditer(sentence)
        # The first word of a sentence is always capitalised.
        if match.start() > 0 and whole.count(match[0]) == 1
    ]
    if not spans:
        return None
    sentence, match = spans[int(rng.integers(len(spans)))]
    blanked = sentence[: match.start()] + _BLANK + sentence[match.end() :]
    question = f"Fill in the blank: {blanked}"
    if len(tokenizer.encode(question)) > _MAX_QUESTION_TOKENS:
        return None
    return {"prompt": f"{whole}\n\n{question}", "reference": match[0], "passage_tokens": limit}


def infilling_stories(
    documents: Sequence[str], tokenizer: Tokenizer, count: int, max_tokens: int
) -> list[dict[str, Any]]:
    """Return stories with a missing clause. Prompt and choice have at most `max_tokens` tokens.

    Raises:
        StudyError: the documents give fewer than `count` stories.
    """
    rng = np.random.default_rng([0, 3])
    low, high = _CLAUSE_CHARACTERS
    rows: list[tuple[int, list[str]]] = []
    for number, document in enumerate(documents):
        clauses = _parts(document, _CLAUSE_END)
        for first in range(len(clauses) - _STORY_CLAUSES + 1):
            row = clauses[first : first + _STORY_CLAUSES]
            if all(low <= len(clause) <= high for clause in row) and len(set(row)) == len(row):
                rows.append((number, row))
    stories: list[dict[str, Any]] = []
    parse = Infilling(path="stories").parse_record
    for index in rng.permutation(len(rows)).tolist():
        if len(stories) == count:
            break
        document, row = rows[index]
        blank = int(rng.integers(len(row)))
        drawn = [rows[place] for place in rng.integers(len(rows), size=_DRAWN_ROWS).tolist()]
        others = dict.fromkeys(other[blank] for number, other in drawn if number != document)
        choices = [other for other in others if other not in row][: _CHOICES - 1]
        if len(choices) < _CHOICES - 1:
            continue
        label = int(rng.integers(_CHOICES))
        choices.insert(label, row[blank])
        entries: list[str | None] = [*row]
        entries[blank] = None
        record = {"id": f"{len(stories):06d}", "entries": entries, "choices": choices, "label": label}
        question = parse(record, "story")
        longest = max(len(tokenizer.encode(choice)) for choice in question.choices)
        if len(tokenizer.encode(question.prompt)) + longest + 2 <= max_tokens:
            stories.append(record)
    if len(stories) < count:
        raise StudyError(
            f"the held-out text has {len(stories)} stories of at most {max_tokens} tokens; required: "
            f"{count}; allowed: more text, or a scale with fewer stories"
        )
    return stories
