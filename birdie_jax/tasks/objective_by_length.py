"""Accuracy on training objectives by the length of the text (Birdie paper, section 3.2).

The tasks are copying (Jelassi et al. 2024), deshuffling and selective copying of passages, each in the
format of its objective.
"""

import abc
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from birdie_jax.config_types import RequiredName, Seed, ShareOfBoth
from birdie_jax.errors import DataError, UnsuitableText
from birdie_jax.objectives import Example, Objective, make_objective
from birdie_jax.storage import Bounds
from birdie_jax.tasks.question import Question
from birdie_jax.tasks.records import OptionalDataPath
from birdie_jax.tasks.registry import register_task
from birdie_jax.tasks.task import TokenTask, without_stop
from birdie_jax.tasks.training_examples import GeneratedExamples
from birdie_jax.text import Tokenizer, open_source
from birdie_jax.text.tokenization import split_of

# Enough for an evaluation, and takes seconds to read.
_MAX_TOKENS = 1 << 22
_DOCUMENTS_AT_ONCE = 64


class TextSource(NamedTuple):
    """A source of text.

    Attributes:
        source: "stdlib", a file, a folder or a glob of documents, or a URL of these.
        text_field: the field of .jsonl and .parquet records that holds the text.
        validation_fraction: the share of the documents for evaluation. A run on the same source did not
            train on them if its `data.validation_fraction` is at least as large.
    """

    source: str
    text_field: str
    validation_fraction: float


class Passages:
    """Draws passages of a given number of tokens."""

    def __init__(
        self, tokenizer: Tokenizer, text: TextSource | None, split: str, *, whole_lines: bool = False
    ):
        """Read up to four million tokens of text.

        Args:
            tokenizer: the tokenizer.
            text: the source of text; None = uniformly random pieces of the tokenizer.
            split: the split to read: "train" or "validation".
            whole_lines: whether passages are lines, without surrounding white space, that no document of
                the other split has.

        Raises:
            DataError: the source cannot be read.
        """
        self._text, self._split, self._whole_lines = text, split, whole_lines
        self._pieces = tokenizer.ordinary_tokens() if text is None else np.empty(0, np.int32)
        read = _read_lines if whole_lines else _read_documents
        self._documents = [] if text is None else read(tokenizer, text, split)
        self._lengths = np.array([len(document) for document in self._documents], np.int64)

    @property
    def sha256(self) -> str:
        """The hash of the tokens of all documents or lines; empty for random tokens."""
        if self._text is None:
            return ""
        digest = hashlib.sha256(self._lengths.tobytes())
        for document in self._documents:
            digest.update(document.tobytes())
        return digest.hexdigest()

    def lengths_of_lines(self, shortest: int, longest: int) -> Int64[np.ndarray, " lengths"] | None:
        """Return the different numbers of tokens of whole lines in a range; None = any length will do.

        Raises:
            DataError: there is no such line.
        """
        if self._text is None or not self._whole_lines:
            return None
        found = np.unique(self._lengths)
        found = found[(found >= shortest) & (found <= longest)]
        if not found.size:
            raise DataError(
                f"{self._text.source}: found no line of {shortest} to {longest} tokens in its "
                f"{self._split} split alone; allowed: another length, source or validation_fraction"
            )
        return found

    def draw(self, rng: np.random.Generator, length: int) -> Int32[np.ndarray, " tokens"]:
        """Return a passage: int32 [length]. All passages of this length are equally likely.

        Raises:
            DataError: no document has that many tokens; for whole lines, no line has exactly that many.
        """
        if self._text is None:
            return rng.choice(self._pieces, length)
        if self._whole_lines:
            fitting = np.flatnonzero(self._lengths == length)
            if not fitting.size:
                raise DataError(
                    f"{self._text.source}: found no line of {length} tokens in its {self._split} split "
                    "alone; allowed: another length, source or validation_fraction"
                )
            return self._documents[int(rng.choice(fitting))]
        starts = np.maximum(self._lengths - length + 1, 0).cumsum()
        if not starts.size or starts[-1] == 0:
            longest = int(self._lengths.max(initial=0))
            raise DataError(
                f"{self._text.source}: found no document of {length} tokens in its {self._split} split of "
                f"validation_fraction = {self._text.validation_fraction:g}; allowed: lengths of at most "
                f"{longest}, or another source or validation_fraction"
            )
        start = int(rng.integers(starts[-1]))
        document = int(np.searchsorted(starts, start, side="right"))
        first = start - (int(starts[document - 1]) if document else 0)
        return self._documents[document][first : first + length]


def _read_documents(tokenizer: Tokenizer, text: TextSource, split: str) -> list[np.ndarray]:
    documents: list[np.ndarray] = []
    waiting: list[str] = []
    count = 0
    for document in open_source(text.source, text.text_field).documents():
        if split_of(document.text, text.validation_fraction) != split:
            continue
        waiting.append(document.text)
        if len(waiting) == _DOCUMENTS_AT_ONCE:
            documents += tokenizer.encode_batch(waiting)
            count += sum(map(len, documents[-len(waiting) :]))
            waiting = []
        if count >= _MAX_TOKENS:
            return documents
    return documents + tokenizer.encode_batch(waiting)


