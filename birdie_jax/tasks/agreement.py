"""Agreement: compare the probabilities that a masked language model gives two forms of a word.

    python -m birdie_jax.evaluate --workdir=runs/bigs_tiny --task=agreement:path=nounpp.json

Subject and verb agree in number, whatever is between them (Linzen et al. 2016). So do other pairs of words.
The method follows Goldberg 2019 and "Pretraining Without Attention" (section 7.4): mask the word, read the
whole sentence, and compare the probabilities of the two forms.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import Int32

from birdie_jax import vocabulary
from birdie_jax.errors import ConfigError, DataError
from birdie_jax.objectives import NO_LABEL, Arm, Example
from birdie_jax.objectives.masked_lm import MaskedLM
from birdie_jax.objectives.objective import surround
from birdie_jax.tasks.agreement_formats import MinimalPair, read_pairs
from birdie_jax.tasks.question import LENGTH_GROUP, Question, ScoredAnswer, TaskResult
from birdie_jax.tasks.records import DataPath, refuse_bad
from birdie_jax.tasks.registry import register_task
from birdie_jax.tasks.task import Task
from birdie_jax.tasks.task_model import Progress, TaskModel, no_progress
from birdie_jax.text import Tokenizer

ATTRACTORS_GROUP, PIECES_GROUP = "attractors", "pieces"
CONSTRUCTION = "construction"
"""The kind of the task's categories."""

# `_` is an anonymous axis: the parts of a sentence have different lengths.
_Tokens = Int32[np.ndarray, " _"]


class _PreparedQuestion(NamedTuple):
    """A question and its examples.

    Attributes:
        question: the question.
        forms: the examples of the right form, then the examples of the wrong form.
    """

    question: Question
    forms: tuple[Sequence[Example], Sequence[Example]]


@register_task
@dataclass(frozen=True, kw_only=True)
class Agreement(Task):
    """Score pairs of sentences that differ in one word.

    The score of a word of several pieces is the sum of the log-probabilities of its pieces. For each piece,
    the model sees the pieces before it, and the later pieces are masked. Published measurements leave out
    pairs with such words; to compare with them, use the group `pieces` = 1. If a sentence ends in a letter
    or a digit, the task adds a full stop.

    Metrics:
        accuracy: whether the right form is more probable.
        log_odds: the log-probability of the right form minus that of the wrong form, in nats.

    Groups:
        pieces: the number of pieces of the longer form.
        prompt_tokens: the number of positions of the longer form's example.
        attractors: the number of attractors, if the file has it.

    Categories:
        construction: the construction, if the file names it.

    Attributes:
        path: the file, or its URL.
        format: choices: JSON of BIG-bench, sentences that continue with one of two words. gulordava: the
            table of Gulordava et al. 2018. linzen: tab-separated lines with the number of attractors, the
            sentence (ignored), the sentence with ***mask***, the right form and the wrong form.
            marvin_linzen: tab-separated lines that begin with the construction and end with the right and
            the wrong sentence (Marvin and Linzen 2018).
        skip_bad_records: whether to skip and report bad records instead of refusing the file.
    """

    name: ClassVar[str] = "agreement"
    main_metric: ClassVar[str] = "accuracy"
    in_place: ClassVar[bool] = True

    path: DataPath
    format: Literal["choices", "gulordava", "linzen", "marvin_linzen"] = "choices"
    skip_bad_records: bool = False

    def check_data(self, tokenizer: Tokenizer) -> None:
        """Read the pairs."""
        del tokenizer
        self._pairs()

    def measure(self, model: TaskModel, progress: Progress = no_progress) -> TaskResult:
        """Score both forms of every pair.

        Raises:
            DataError: the file or one of its records cannot be read.
        """
        objective = _objective(model.arm_in_place)
        pairs, refused = self._pairs()
        prepared = []
        for name, pair in pairs:
            try:
                prepared.append(_prepare(name, pair, objective, model.tokenizer, model.max_length))
            except _UnusablePairError as error:
                refused.append(f"question {name}: {error}")
        examples = [example for one in prepared for form in one.forms for example in form]
        losses = iter(float(filled.losses.sum()) for filled in model.fill_in(examples, progress))
        answers = []
        for one in prepared:
            good, bad = (-sum(next(losses) for _ in form) for form in one.forms)
            answers.append(_score(one.question, good, bad))
        return TaskResult(tuple(answers), tuple(refused))

    def _pairs(self) -> tuple[list[tuple[str, MinimalPair]], list[str]]:
        """Return the named pairs, and a message for each skipped record."""
        pairs, refused = [], []
        for where, found in read_pairs(self.path, self.format):
            if isinstance(found, DataError):
                refused.append(str(found))
            else:
                pairs.append((where.removeprefix(f"{self.path}: "), found))
        if not pairs and not refused:
            raise DataError(f"{self.path}: holds no pair; allowed: at least one")
        refuse_bad(self.path, refused, len(pairs), skip_bad=self.skip_bad_records)
        return pairs, refused


