"""Perplexity and bits per byte of held-out text, by position in a window.

    python -m birdie_jax.evaluate --workdir=runs/tiny --task=perplexity:path=held-out.txt

The model reads a text causally, in the format of causal_lm, in windows of a fixed number of tokens. A start
token precedes each window. A window scores the tokens that no earlier window scored. Bits per byte are the
total loss in nats, divided by ln 2 and the number of UTF-8 bytes of the text. They are comparable between
tokenizers (Gao et al., 2020, "The Pile", section 3.1).
"""

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from birdie_jax.config_types import RequiredName, RowLength
from birdie_jax.errors import ConfigError, DataError
from birdie_jax.objectives import Arm
from birdie_jax.storage import Bounds
from birdie_jax.tasks.question import Question, ScoredAnswer, TaskResult
from birdie_jax.tasks.records import OptionalDataPath
from birdie_jax.tasks.registry import register_task
from birdie_jax.tasks.task import Task
from birdie_jax.tasks.task_model import Progress, TaskModel, no_progress
from birdie_jax.text import Tokenizer, TokenShards, open_source

# The group of positions in the window. Its values are the starts of buckets: 0, 1, 2, 4, 8, ...
POSITION_GROUP = "position"

DocumentLimit = Annotated[int, Bounds(at_least=1, at_most=2**31)]


class TokenizedText(NamedTuple):
    """A tokenized document.

    Attributes:
        name: the location of the document.
        tokens: int32 [tokens], at least one.
        bytes_of_tokens: float64 [tokens], the number of UTF-8 bytes of each token; the sum is the size of
            the document.
    """

    name: str
    tokens: Int[np.ndarray, " tokens"]
    bytes_of_tokens: Float[np.ndarray, " tokens"]


class Window(NamedTuple):
    """A part of a document that the model reads at once.

    Attributes:
        start: the index of the first token.
        scored: the index of the first token that no earlier window scores.
        end: the index after the last token.
    """

    start: int
    scored: int
    end: int


def perplexity_of(loss: float) -> float:
    """Return the perplexity of a loss in nats per token.

    The result is at most the largest float64, because JSON has no infinity. Only a diverged model
    exceeds it.
    """
    try:
        return min(math.exp(loss), sys.float_info.max)
    except OverflowError:
        return sys.float_info.max


