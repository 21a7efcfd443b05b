"""What the study runs: procedures x models x seeds, at scales from a smoke run to the paper's sizes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from birdie_jax.objectives.mixtures import SMALL_MODEL_STAGES

# The mixture of models of a few million parameters and fewer; all scales of such models take it from here.
SMALL_MIXTURE = "small_models"
# Stands for the mixture of the scale.
_MIXTURE_OF_SCALE = ""
# Stands for the policy of the scale: fixed shares, or a schedule of them.
_POLICY_OF_SCALE = ""

DEFAULT_MODEL = "gated_ssm_plus"


@dataclass(frozen=True)
class Procedure:
    """A way of pre-training.

    Attributes:
        title: what tables call it.
        mixture: the mixture of objectives; empty = that of the scale.
        policy: the bandit's policy; empty = that of the scale.
        bidirectional: whether the context is read in both directions, then and in fine-tuning.
    """

    title: str
    mixture: str = _MIXTURE_OF_SCALE
    policy: str = "fixed"
    bidirectional: bool = True


# The first four decide: procedure and reading direction vary separately.
PROCEDURES: Mapping[str, Procedure] = MappingProxyType(
    {
        "causal_lm_causal": Procedure("causal LM, read causally", "causal_lm", bidirectional=False),
        "causal_lm": Procedure("causal LM, read both ways", "causal_lm"),
        "mixture_causal": Procedure("mixture, read causally", policy=_POLICY_OF_SCALE, bidirectional=False),
        "mixture": Procedure("mixture, read both ways", policy=_POLICY_OF_SCALE),
        "mixture_fixed": Procedure("mixture of fixed shares, read both ways"),
        "birdie": Procedure("Birdie (bandit), read both ways", policy="birdie"),
        "birdie_causal": Procedure("Birdie (bandit), read causally", policy="birdie", bidirectional=False),
        "ul2": Procedure("UL2, read both ways", "ul2"),
        "fixed_ratio": Procedure("fixed ratio (BFR), read both ways", "bfr"),
    }
)
_DECIDING = ("causal_lm_causal", "causal_lm", "mixture_causal", "mixture")
# Of the other models these alone.
_PROCEDURES_OF_OTHER_MODELS = ("causal_lm_causal", "birdie")


class BookStage(NamedTuple):
    """A part of learning to answer phone books.

    Attributes:
        books: settings of the task that differ in it.
        share: its share of the train steps, before shares are normalised.
    """

    books: Mapping[str, Any]
    share: float


@dataclass(frozen=True)
class PhonebookPlan:
    """The phone books of a scale, and how models learn to answer them.

    Attributes:
        books: the settings of the task from which fine-tuning draws.
        entries: the sizes of the books that are asked about, one number each.
        numbers: the counts of numbers that are asked for, of a book of `entries_of_numbers` entries; one
            number is among the sizes.
        entries_of_numbers: the entries of those books.
        validation_questions: the questions of each of those cells by which learning rate and steps are
            chosen.
        test_questions: the questions of each cell that are asked once, of what was chosen.
        stages: the parts of fine-tuning, from few entries to many; empty = all sizes from the first step.
    """

    books: Mapping[str, Any]
    entries: tuple[int, ...]
    numbers: tuple[int, ...]
    entries_of_numbers: int
    validation_questions: int
    test_questions: int
    stages: tuple[BookStage, ...] = ()


@dataclass(frozen=True)
class ExtractionPlan:
    """The questions on passages of the corpus, of which the answers are spans.

    Attributes:
        passage_tokens: the largest numbers of tokens of the passages; half as many are the least.
        training_questions: the number of questions that are learned.
        validation_questions: the number of questions by which learning rate and steps are chosen.
        test_questions: the number of questions that are asked once.
        max_tokens: the largest number of tokens of an answer.
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
        steps: the train steps of each.
        measured_every: the train steps between two measurements; each is a choice of the grid, as the rate
            is constant.
        rows: the rows of a batch.
        length: the positions of a row.
    """

    learning_rates: tuple[float, ...]
    steps: int
    measured_every: int
    rows: int
    length: int

    @property
    def measured_steps(self) -> tuple[int, ...]:
        """The steps that are measured."""
        return tuple(range(self.measured_every, self.steps + 1, self.measured_every))


@dataclass(frozen=True)
class MeasuringPlan:
    """What is asked of the pre-trained model as it is.

    Attributes:
        lengths: the tokens of the passages of copying and selective copying.
        questions_per_length: the questions of each length.
        pairs: the key-value pairs of the sequences of associative recall; they are 8 times as long.
        recall_vocabulary: the different tokens of those sequences.
        recall_sequences: the number of sequences of each count of pairs.
        stories: the number of stories with a missing entry.
        story_tokens: the largest number of tokens of such a story with its question.
        window: the positions of a window of held-out text.
        documents: the number of held-out documents of which the loss is measured.
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
        seeds: the seeds.
        text: the corpus unless --text names one.
        validation_fraction: the share of documents that is held out.
        sample_bytes: the bytes of text on which the tokenizer is trained.
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
    seeds: tuple[int, ...] = (0, 1, 2)
    text: str = "stdlib"
    validation_fraction: float = 0.02
    sample_bytes: int = 4 << 20


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

    The deciding procedures of the default model with all seeds come first, seed by seed; then the bandit;
    then the rest of the matrix with its first seed, and at last with the others.
    """

    def give(model: str, procedures: tuple[str, ...], seeds: tuple[int, ...]) -> Iterator[Run]:
        for seed in seeds:
            for procedure in procedures:
                yield Run(scale.name, model, procedure, seed)

    yield from give(DEFAULT_MODEL, _DECIDING, scale.seeds)
    yield from give(DEFAULT_MODEL, ("birdie",), scale.seeds)
    rest = tuple(name for name in PROCEDURES if name not in (*_DECIDING, "birdie"))
    others = tuple(model for model in scale.models if model != DEFAULT_MODEL)
    for seeds in (scale.seeds[:1], scale.seeds[1:]):
        yield from give(DEFAULT_MODEL, rest, seeds)
        for model in others:
            yield from give(model, _PROCEDURES_OF_OTHER_MODELS, seeds)


_SMALL_BOOKS = {"number_format": "####", "name_words": 1}
_SMALL_MODEL = {
    "layers": 4,
    "features": 128,
    "state": 256,
    "mlp_features": 128,
}

_SMALL = Scale(
    name="small",
    preset="tiny.py",
    changes={
        "model": _SMALL_MODEL,
        "batching": {"rows": 4, "length": 256},
        "data": {"record_tokens": 4096},
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 200},
        "checkpoint": {"every_steps": 500},
        "train": {"log_every_steps": 50},
        "eval": {"rows": 4, "batches_per_arm": 1},
    },
    pretraining_tokens=12_288_000,
    mixture=SMALL_MIXTURE,
    stages=SMALL_MODEL_STAGES,
    decisions=40,
    phonebook=PhonebookPlan(
        books=_SMALL_BOOKS | {"min_entries": 2, "max_entries": 16, "max_numbers": 4},
        entries=(2, 4, 8, 16),
        numbers=(2, 4),
        entries_of_numbers=8,
        validation_questions=48,
        test_questions=192,
        # On books of all sizes at once, nothing but the form of an answer was learned in 900 steps.
        stages=(
            BookStage({"max_entries": 3, "max_numbers": 1}, 0.4),
            BookStage({"max_entries": 4, "max_numbers": 1}, 0.3),
            BookStage({"max_entries": 8, "max_numbers": 2}, 0.2),
            BookStage({}, 0.1),
        ),
    ),
    extraction=ExtractionPlan(
        passage_tokens=(64, 128, 192),
        training_questions=4096,
        validation_questions=96,
        test_questions=384,
    ),
    phonebook_tuning=FineTuningPlan((5e-4, 1e-3), steps=1800, measured_every=300, rows=4, length=320),
    extraction_tuning=FineTuningPlan((5e-4, 1e-3), steps=600, measured_every=200, rows=4, length=288),
    measuring=MeasuringPlan(
        lengths=(32, 64, 128),
        questions_per_length=64,
        pairs=(4, 8, 16),
        recall_vocabulary=192,
        recall_sequences=16,
        stories=192,
        story_tokens=256,
        window=256,
        documents=24,
    ),
    pieces=512,
)


def _paper_scale(name: str, preset: str, text: str) -> Scale:
    """Return a scale of the paper's sizes and budgets, on its corpus."""
    return Scale(
        name=name,
        preset=preset,
        changes={"data": {"vocab_size": 32_000}},
        # The steps are the preset's.
        pretraining_tokens=0,
        mixture="birdie",
        stages="",
        decisions=0,
        phonebook=PhonebookPlan(
            books={},
            entries=(8, 32, 128, 512),
            numbers=(2, 4, 8, 16, 32),
            entries_of_numbers=512,
            validation_questions=64,
            test_questions=512,
        ),
        extraction=ExtractionPlan(
            passage_tokens=(128, 256, 512, 1024, 1792),
            training_questions=65_536,
            validation_questions=256,
            test_questions=2048,
        ),
        phonebook_tuning=FineTuningPlan(
            (2e-5, 5e-5, 1e-4), steps=250, measured_every=50, rows=32, length=16_384
        ),
        extraction_tuning=FineTuningPlan(
            (2e-5, 5e-5, 1e-4), steps=250, measured_every=50, rows=32, length=2048
        ),
        measuring=MeasuringPlan(
            lengths=(64, 128, 256, 512, 1024),
            questions_per_length=128,
            pairs=(8, 32, 64),
            recall_vocabulary=8192,
            recall_sequences=32,
            stories=1024,
            story_tokens=1024,
            window=2048,
            documents=1000,
        ),
        pieces=32_000,
        text=text,
        validation_fraction=0.01,
    )