def _read_lines(tokenizer: Tokenizer, text: TextSource, split: str) -> list[np.ndarray]:
    """Return the distinct lines of a split that no document of the other split has."""
    lines: dict[str, np.ndarray] = {}
    count = 0
    for own in (True, False):
        for document in open_source(text.source, text.text_field).documents():
            if (split_of(document.text, text.validation_fraction) == split) != own:
                continue
            found = dict.fromkeys(line.strip() for line in document.text.splitlines())
            if not own:
                for line in found:
                    lines.pop(line, None)
                continue
            new = [line for line in found if line and line not in lines]
            lines |= zip(new, tokenizer.encode_batch(new), strict=True)
            count += sum(len(lines[line]) for line in new)
            if count >= _MAX_TOKENS:
                break
    return list(lines.values())


PassageLength = Annotated[int, Bounds(at_least=2, at_most=2**20)]
QuestionsPerLength = Annotated[int, Bounds(at_least=1, at_most=10**6)]

# A passage with few distinct tokens may have no unique delimiters. Then the task draws another one.
_ATTEMPTS = 64


@dataclass(frozen=True, kw_only=True)
class ObjectiveByLength(TokenTask):
    """The base class of tasks that measure a training objective on passages of given lengths.

    The prompt is the objective's context, with its markers, and the reference is the target. So you can
    measure a model that was trained on the objective without fine-tuning it. Question i of a length depends
    only on i, the tokenizer and the other settings.

    Groups:
        length: the number of tokens of the passage.

    Attributes:
        lengths: the numbers of tokens of the passages.
        questions_per_length: the number of questions for each length.
        source: the source of passages: "stdlib", a file, a folder or a glob of documents, or a URL of
            these; empty = tokens drawn uniformly from the tokenizer's pieces.
        text_field: the field of .jsonl and .parquet records that holds the text.
        validation_fraction: the share of the source's documents for questions; the others are for training.
            A larger share includes the documents of a smaller one.
        whole_lines: whether a passage is a line of the text, without surrounding white space, that no
            training document has. Otherwise a passage begins and ends anywhere in a document.
        seed: the seed of the questions.
    """

    lengths: tuple[PassageLength, ...] = (32, 64, 128, 256, 512)
    questions_per_length: QuestionsPerLength = 64
    source: OptionalDataPath = ""
    text_field: RequiredName = "text"
    validation_fraction: ShareOfBoth = 0.01
    whole_lines: bool = False
    seed: Seed = 0

    def __post_init__(self):
        if self.whole_lines and not self.source:
            raise ValueError(
                "whole_lines: found True with source ''; allowed: with a source, because random tokens "
                "have no lines"
            )
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)):
            raise ValueError(
                f"lengths: found {list(self.lengths)}; allowed: one length or more, increasing"
            )
        for length in self.lengths:
            self.objective(length, length)

    @abc.abstractmethod
    def objective(self, min_length: int, max_length: int) -> Objective:
        """Return the objective for passages of `min_length` to `max_length` tokens.

        Raises:
            ValueError: the objective needs longer passages, or a setting is invalid.
        """

    def questions(self, tokenizer: Tokenizer) -> tuple[Sequence[Question], Sequence[str]]:
        """Return the questions, sorted by length.

        Raises:
            DataError: the source cannot be read, or has no passage of a length.
        """
        passages = Passages(tokenizer, self._text, "validation", whole_lines=self.whole_lines)
        questions = []
        for length in self.lengths:
            objective = self.objective(length, length)
            for number in range(self.questions_per_length):
                rng = np.random.default_rng([self.seed, length, number])
                example = _build(objective, passages, length, rng)
                questions.append(
                    Question(
                        name=f"{length}-{number:06d}",
                        prompt=tokenizer.decode(example.context),
                        references=(tokenizer.decode(without_stop(example.target)),),
                        groups={"length": length},
                        prompt_tokens=tuple(example.context.tolist()),
                        reference_tokens=tuple(example.target.tolist()),
                        special_tokens=objective.answer_special_tokens(example.context),
                    )
                )
        return questions, ()

    def settings_within(self, tokenizer: Tokenizer, length: int) -> Mapping[str, Any]:
        """Return the setting `lengths` with the lengths that fit; empty if none fits."""
        del tokenizer
        fitting = [
            each for each in self.lengths if self.objective(each, each).example_length(each) <= length
        ]
        return {"lengths": fitting} if fitting else {}

    def training_examples(self, tokenizer: Tokenizer) -> GeneratedExamples:
        """Return a generator of examples with passages of the shortest to the longest of `lengths`.

        Raises:
            DataError: the source cannot be read, or has no line of such a length.
        """
        passages = Passages(tokenizer, self._text, "train", whole_lines=self.whole_lines)
        return ObjectiveExamples(self.objective(self.lengths[0], self.lengths[-1]), passages)

    @property
    def _text(self) -> TextSource | None:
        if not self.source:
            return None
        return TextSource(self.source, self.text_field, self.validation_fraction)