@register_task
@dataclass(frozen=True, kw_only=True)
class Perplexity(Task):
    """Predict held-out text.

    Each document and bucket of positions has a scored answer. Its weight is its number of bytes. The
    position of a token is the number of tokens before it in its window, without the start token. The
    answers of a document are one unit: a single document has an interval without width.

    Metrics: bits_per_byte; tokens_per_byte; loss in nats per token; perplexity.

    Groups:
        position: the smallest position of the bucket.

    Attributes:
        path: the documents: a file, a folder, a glob, `stdlib` or a URL, as for `prepare_data`.
        prepared: a folder that `prepare_data` wrote with the model's tokenizer, instead of `path`.
        split: the split of the prepared folder.
        text_field: the field of JSON lines and Parquet that holds the text.
        window: the largest number of tokens of a window.
        stride: the number of tokens from the start of a window to the start of the next; None = window. If
            it is less than `window`, each scored token after the first window has at least window - stride
            tokens before it.
        max_documents: the number of documents to score, from the first; None = all.
    """

    name: ClassVar[str] = "perplexity"
    main_metric: ClassVar[str] = "bits_per_byte"

    path: OptionalDataPath = ""
    prepared: OptionalDataPath = ""
    split: Literal["train", "validation"] = "validation"
    text_field: RequiredName = "text"
    window: RowLength = 2048
    stride: RowLength | None = None
    max_documents: DocumentLimit | None = None

    def __post_init__(self):
        if bool(self.path) == bool(self.prepared):
            raise ValueError(
                f"found path={self.path!r} and prepared={self.prepared!r}; allowed: one of them"
            )
        if self.stride is not None and self.stride > self.window:
            raise ValueError(
                f"stride: found {self.stride}; allowed: at most the window, {self.window}: tokens between "
                "two windows would not be scored"
            )

    def check_length(self, arm_in_place: Arm | None, max_length: int | None) -> None:
        """Check that a window is not longer than the rows that the model was trained on."""
        del arm_in_place
        if max_length is not None and self.window > max_length:
            raise ConfigError(
                f"task {self.name}: window: found {self.window:,}; allowed: at most {max_length:,}, "
                "the longest rows that the model has learned"
            )

    def check_data(self, tokenizer: Tokenizer) -> None:
        """Read the documents without tokenizing them. For a prepared folder, do not read the records."""
        if self.path:
            documents = open_source(self.path, self.text_field).documents()
            if not sum(1 for _ in islice(documents, self.max_documents)):
                raise self._no_document()
        else:
            TokenShards(self.prepared, self.split, tokenizer_sha256=tokenizer.sha256)

    def measure(self, model: TaskModel, progress: Progress = no_progress) -> TaskResult:
        """Score the tokens of every document by position.

        Raises:
            ConfigError: the window is longer than the rows that the model was trained on.
            DataError: a document cannot be read, or there is none; or the folder was prepared with another
                tokenizer.
        """
        self.check_length(None, model.max_length)
        documents = list(self.documents(model.tokenizer))
        if not documents:
            raise self._no_document()
        windows = [list(windows_of(len(one.tokens), self.window, self.stride)) for one in documents]
        parts = [
            document.tokens[window.start : window.end]
            for document, of_document in zip(documents, windows, strict=True)
            for window in of_document
        ]
        losses = iter(model.text_losses(parts, progress))
        answers: list[ScoredAnswer] = []
        for document, of_document in zip(documents, windows, strict=True):
            answers += _score(document, [(window, next(losses)) for window in of_document])
        return TaskResult(tuple(answers))

    def derived_metrics(self, means: Mapping[str, float]) -> Mapping[str, float]:
        """Return the loss in nats per token, and the perplexity."""
        loss = means["bits_per_byte"] * math.log(2) / means["tokens_per_byte"]
        return {"loss": loss, "perplexity": perplexity_of(loss)}

    def unit_of(self, answer: ScoredAnswer) -> str:
        """Return the document: its buckets have other bytes with another tokenizer."""
        return answer.details["document"]

    def documents(self, tokenizer: Tokenizer) -> Iterator[TokenizedText]:
        """Yield the documents that have tokens, in the order of the source.

        Raises:
            DataError: a document cannot be read; or the folder was prepared with another tokenizer.
        """
        lengths = tokenizer.byte_lengths()
        count = 0
        for name, tokens, text in (
            self._texts(tokenizer) if self.path else self._prepared_documents(tokenizer)
        ):
            if not len(tokens):
                continue
            if count == self.max_documents:
                return
            count += 1
            size = len((tokenizer.decode(tokens) if text is None else text).encode())
            found = lengths[tokens]
            # If the tokenizer normalises text, scale the lengths to the size of the original text.
            yield TokenizedText(name, tokens, found * (size / found.sum()))

    def _no_document(self) -> DataError:
        return DataError(f"{self.path or self.prepared}: holds no document with text; allowed: some")

    def _texts(self, tokenizer: Tokenizer) -> Iterator[tuple[str, np.ndarray, str | None]]:
        for document in open_source(self.path, self.text_field).documents():
            name = f"{document.file}: {document.number}"
            yield name, tokenizer.encode(document.text), document.text

    def _prepared_documents(self, tokenizer: Tokenizer) -> Iterator[tuple[str, np.ndarray, str | None]]:
        shards = TokenShards(self.prepared, self.split, tokenizer_sha256=tokenizer.sha256)
        parts: list[np.ndarray] = []
        first = 0
        for number in range(len(shards)):
            record = shards[number]
            parts.append(record.tokens)
            if record.ends_document:
                yield f"{self.prepared}: {self.split} record {first}", np.concatenate(parts), None
                parts, first = [], number + 1


def windows_of(tokens: int, window: int, stride: int | None = None) -> Iterator[Window]:
    """Yield the windows of a text. The last may be shorter.

    Args:
        tokens: the number of tokens of the text.
        window: the largest number of tokens of a window.
        stride: the number of tokens between the starts of two windows, at most `window`; None = window.
    """
    start = scored = 0
    while scored < tokens:
        end = min(start + window, tokens)
        yield Window(start, scored, end)
        start, scored = start + (stride or window), end


def position_bucket(position: int) -> int:
    """Return the smallest position of a bucket: 0, or the largest power of two up to `position`."""
    return 1 << position.bit_length() - 1 if position else 0


def _score(document: TokenizedText, windows: list[tuple[Window, np.ndarray]]) -> Iterator[ScoredAnswer]:
    """Yield an answer for each bucket of positions in the document."""
    sums: dict[int, np.ndarray] = {}
    for window, losses in windows:
        found = losses[window.scored - window.start :].astype(np.float64)
        sizes = document.bytes_of_tokens[window.scored : window.end]
        first = window.scored - window.start
        while len(found):
            bucket = position_bucket(first)
            count = max(2 * bucket, 1) - first
            part = np.array([found[:count].sum(), len(found[:count]), sizes[:count].sum()])
            sums[bucket] = sums.get(bucket, np.zeros(3)) + part
            found, sizes, first = found[count:], sizes[count:], first + count
    for bucket, (nats, tokens, size) in sorted(sums.items()):
        question = Question(f"{document.name} from {bucket}", "", ("",), groups={POSITION_GROUP: bucket})
        metrics = {"bits_per_byte": nats / math.log(2) / size, "tokens_per_byte": tokens / size}
        details = {"document": document.name, "nats": nats, "tokens": int(tokens)}
        plain = {name: float(value) for name, value in metrics.items()}
        yield ScoredAnswer(question, "", plain, weight=float(size), details=details)
