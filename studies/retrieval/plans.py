"""The plan of the study: the parts of a scale, the procedures, and the runs of a scale in order."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

DEFAULT_MODEL = "gated_ssm_plus"
LANGUAGE = "held_out_text"
"""The task of held-out text."""


class BookStage(NamedTuple):
    """A part of learning to answer phone books.

    Attributes:
        books: settings of the task that differ in it.
        share: its share of the train steps, before shares are normalised.
        until: the entries of the books that decide whether the stage is learned; such stages have
            no share, and end when they are.
        steps: the largest number of steps of such a stage; 0 = all that are left.
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
        books: the settings of the task that fine-tuning draws from.
        entries: the sizes of the measured books; each question asks for one number.
        numbers: the counts of numbers per question, for books of `entries_of_numbers` entries; the sizes
            cover one number.
        entries_of_numbers: the entries of those books.
        validation_questions: the questions of each cell for the choice of learning rate and steps.
        test_questions: the questions of each cell that measure the chosen model once.
        stages: the parts of fine-tuning, from few entries to many; empty = all sizes from the first step.
        question_places: where the books of each fine-tuning of a checkpoint have the question: "before",
            "after" or "both"; empty = as `books` says in all.
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
    """The questions on passages of the corpus; their answers are spans.

    Attributes:
        passage_tokens: the maximum numbers of tokens of the passages; the minimum is half as many.
        training_questions: the number of training questions.
        validation_questions: the number of questions for the choice of learning rate and steps.
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
        learning_rates: the learning rates, each constant and without warm-up.
        steps: the train steps of each; 0 = no fine-tuning.
        measured_every: the train steps between two measurements; each is a point of the grid, because the
            rate is constant.
        rows: the rows of a batch.
        length: the positions of a row.
        seeds: the number of fine-tunings of a checkpoint if stages end when learned; each reads other
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
    """The questions for the pre-trained model, without fine-tuning.

    Attributes:
        lengths: the tokens of the passages of copying and selective copying.
        questions_per_length: the questions of each length.
        pairs: the key-value pairs of the sequences of associative recall; they are 8 times as long.
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
    """A model of a scale that has sizes of its own.

    Attributes:
        model: the name of its mixer.
        changes: the fields of `config.model` that differ from those of the scale.
    """

    model: str
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Scale:
    """A size of the study.

    Attributes:
        name: the name of the scale.
        preset: the file in configs/ that it starts from.
        changes: fields of that configuration that differ, by section.
        pretraining_tokens: the positions that a model is pre-trained on.
        mixture: the mixture of Birdie and of the mixture without a bandit.
        stages: the schedule of that mixture (`bandit.stages`); empty = its own shares throughout.
        decisions: the bandit's decisions of a run.
        phonebook: the phone books.
        extraction: the questions on passages.
        phonebook_tuning: the grid of fine-tuning on phone books.
        extraction_tuning: the grid of fine-tuning on questions on passages.
        measuring: what is asked without fine-tuning.
        pieces: the pieces of the tokenizer.
        models: the models.
        variants: those of them that are no mixer with the sizes of the scale.
        beside: the scale whose runs of the same procedures and seeds its tables show too.
        seeds: the seeds.
        text: the corpus unless --text names one.
        validation_fraction: the share of documents that is held out.
        sample_bytes: the bytes of text on which the tokenizer is trained.
        squad_questions: how many questions of SQuAD are asked at the end, evenly spread; None = all.
        pretrained_at: the scale whose pre-trained runs and questions it takes; empty = its own.
        order: procedures and their seeds, what decides first: of each seed all models and procedures, then
            the next line; empty = all models and `PAPER_PROCEDURES` with `seeds`.
        measured: the tasks that a pre-trained model is measured on; empty = all.
        language_positions: the positions in which causal LM has as many targets as the language arms of
            the mixture in fixed shares have in `pretraining_tokens`; `language_targets.py` counts them.
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
    pretrained_at: str = ""
    order: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...] = ()
    measured: tuple[str, ...] = ()
    language_positions: int = 0

    @property
    def has_curriculum(self) -> bool:
        """Whether the stages of fine-tuning on phone books end when they are learned."""
        return any(stage.until for stage in self.phonebook.stages)

    @property
    def pretraining_name(self) -> str:
        """The name of the scale at which its runs are pre-trained."""
        return self.pretrained_at or self.name


# Stands for the mixture of the scale.
_MIXTURE_OF_SCALE = ""
# Stands for the policy of the scale: fixed shares, or a schedule of them.
_POLICY_OF_SCALE = ""


@dataclass(frozen=True)
class Procedure:
    """A way of pre-training.

    Attributes:
        title: what tables call it.
        mixture: the mixture of objectives; empty = that of the scale.
        policy: the bandit's policy; empty = that of the scale.
        reward: what an action of the bandit earns.
        bidirectional: whether the context is read in both directions, then and in fine-tuning.
        budget: the positions it is trained on: those of the scale, as many as give causal LM the language
            targets of the mixture, or none.
    """

    title: str
    mixture: str = _MIXTURE_OF_SCALE
    policy: str = "fixed"
    reward: str = "published"
    bidirectional: bool = True
    budget: Literal["whole", "language targets", "none"] = "whole"


# The first four decide: procedure and reading direction vary separately.
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
    }
)
PAPER_PROCEDURES = (
    *("causal_lm_causal", "causal_lm", "mixture_causal", "mixture", "mixture_fixed", "birdie", "thompson"),
    *("birdie_causal", "ul2", "fixed_ratio"),
)
_DECIDING = ("causal_lm_causal", "causal_lm", "mixture_causal", "mixture")
# Of the other models these alone.
_PROCEDURES_OF_OTHER_MODELS = ("causal_lm_causal", "birdie")


class Run(NamedTuple):
    """A model that is pre-trained, fine-tuned and measured.

    Attributes:
        scale: the name of its scale.
        model: the name of the model.
        procedure: the name of the procedure.
        seed: the seed of everything that is drawn.
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
    """Give the runs of a scale, what decides first.

    Without `Scale.order`, the deciding procedures of the default model with all seeds come first, seed by
    seed; then the bandit; then the rest of the matrix with its first seed, and at last with the others.
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