class ObjectiveExamples:
    """Examples of an objective on passages, with lengths uniform over those that fit.

    If passages are whole lines, the lengths are those of the lines.

    Attributes:
        text_sha256: the hash of the text of the passages; empty for random tokens.
    """

    def __init__(self, objective: Objective, passages: Passages):
        """Store the objective, which limits the lengths, and the passages.

        Raises:
            DataError: no line has a length that the objective allows.
        """
        assert objective.max_length is not None
        self._objective, self._passages = objective, passages
        self.text_sha256 = passages.sha256
        self._lines = passages.lengths_of_lines(objective.minimum_tokens, objective.max_length)

    def draw(self, rng: np.random.Generator, max_positions: int) -> Example | None:
        """Return an example of at most `max_positions` positions; None if the shortest does not fit."""
        length = self._draw_length(rng, max_positions)
        return None if length is None else _build(self._objective, self._passages, length, rng)

    def _draw_length(self, rng: np.random.Generator, max_positions: int) -> int | None:
        objective = self._objective
        if self._lines is not None:
            fitting = self._lines[self._lines <= objective.text_limit(max_positions)]
            return int(rng.choice(fitting)) if fitting.size else None
        assert objective.max_length is not None
        try:
            return objective.draw_length(objective.max_length, rng, max_positions)
        except UnsuitableText:
            return None


def _build(objective: Objective, passages: Passages, length: int, rng: np.random.Generator) -> Example:
    for _ in range(_ATTEMPTS):
        try:
            return objective.build(passages.draw(rng, length), rng)
        except UnsuitableText as error:
            problem = error
    raise DataError(
        f"{objective.name}: none of {_ATTEMPTS} passages of {length} tokens is usable: {problem}"
    )


@register_task
@dataclass(frozen=True, kw_only=True)
class CopyingByLength(ObjectiveByLength):
    """Copy the passage, in the format of the objective copying."""

    name: ClassVar[str] = "copying_by_length"

    def objective(self, min_length: int, max_length: int) -> Objective:
        """Return the objective copying."""
        return make_objective("copying", min_length=min_length, max_length=max_length)


Rate = Annotated[float, Bounds(more_than=0, at_most=1)]


@register_task
@dataclass(frozen=True, kw_only=True)
class DeshufflingByLength(ObjectiveByLength):
    """Restore the order of a shuffled passage, in the format of the objective deshuffling.

    Attributes:
        rate: the share of the passage's tokens to shuffle.
        source: the source of passages; required, because random tokens have no order to restore.
    """

    name: ClassVar[str] = "deshuffling_by_length"

    rate: Rate = 0.5
    source: OptionalDataPath = "stdlib"

    def __post_init__(self):
        if not self.source:
            raise ValueError("source: found ''; allowed: stdlib, a file, a folder, a glob or a URL")
        super().__post_init__()

    def objective(self, min_length: int, max_length: int) -> Objective:
        """Return the objective deshuffling."""
        return make_objective("deshuffling", rate=self.rate, min_length=min_length, max_length=max_length)


Spans = Annotated[int, Bounds(at_least=1, at_most=2**10)]
SpanLength = Annotated[int, Bounds(at_least=1, at_most=2**10)]


@register_task
@dataclass(frozen=True, kw_only=True)
class SelectiveCopyingByLength(ObjectiveByLength):
    """Copy spans of the passage, in the format of the objective selective_copying.

    Attributes:
        spans: the number of requested spans.
        query_first: whether the queries precede the passage.
        span_length: the smallest and largest number of tokens of a span.
        start_delimiter_length: the smallest and largest number of tokens of the delimiter before a span.
        end_delimiter_length: the smallest and largest number of tokens of the delimiter after a span. A
            passage must have room for all spans and delimiters at their largest lengths.
        lengths: the numbers of tokens of the passages.
    """

    name: ClassVar[str] = "selective_copying_by_length"

    spans: Spans = 1
    query_first: bool = True
    span_length: tuple[SpanLength, SpanLength] = (8, 16)
    start_delimiter_length: tuple[SpanLength, SpanLength] = (1, 8)
    end_delimiter_length: tuple[SpanLength, SpanLength] = (1, 4)
    lengths: tuple[PassageLength, ...] = (64, 128, 256, 512)

    def objective(self, min_length: int, max_length: int) -> Objective:
        """Return the objective selective_copying."""
        return make_objective(
            "selective_copying",
            spans=self.spans,
            query_first=self.query_first,
            span_length=self.span_length,
            start_delimiter_length=self.start_delimiter_length,
            end_delimiter_length=self.end_delimiter_length,
            min_length=min_length,
            max_length=max_length,
        )
