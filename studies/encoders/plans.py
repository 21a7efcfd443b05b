"""The scales of the study, and the runs of each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from studies.encoders.tasks import TRANSFER_TASKS

DECIDING = ("bigs", "stack_ssm")
"""The cells that differ only in the gate. They run with every seed."""

OTHERS = ("gated_attention", "stack_attention")
"""The cells that show the effect of the gate on attention. They run with the first seed."""

AGREEMENT = "agreement"
"""The task that measures pre-trained models without fine-tuning."""

TITLES: Mapping[str, str] = MappingProxyType(
    {
        "bigs": "GATED/SSM",
        "stack_ssm": "STACK/SSM",
        "gated_attention": "GATED/attention",
        "stack_attention": "STACK/attention",
    }
)


class InitialDeviations(NamedTuple):
    """The initial standard deviations of weights.

    Attributes:
        kernels: the deviation of the blocks' weights.
        tables: the deviation of the tables of words, positions and token types.
    """

    kernels: float
    tables: float


@dataclass(frozen=True)
class Pilot:
    """Short trainings that choose the settings of each cell by the lowest held-out loss of masked LM.

    Attributes:
        learning_rates: the rates to try.
        deviations: the initial deviations to try with each rate.
        steps: the steps of a training; the warm-up is as long as in the runs.
        seed: the seed, which no run uses.
    """

    learning_rates: tuple[float, ...]
    deviations: tuple[InitialDeviations, ...]
    steps: int
    seed: int = 100


_PUBLISHED_DEVIATIONS = InitialDeviations(0.02, 0.02)


@dataclass(frozen=True)
class Scale:
    """The sizes of a study. Rows always have 128 tokens.

    Attributes:
        name: the name.
        pilot: the pilot that chooses the learning rate and the initial deviations of each cell.
        layers: the number of gated layers; stacked models have one more, for about as many parameters.
        features: the width.
        pieces: the vocabulary size of the tokenizer.
        rows: the rows of a pre-training batch.
        steps: the steps of pre-training.
        validation_fraction: the share of held-out documents.
        training_samples: the maximum number of training samples of a task.
        validation_samples: the maximum number of a task's samples that choose its learning rate.
        test_samples: the maximum number of test samples of a task.
        agreement_questions: the number of sentences of the agreement test.
        tuning_rates: the learning rates of fine-tuning; the first seed of a cell chooses one.
        tuning_rows: the rows of a fine-tuning batch, packed with samples.
        epochs: the epochs of fine-tuning.
        seeds: the seeds of the cells in `DECIDING`.
        tasks: the names of the fine-tuning tasks.
        kernels_after: the task whose fine-tuned kernels are compared with the pre-trained ones.
    """

    name: str
    pilot: Pilot
    layers: int = 12
    features: int = 128
    pieces: int = 4096
    rows: int = 32
    steps: int = 2000
    validation_fraction: float = 0.1
    training_samples: int = 4000
    validation_samples: int = 400
    test_samples: int = 1000
    agreement_questions: int = 1000
    tuning_rates: tuple[float, ...] = (3e-4, 1e-3)
    tuning_rows: int = 8
    epochs: float = 3.0
    seeds: tuple[int, ...] = (0, 1, 2)
    tasks: tuple[str, ...] = tuple(TRANSFER_TASKS)
    kernels_after: str = "follows"

    @property
    def warmup_steps(self) -> int:
        """The warm-up steps of a run and of its pilot: the paper's share of the run's steps."""
        return self.steps // 50


SCALES: Mapping[str, Scale] = MappingProxyType(
    {
        "smoke": Scale(
            "smoke",
            layers=1,
            features=16,
            pieces=400,
            rows=4,
            steps=4,
            validation_fraction=0.4,
            training_samples=16,
            validation_samples=8,
            test_samples=8,
            agreement_questions=8,
            tuning_rates=(1e-3,),
            epochs=1.0,
            seeds=(0,),
            tasks=("verse", "acceptable"),
            kernels_after="verse",
            pilot=Pilot(
                learning_rates=(2e-3,),
                deviations=(_PUBLISHED_DEVIATIONS, InitialDeviations(0.1, 0.05)),
                steps=2,
            ),
        ),
        "small_tuned": Scale(
            "small_tuned",
            pilot=Pilot(
                learning_rates=(1e-3, 2e-3, 4e-3),
                # 0.057 = 0.02 * sqrt(1024 / 128): the paper uses 0.02 with 1,024 features.
                deviations=(_PUBLISHED_DEVIATIONS, InitialDeviations(0.057, 0.057)),
                steps=400,
            ),
            tuning_rates=(1e-4, 3e-4, 1e-3),
        ),
    }
)


class Run(NamedTuple):
    """The pre-training of a model, and its fine-tuning on every task.

    Attributes:
        scale: the name of the scale.
        model: the name of the model.
        seed: the seed of all random numbers.
    """

    scale: str
    model: str
    seed: int

    @property
    def name(self) -> str:
        """The name of the run within its scale, as --only matches it."""
        return f"{self.model}.{self.seed}"

    @property
    def first_of_its_cell(self) -> "Run":
        """The run of the same cell with the first seed, which chooses the fine-tuning rates."""
        return self._replace(seed=SCALES[self.scale].seeds[0])


def runs_of(scale: Scale) -> Iterator[Run]:
    """Yield the runs of a scale, the cells in `DECIDING` first."""
    for seed in scale.seeds:
        for model in DECIDING:
            yield Run(scale.name, model, seed)
    for model in OTHERS:
        yield Run(scale.name, model, scale.seeds[0])
