"""SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016; 2018) with a head that predicts spans (docs/glue.md).

python -m birdie_jax.evaluate --workdir=runs/squad --task=squad_spans:path=dev-v1.1.json
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, Int64

from birdie_jax.errors import ConfigError, DataError
from birdie_jax.models.span_head import MAX_SPAN_POSITIONS, SPANS, label_of_span
from birdie_jax.models.task_head import Head
from birdie_jax.objectives import Arm
from birdie_jax.storage import Bounds
from birdie_jax.tasks.head_task import SampleExamples, labelled_example, sample_tokens
from birdie_jax.tasks.metrics import exact_match, f1
from birdie_jax.tasks.question import LENGTH_GROUP, Question, ScoredAnswer, TaskResult
from birdie_jax.tasks.records import DataPath
from birdie_jax.tasks.registry import register_task
from birdie_jax.tasks.squad import SquadQuestion, read_squad
from birdie_jax.tasks.task import Task
from birdie_jax.tasks.task_model import Progress, TaskModel, no_progress
from birdie_jax.text import Tokenizer

# The input follows Devlin et al. 2019 (sections 4.2 and 4.3): `[MASKED_LM] question [SEP] window [SEP]`. If
# the window or the question has no answer, the label is the first position.


class Window(NamedTuple):
    """A question and a part of its context.

    Attributes:
        tokens: int32 [positions], the input.
        offsets: int64 [positions, 2], the characters of the context at each position, as start and end
            (excluded); both are -1 outside of the context.
    """

    tokens: Int32[np.ndarray, " positions"]
    offsets: Int64[np.ndarray, "positions 2"]

    def label(self, span: tuple[int, int] | None) -> int:
        """Return the label of a span of characters in the context.

        Args:
            span: start and end (excluded). None = no answer; the label is the first position. The same
                label applies if the window does not contain the whole span.
        """
        if span is None:
            return label_of_span(0, 0)
        begin, end = self.offsets.T
        within = np.flatnonzero((end > span[0]) & (begin < span[1]) & (end > begin))
        if not len(within) or begin[within[0]] > span[0] or end[within[-1]] < span[1]:
            return label_of_span(0, 0)
        return label_of_span(int(within[0]), int(within[-1]))


class FoundSpan(NamedTuple):
    """The best span of a question, and the score of no answer.

    Attributes:
        span: the start and end (excluded) in characters of the context; None if no span is possible.
        score: the sum of the start score and the end score.
        null_score: the score of no answer: the smallest score of the first position over all windows.
    """

    span: tuple[int, int] | None
    score: float
    null_score: float


def cut_windows(
    question: Int32[np.ndarray, " question"],
    context: Int32[np.ndarray, " tokens"],
    offsets: Int64[np.ndarray, "tokens 2"],
    *,
    max_positions: int,
    stride: int,
) -> list[Window]:
    """Return windows that cover a context, at least one.

    Args:
        question: the tokens of the question.
        context: the tokens of the context.
        offsets: the start and end (excluded) in characters of each token of the context.
        max_positions: the largest number of positions of a window, with question and special tokens.
        stride: the number of tokens from the start of a window to the start of the next.

    Raises:
        ValueError: a window has no room for the stride.
    """
    room = max_positions - 3 - len(question)
    if not 0 < stride <= room:
        raise ValueError(f"windows: found room for {room} tokens; allowed: at least the stride, {stride}")
    windows = []
    for begin in range(0, max(len(context) - room + stride, 1), stride):
        part = slice(begin, begin + room)
        tokens = sample_tokens([question, context[part]])
        own = np.full((len(tokens), 2), -1, np.int64)
        own[len(question) + 2 : -1] = offsets[part]
        windows.append(Window(tokens, own))
    return windows


def best_span(
    windows: Sequence[Window], scores: Sequence[Float32[np.ndarray, "_ 2"]], max_answer_tokens: int
) -> FoundSpan:
    """Return the span of the context with the best score in any window.

    Args:
        windows: the windows of a question.
        scores: the start score and the end score of each position, for each window.
        max_answer_tokens: the largest number of tokens of a span.
    """
    best, null = FoundSpan(None, -np.inf, np.inf), np.inf
    for window, of_window in zip(windows, scores, strict=True):
        null = min(null, float(of_window[0].sum()))
        begins, ends = of_window.astype(np.float64).T
        # If several byte tokens encode a character, only the last has it in its offsets.
        in_context = window.offsets[:, 1] > window.offsets[:, 0]
        total = np.where(in_context, begins, -np.inf)[:, None] + np.where(in_context, ends, -np.inf)[None]
        length = np.arange(len(begins))[None] - np.arange(len(begins))[:, None]
        total[(length < 0) | (length >= max_answer_tokens)] = -np.inf
        begin, end = np.unravel_index(int(total.argmax()), total.shape)
        if total[begin, end] > best.score:
            span = int(window.offsets[begin, 0]), int(window.offsets[end, 1])
            best = FoundSpan(span, float(total[begin, end]), null)
    return best._replace(null_score=null)


WindowPositions = Annotated[int, Bounds(at_least=8, at_most=MAX_SPAN_POSITIONS)]
Tokens = Annotated[int, Bounds(at_least=1, at_most=MAX_SPAN_POSITIONS)]
Threshold = Annotated[float, Bounds(at_least=-1e6, at_most=1e6)]
# The marker and two separators.
_SPECIAL_TOKENS = 3


@register_task
@dataclass(frozen=True, kw_only=True)
class SquadSpans(Task):
    """Questions with spans of a paragraph as answers, or, in v2.0, without an answer.

    The task splits a long paragraph into overlapping windows. The metrics are exact match and F1 of the
    official script. For a question without an answer, both are 1 if the model predicts no answer.

    Groups:
        answerable: 1 = the question has an answer, 0 = it has none.

    Attributes:
        main_metric: F1.
        path: the JSON file, or its URL, for training or evaluation.
        no_answer: whether questions may have no answer, as in v2.0. If false, such questions are skipped
            and reported, and the model always predicts a span.
        max_positions: the largest number of positions of a window.
        stride: the number of tokens from the start of a window to the start of the next.
        max_question_tokens: the largest number of tokens of a question; longer questions are truncated.
        max_answer_tokens: the largest number of tokens of a predicted span.
        no_answer_threshold: the model predicts no answer if the score of no answer exceeds the score of the
            best span by more than this.
        skip_bad_records: whether to skip and report questions that cannot be read instead of refusing the
            file.
    """

    name: ClassVar[str] = "squad_spans"
    main_metric: ClassVar[str] = "f1"
    in_place: ClassVar[bool] = True

    path: DataPath
    no_answer: bool = False
    max_positions: WindowPositions = 384
    stride: Tokens = 128
    max_question_tokens: Tokens = 64
    max_answer_tokens: Tokens = 30
    no_answer_threshold: Threshold = 0.0
    skip_bad_records: bool = False

    def __post_init__(self):
        room = self.max_positions - _SPECIAL_TOKENS - self.max_question_tokens
        if room < 1:
            raise ValueError(
                f"max_positions: found {self.max_positions}; allowed: at least max_question_tokens + "
                f"{_SPECIAL_TOKENS} + 1 = {self.max_question_tokens + _SPECIAL_TOKENS + 1}, or fewer "
                "max_question_tokens"
            )
        if self.stride > room:
            raise ValueError(
                f"stride: found {self.stride}; allowed: at most max_positions - max_question_tokens - "
                f"{_SPECIAL_TOKENS} = {room}"
            )

    @property
    def head(self) -> Head:
        """The span head, with two scores for each token."""
        return Head(SPANS, "squad")

    def check_length(self, arm_in_place: Arm | None, max_length: int | None) -> None:
        """Check that a window is not longer than the rows that the model was trained on."""
        del arm_in_place
        if max_length is not None and self.max_positions > max_length:
            raise ConfigError(
                f"task {self.name}: max_positions: found {self.max_positions:,}; allowed: at most "
                f"{max_length:,}, the longest rows that the model has learned"
            )

    def read(self) -> tuple[list[SquadQuestion], list[str]]:
        """Return the usable questions, and a message for each skipped question.

        Raises:
            DataError: the file cannot be read, or has no usable question.
        """
        found, refused = read_squad(self.path, skip_bad=self.skip_bad_records)
        questions = [one for one in found if one.answers or self.no_answer]
        if not self.no_answer:
            unanswerable = (one.where for one in found if not one.answers)
            refused += [
                f"{where}: has no answer; no_answer=True asks such questions" for where in unanswerable
            ]
        if not questions:
            raise DataError(f"{self.path}: holds no question that can be asked; allowed: at least one")
        return questions, refused

    def windows(self, question: SquadQuestion, tokenizer: Tokenizer) -> list[Window]:
        """Return the windows of a question."""
        context, offsets = tokenizer.encode_with_offsets(question.context)
        tokens = tokenizer.encode(question.question)[: self.max_question_tokens]
        return cut_windows(tokens, context, offsets, max_positions=self.max_positions, stride=self.stride)

    def training_examples(self, tokenizer: Tokenizer) -> SampleExamples:
        """Return an example for each window, labelled with the question's first answer."""
        names, contexts, labels = [], [], []
        questions, refused = self.read()
        for question in questions:
            span = None
            if question.answers:
                text, start = question.answers[0]
                span = (start, start + len(text))
            for window in self.windows(question, tokenizer):
                names.append(question.where)
                contexts.append(window.tokens)
                labels.append(window.label(span))
        return SampleExamples(names, contexts, labels, refused)

    def check_data(self, tokenizer: Tokenizer) -> None:
        """Read the questions."""
        del tokenizer
        self.read()

    def measure(self, model: TaskModel, progress: Progress = no_progress) -> TaskResult:
        """Predict the answer of every question with the head."""
        self.check_length(None, model.max_length)
        questions, refused = self.read()
        windows = [self.windows(question, model.tokenizer) for question in questions]
        samples = [
            (question.where, labelled_example(window.tokens, 1))
            for question, of_question in zip(questions, windows, strict=True)
            for window in of_question
        ]
        scores = iter(model.sample_scores(samples, progress))
        answers = [
            self._answer(question, of_question, [next(scores) for _ in of_question])
            for question, of_question in zip(questions, windows, strict=True)
        ]
        return TaskResult(tuple(answers), tuple(refused))

    def _answer(self, question: SquadQuestion, windows: Sequence[Window], scores: list) -> ScoredAnswer:
        found = best_span(windows, scores, self.max_answer_tokens)
        missing = self.no_answer and found.null_score - found.score > self.no_answer_threshold
        answer = "" if missing or found.span is None else question.context[slice(*found.span)].strip()
        references = tuple(dict.fromkeys(one.text for one in question.answers)) or ("",)
        positions = max(len(window.tokens) for window in windows)
        return ScoredAnswer(
            Question(
                question.name,
                f"{question.question}\n\n{question.context}",
                references,
                groups={"answerable": int(bool(question.answers)), LENGTH_GROUP: positions},
            ),
            answer,
            {metric.__name__: metric(answer, references) for metric in (f1, exact_match)},
            details={"score": found.score, "no_answer_score": found.null_score, "windows": len(windows)},
        )
