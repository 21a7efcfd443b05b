"""The plan of the study: the parts of a scale, the procedures, and the order of a scale's runs."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from studies.class_objective import BEST_FIXED, SEARCHED, stage_of
from studies.steering_policies import BEST_STEERING, STEERING

DEFAULT_MODEL = "gated_ssm_plus"
LANGUAGE = "held_out_text"
"""The name of the task of held-out text."""


class BookStage(NamedTuple):
    """A stage of fine-tuning on phone books.

    Attributes:
        books: the settings of the task that differ in the stage.
        share: the share of the train steps, before normalisation.
        until: the number of entries of the books that decide whether the stage is learned; such a stage has
            no share and ends when it is learned.
        steps: the maximum number of steps of such a stage; 0 = all remaining steps.
        learned: the share of exact answers that ends such a stage.
    """

    books: Mapping[str, Any]
    share: float = 0.0
    until: int = 0
    steps: int = 0
    learned: float = 0.8


@dataclass(frozen=True)
class PhonebookPlan:
    """The phone books of a scale, and the training on them.

    Attributes:
        books: the settings of the fine-tuning task.
        entries: the sizes of the measured books, with one queried number.
        numbers: the counts of queried numbers per question, above one, for books of `entries_of_numbers`
            entries.
        entries_of_numbers: the number of entries of those books.
        validation_questions: the questions of each cell that choose the learning rate and the steps.
        test_questions: the questions of each cell that measure the chosen model once.
        stages: the stages of fine-tuning, from few entries to many; empty = all sizes from the first step.
        question_places: the place of the question in each fine-tuning of a checkpoint: "before" the book,
            "after" it, or "both"; empty = the place that `books` sets.
    """

    books: Mapping[str, Any]
    entries: tuple[int, ...]
    numbers: tuple[int, ...]
    entries_of_numbers: int
    validation_questions: int
    test_questions: int
    stages: tuple[BookStage, ...] = ()
    question_places: tuple[str, ...] = ()

    def book_settings(self, number: int) -> dict[str, Any]:
        """Return the settings of the books of fine-tuning `number` of a checkpoint."""
        places = self.question_places
        return {**self.books, "question": places[number]} if places else dict(self.books)


@dataclass(frozen=True)
class ExtractionPlan:
    """The questions on passages of the corpus. The answers are spans.

    Attributes:
        passage_tokens: the maximum lengths of passages, in tokens; the minimum is half the maximum.
        training_questions: the number of training questions.
        validation_questions: the number of questions that choose the learning rate and the steps.
        test_questions: the number of test questions, used once.
        max_tokens: the maximum number of tokens of an answer.
    """

    passage_tokens: tuple[int, ...]
    training_questions: int
    validation_questions: int
    test_questions: int
    max_tokens: int = 24


@dataclass(frozen=True)
class FineTuningPlan:
    """The grid of fine-tuning, the same for all runs of a scale.

    Attributes:
        learning_rates: the learning rates, constant and without warm-up.
        steps: the train steps with each rate; 0 = no fine-tuning.
        measured_every: the train steps between two measurements; each measurement is a point of the grid,
            because the rate is constant.
        rows: the rows of a batch.
        length: the positions of a row.
        seeds: the number of fine-tunings of a checkpoint if stages end when learned; each reads different
            books, which are the same for all runs of a seed.
    """

    learning_rates: tuple[float, ...]
    steps: int
    measured_every: int
    rows: int
    length: int
    seeds: int = 1

    @property
    def measured_steps(self) -> tuple[int, ...]:
        """The measured steps."""
        return tuple(range(self.measured_every, self.steps + 1, self.measured_every))


@dataclass(frozen=True)
class MeasuringPlan:
    """The measurements of the pre-trained model without fine-tuning.

    Attributes:
        lengths: the lengths of passages for copying and selective copying, in tokens.
        questions_per_length: the number of questions of each length.
        pairs: the key-value pairs of associative recall; a sequence has 8 tokens per pair.
        recall_vocabulary: the number of distinct tokens in those sequences.
        recall_sequences: the number of sequences of each count of pairs.
        stories: the number of stories with a missing entry.
        story_tokens: the maximum number of tokens of such a story with its question.
        window: the positions of a window of held-out text.
        documents: the number of held-out documents for the loss.
    """

    lengths: tuple[int, ...]
    questions_per_length: int
    pairs: tuple[int, ...]
    recall_vocabulary: int
    recall_sequences: int
    stories: int
    story_tokens: int
    window: int
    documents: int


class Variant(NamedTuple):
    """A model of a scale with different sizes.

    Attributes:
        model: the name of the mixer.
        changes: the fields of `config.model` that differ from the scale's.
    """

    model: str
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Scale:
    """The sizes of a study.

    Attributes:
        name: the name.
        preset: the base configuration, a file in configs/.
        changes: the fields that differ from the base configuration, by section.
        pretraining_tokens: the positions of pre-training.
        mixture: the mixture of objectives, with and without a bandit.
        stages: the schedule of the mixture without a bandit (`bandit.stages`); empty = constant shares.
        decisions: the number of the bandit's decisions in a run.
        phonebook: the phone books.
        extraction: the questions on passages.
        phonebook_tuning: the grid of fine-tuning on phone books.
        extraction_tuning: the grid of fine-tuning on questions on passages.
        measuring: the measurements without fine-tuning.
        pieces: the vocabulary size of the tokenizer.
        models: the names of the models.
        variants: the models that are not a mixer with the sizes of the scale, by name.
        beside: another scale; tables include its runs with the same procedures and seeds.
        seeds: the seeds.
        text: the corpus without --text.
        validation_fraction: the share of held-out documents.
        sample_bytes: the bytes of text for training the tokenizer.
        squad_questions: the number of SQuAD questions in the final measurement, evenly spread; None = all.
        order: lines of procedures and seeds, the most decisive line first; a line runs all models and
            procedures of one seed before the next seed; empty = all models and `PAPER_PROCEDURES` with
            `seeds`.
        measured: the tasks that measure a pre-trained model; empty = all.
        language_positions: the positions at which causal LM has as many targets as the mixture's language
            arms with fixed shares in `pretraining_tokens`; `language_targets.py` counts them.
        steering_positions: the positions that fixed shares train on for the cost of a policy that steers in
            `pretraining_tokens`, with the validation before its decisions.
    """

    name: str
    preset: str
    changes: Mapping[str, Any]
    pretraining_tokens: int
    mixture: str
    stages: str
    decisions: int
    phonebook: PhonebookPlan
    extraction: ExtractionPlan
    phonebook_tuning: FineTuningPlan
    extraction_tuning: FineTuningPlan
    measuring: MeasuringPlan
    pieces: int
    models: tuple[str, ...] = (DEFAULT_MODEL, "hawk", "transformer")
    variants: Mapping[str, Variant] = field(default_factory=dict)
    beside: str = ""
    seeds: tuple[int, ...] = (0, 1, 2)
    text: str = "stdlib"
    validation_fraction: float = 0.02
    sample_bytes: int = 4 << 20
    squad_questions: int | None = None
    order: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...] = ()
    measured: tuple[str, ...] = ()
    language_positions: int = 0
    steering_positions: int = 0

    @property
    def has_curriculum(self) -> bool:
        """Whether the stages of fine-tuning on phone books end when learned."""
        return any(stage.until for stage in self.phonebook.stages)


# A placeholder for the mixture of the scale.
_MIXTURE_OF_SCALE = ""
# A placeholder for the policy of the scale: fixed shares, or a schedule of shares.
_POLICY_OF_SCALE = ""


@dataclass(frozen=True)
class Procedure:
    """A procedure of pre-training.

    Attributes:
        title: the name in tables.
        mixture: the mixture of objectives; empty = the scale's mixture.
        policy: the bandit's policy; empty = the scale's policy.
        reward: the bandit's reward.
        bidirectional: whether the model reads the context in both directions, in pre-training and in
            fine-tuning.
        budget: the positions of pre-training: the scale's; as many as give causal LM the language targets
            of the mixture; as many as cost what steering costs; or none.
        settings: other fields of the configuration, as `section.field`.
    """

    title: str
    mixture: str = _MIXTURE_OF_SCALE
    policy: str = "fixed"
    reward: str = "published"
    bidirectional: bool = True
    budget: Literal["whole", "language targets", "cost of steering", "none"] = "whole"
    settings: Mapping[str, Any] = field(default_factory=dict)


_TARGET_SHARES: Mapping[str, Any] = MappingProxyType({"objectives.shares_of": "target_tokens"})

# The first four are decisive: they vary procedure and reading direction separately.
PROCEDURES: Mapping[str, Procedure] = MappingProxyType(
    {
        "causal_lm_causal": Procedure("causal LM, read causally", "causal_lm", bidirectional=False),
        "causal_lm": Procedure("causal LM, read both ways", "causal_lm"),
        "mixture_causal": Procedure("mixture, read causally", policy=_POLICY_OF_SCALE, bidirectional=False),
        "mixture": Procedure("mixture, read both ways", policy=_POLICY_OF_SCALE),
        "mixture_fixed": Procedure("mixture of fixed shares, read both ways"),
        "birdie": Procedure("Birdie (bandit), read both ways", policy="birdie"),
        "thompson": Procedure(
            "Thompson sampling, read both ways",
            policy="thompson",
            reward="learning_progress",
        ),
        "birdie_causal": Procedure("Birdie (bandit), read causally", policy="birdie", bidirectional=False),
        "ul2": Procedure("UL2, read both ways", "ul2"),
        "fixed_ratio": Procedure("fixed ratio (BFR), read both ways", "bfr"),
        "scratch": Procedure("no pre-training, read causally", bidirectional=False, budget="none"),
        "causal_lm_fewer": Procedure(
            "causal LM of the mixture's language targets, read causally",
            "causal_lm",
            bidirectional=False,
            budget="language targets",
        ),
        "mixture_fixed_causal": Procedure("mixture of fixed shares, read causally", bidirectional=False),
        "ul2_causal": Procedure("UL2, read causally", "ul2", bidirectional=False),
        "untuned": Procedure("equal shares of examples, as costly", budget="cost of steering"),
        "uniform": Procedure(
            "equal shares of target tokens, as costly", budget="cost of steering", settings=_TARGET_SHARES
        ),
        "best_fixed": Procedure(
            "best fixed mixture",
            policy="staged",
            settings={**_TARGET_SHARES, "bandit.stages": stage_of(BEST_FIXED)},
        ),
        "searched": Procedure(
            "searched mixture, as costly",
            policy="staged",
            budget="cost of steering",
            settings={**_TARGET_SHARES, "bandit.stages": SEARCHED},
        ),
        "published": Procedure(
            "published policy", policy="birdie", settings={**_TARGET_SHARES, **STEERING["published"]}
        ),
        "steered": Procedure(
            "learning progress",
            policy=BEST_STEERING,
            settings={**_TARGET_SHARES, **STEERING[BEST_STEERING]},
        ),
    }
)
PAPER_PROCEDURES = (
    *("causal_lm_causal", "causal_lm", "mixture_causal", "mixture", "mixture_fixed", "birdie", "thompson"),
    *("birdie_causal", "ul2", "fixed_ratio"),
)
_DECIDING = ("causal_lm_causal", "causal_lm", "mixture_causal", "mixture")
# The only procedures of the other models.
_PROCEDURES_OF_OTHER_MODELS = ("causal_lm_causal", "birdie")


class Run(NamedTuple):
    """The pre-training, fine-tuning and measurement of a model.

    Attributes:
        scale: the name of the scale.
        model: the name of the model.
        procedure: the name of the procedure.
        seed: the seed of all random numbers.
    """

    scale: str
    model: str
    procedure: str
    seed: int

    @property
    def name(self) -> str:
        """The name of the run within its scale, as --only matches it."""
        return f"{self.model}.{self.procedure}.{self.seed}"


def runs_of(scale: Scale) -> Iterator[Run]:
    """Yield the runs of a scale, the most decisive first.

    Without `Scale.order`, the order is: the decisive procedures of the default model, seed by seed; the
    bandit with all seeds; the rest of the matrix with the first seed; the rest with the other seeds.
    """

    def give(model: str, procedures: tuple[str, ...], seeds: tuple[int, ...]) -> Iterator[Run]:
        for seed in seeds:
            for procedure in procedures:
                yield Run(scale.name, model, procedure, seed)

    if scale.order:
        for procedures, seeds in scale.order:
            for seed, model in itertools.product(seeds, scale.models):
                yield from give(model, procedures, (seed,))
        return
    yield from give(DEFAULT_MODEL, _DECIDING, scale.seeds)
    yield from give(DEFAULT_MODEL, ("birdie",), scale.seeds)
    rest = tuple(name for name in PAPER_PROCEDURES if name not in (*_DECIDING, "birdie"))
    others = tuple(model for model in scale.models if model != DEFAULT_MODEL)
    for seeds in (scale.seeds[:1], scale.seeds[1:]):
        yield from give(DEFAULT_MODEL, rest, seeds)
        for model in others:
            yield from give(model, _PROCEDURES_OF_OTHER_MODELS, seeds)