_SMOKE = replace(
    _SMALL,
    name="smoke",
    changes={
        "model": {"layers": 1, "features": 32, "state": 32, "mlp_features": 32},
        "batching": {"rows": 2, "length": 128, "prefetch": 2},
        "data": {"record_tokens": 512},
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 5},
        "checkpoint": {"every_steps": 10},
        "train": {"log_every_steps": 5},
        "eval": {"rows": 1, "batches_per_arm": 1},
        "bandit": {
            "critic_layers": 1,
            "critic_features": 8,
            "critic_state": 8,
            "critic_updates": 3,
            "candidates": 16,
            "average_best": 2,
        },
    },
    pretraining_tokens=20 * 256,
    decisions=4,
    phonebook=PhonebookPlan(
        books=_SMALL_BOOKS | {"min_entries": 2, "max_entries": 3, "max_numbers": 2, "question": "after"},
        entries=(2, 3),
        numbers=(2,),
        entries_of_numbers=3,
        validation_questions=4,
        test_questions=8,
    ),
    extraction=ExtractionPlan(
        passage_tokens=(48, 64),
        training_questions=32,
        validation_questions=4,
        test_questions=8,
        max_tokens=8,
    ),
    phonebook_tuning=FineTuningPlan((1e-3, 3e-3), steps=4, measured_every=2, rows=2, length=160),
    extraction_tuning=FineTuningPlan((1e-3,), steps=2, measured_every=2, rows=2, length=160),
    measuring=MeasuringPlan(
        lengths=(32,),
        questions_per_length=4,
        pairs=(4,),
        recall_vocabulary=64,
        recall_sequences=2,
        stories=4,
        story_tokens=320,
        window=128,
        documents=2,
    ),
    pieces=400,
    models=(DEFAULT_MODEL,),
    seeds=(0,),
    validation_fraction=0.3,
)

SCALES: Mapping[str, Scale] = MappingProxyType(
    {
        scale.name: scale
        for scale in (
            _SMOKE,
            replace(
                _SMALL,
                name="pilot",
                pretraining_tokens=4_096_000,
                phonebook_tuning=replace(_SMALL.phonebook_tuning, learning_rates=(1e-3,)),
                extraction_tuning=replace(_SMALL.extraction_tuning, learning_rates=(1e-3,)),
                seeds=(0,),
                models=(DEFAULT_MODEL,),
            ),
            _SMALL,
            _paper_scale("110m", "birdie_110m.py", "pile/**/*.jsonl.zst"),
            _paper_scale("1_4b", "birdie_1_4b.py", "pile/**/*.jsonl.zst"),
        )
    }
)