class _UnusablePairError(ValueError):
    """The model cannot score a pair."""


def _objective(arm: Arm | None) -> MaskedLM:
    """Return the masked LM objective of an arm, or the default objective if there is no arm."""
    learned = MaskedLM() if arm is None else arm.objective
    if not isinstance(learned, MaskedLM):
        raise ConfigError(f"task agreement: found the objective {learned.name}; allowed: {MaskedLM.name}")
    return learned


def _prepare(
    name: str, pair: MinimalPair, objective: MaskedLM, tokenizer: Tokenizer, max_length: int | None
) -> _PreparedQuestion:
    """Return the question of a pair, with an example for each piece of each form.

    Raises:
        _UnusablePairError: the pair is too long, or its word shares a token with the text around it.
    """
    before = f"{pair.before} " if pair.before else ""
    is_open = f"{pair.good}{pair.after}".rstrip()[-1].isalnum()
    after = pair.after.rstrip() + "." if is_open else pair.after
    forms = [_pieces(tokenizer, before.rstrip(), before + form, after) for form in (pair.good, pair.bad)]
    longest = max(objective.example_length(sum(map(len, parts))) for parts in forms)
    if max_length is not None and longest > max_length:
        raise _UnusablePairError(
            f"found {longest} positions; allowed: {max_length}, the longest rows that the model has learned"
        )
    groups = {PIECES_GROUP: max(len(parts[1]) for parts in forms), LENGTH_GROUP: longest}
    if pair.attractors is not None:
        groups[ATTRACTORS_GROUP] = pair.attractors
    question = Question(
        name=name,
        prompt=f"{before}[MASK]{after}",
        references=(pair.good,),
        choices=(pair.good, pair.bad),
        groups=groups,
        categories={CONSTRUCTION: (pair.condition,)} if pair.condition else {},
    )
    good, bad = (_examples(objective, *parts) for parts in forms)
    return _PreparedQuestion(question, (good, bad))


def _pieces(
    tokenizer: Tokenizer, before: str, through: str, after: str
) -> tuple[_Tokens, _Tokens, _Tokens]:
    """Return the tokens before a word, the tokens of the word, and the tokens after it.

    Args:
        tokenizer: the tokenizer.
        before: the text before the word, without the space between them.
        through: the text up to the end of the word.
        after: the text after the word.

    Raises:
        _UnusablePairError: a token of the sentence crosses the start or the end of the word.
    """
    first, second, whole = tokenizer.encode_batch([before, through, through + after])
    start, end = len(first), len(second)
    if not (np.array_equal(first, whole[:start]) and np.array_equal(second, whole[:end]) and end > start):
        raise _UnusablePairError(
            f"found {through.rsplit(' ', 1)[-1]!r}, which shares a token with its neighbours; allowed: a "
            "word of whole tokens"
        )
    return first, whole[start:end], whole[end:]


def _examples(objective: MaskedLM, before: _Tokens, word: _Tokens, after: _Tokens) -> list[Example]:
    """Return an example for each piece of a word, from left to right. The piece is its only label."""
    examples = []
    for place, piece in enumerate(word):
        shown = np.concatenate([before, word, after])
        shown[len(before) + place : len(before) + len(word)] = vocabulary.MASK
        context = surround(objective.marker, shown, vocabulary.SEPARATOR)
        labels = np.full(len(context), NO_LABEL, np.int32)
        labels[objective.marker_length + len(before) + place] = piece
        examples.append(Example(context, np.empty(0, np.int32), labels=labels))
    return examples


def _score(question: Question, good: float, bad: float) -> ScoredAnswer:
    answer = question.choices[0 if good > bad else 1]
    metrics = {"accuracy": float(good > bad), "log_odds": good - bad}
    details = {"log_probabilities": [good, bad]}
    return ScoredAnswer(question, answer, metrics, details=details)
