"""Which mixture or setting makes a small model copy soonest? Compares learning curves.

    python -m studies.small_mixtures --scale=small --results=results/mixtures --text='/data/*.jsonl'

A Gated SSM+ of 4 layers, 128 features and a state of 256 is pre-trained on 2M tokens in rows of 4 x 256.
All contenders are measured on the same arms, those of the mixture `small_models`, twenty times. Contenders
differ in the shares of its classes, which `bandit.stages` sets, or in one other setting. The learning rate
falls along a cosine over the run. A contender takes about six minutes of one core. The table has, for each
class, the accuracy on its arms' targets. --text: any value of config.data.source.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from birdie_jax.objectives import make_mixture
from birdie_jax.objectives.mixtures import SMALL_MODEL_STAGES
from studies.figure_style import series_colour, series_marker
from studies.one_training import OneTraining
from studies.runner import main
from studies.tables import rows_of_table

SETTINGS = {
    "data.vocab_size": 512,
    "objectives.mixture": "small_models",
    "batching.rows": 4,
    "batching.length": 256,
    "model.layers": 4,
    "model.features": 128,
    "model.state": 256,
    "model.mlp_features": 128,
    "bandit.policy": "staged",
    "bandit.every_steps": 100,
    "optimizer.learning_rate": 3e-3,
    "optimizer.warmup_steps": 100,
    "train.num_steps": 2000,
    "train.log_every_steps": 100,
    "checkpoint.every_steps": 200,
    "eval.batches_per_arm": 1,
    "eval.rows": 4,
}
# 95 of 100 examples copy texts of 3 to 18 tokens. Causal LM has about 30 % of the loss.
SHORT = "0: short_copying=30, short_selective_copying=66, causal_lm=1, prefix_lm=1, span_corruption=2"
# 75 of 100 examples copy texts of all lengths. Causal LM and prefix LM have about 70 % of the loss.
LANGUAGE = (
    "0: short_copying=8, copying=7, short_selective_copying=30, selective_copying=30, causal_lm=7, "
    "prefix_lm=7, span_corruption=6, deshuffling=5"
)
LONG = "0: copying=30, selective_copying=66, causal_lm=1, prefix_lm=1, span_corruption=2"
CONTENDERS = {
    "short": {"bandit.stages": SHORT},
    "language": {"bandit.stages": LANGUAGE},
    "long": {"bandit.stages": LONG},
    "staged": {"bandit.stages": SMALL_MODEL_STAGES},
    "fixed": {"bandit.policy": "fixed"},
    "short, 2048 pieces": {"bandit.stages": SHORT, "data.vocab_size": 2048},
    "short, state 512": {"bandit.stages": SHORT, "model.state": 512},
    "short, rate 0.008": {"bandit.stages": SHORT, "optimizer.learning_rate": 8e-3},
    "short, rate 0.001": {"bandit.stages": SHORT, "optimizer.learning_rate": 1e-3},
    "short, 2 rows": {
        "bandit.stages": SHORT,
        "batching.rows": 2,
        "eval.rows": 2,
        "eval.batches_per_arm": 2,
        "train.num_steps": 4000,
        "bandit.every_steps": 200,
    },
    "short, read causally": {"bandit.stages": SHORT, "model.bidirectional": False},
}
SHOWN = ("short_copying", "short_selective_copying", "copying", "selective_copying", "causal_lm")
# The table's text after the name of a contender.
TITLES: Mapping[str, str] = MappingProxyType(
    {
        "short": ": 96 % of the examples copy texts of 3 to 18 tokens",
        "language": ": 75 % of the examples copy, texts of all lengths; causal LM and prefix LM have some "
        "70 % of the loss",
        "long": ": 96 % copy texts of 17 to 128 tokens",
        "staged": ": the schedule of `small_models`",
        "fixed": ": its shares without the schedule, 60 % short copying, 25 % longer",
        "short, 2 rows": " and twice the steps",
        "short, rate 0.008": " (0.003 otherwise)",
    }
)


@dataclass(frozen=True)
class Scale:
    """The length of the runs.

    Attributes:
        name: the name.
        steps: the train steps of rows of 4 x 256.
    """

    name: str
    steps: int


SCALES: Mapping[str, Scale] = MappingProxyType(
    {"smoke": Scale("smoke", 20), "small": Scale("small", SETTINGS["train.num_steps"])}
)


def of_length(settings: Mapping[str, Any], scale: Scale) -> dict[str, Any]:
    """Return settings with all counts of steps scaled from the run of `SETTINGS` to one of the scale."""
    steps = ("train.num_steps", "bandit.every_steps", "optimizer.warmup_steps")
    share = scale.steps / SETTINGS["train.num_steps"]
    return {**settings, **{name: max(1, round(settings[name] * share)) for name in steps}}


class Run(NamedTuple):
    """The pre-training of a contender.

    Attributes:
        scale: the name of the scale.
        contender: the name of the contender.
    """

    scale: str
    contender: str

    @property
    def name(self) -> str:
        """The name of the run within its scale, as --only matches it."""
        return self.contender.replace(", ", "-").replace(" ", "_")


Results = Mapping[Run, Mapping[str, Any]]


@dataclass(frozen=True)
class SmallMixtures(OneTraining[Scale, Run]):
    """Compares mixtures and settings by how soon a small model copies."""

    name = "small_mixtures"
    page = "retrieval_procedures.md"
    scales = SCALES
    make_run = Run

    def runs(self) -> Iterator[Run]:
        """Return a run for each contender."""
        return (Run(self.scale.name, contender) for contender in CONTENDERS)

    def settings(self, run: Run) -> dict[str, Any]:
        """Return the common settings with the contender's changes, for the scale's run length."""
        return of_length(SETTINGS | CONTENDERS[run.contender], self.scale)

    def tables(self, results: Results) -> list[str]:
        """Return the final accuracy of each class, by contender."""
        rows = []
        for contender, result in _in_order(results):
            last = {name: values[-1] for name, values in accuracy_by_class(result).items()}
            title = f"{contender}{TITLES.get(contender, '')}"
            rows.append([title, *(f"{100 * last[name]:.0f} %" for name in SHOWN)])
        return [
            rows_of_table(
                ["contender", *(name.replace("_", " ").replace("lm", "LM") for name in SHOWN)], rows
            )
        ]

    def figures(self, results: Results) -> Iterator[tuple[str, Figure]]:
        """Yield a figure of the accuracy of each class by tokens."""
        figure = Figure(figsize=(15, 3.6), layout="constrained")
        axes = figure.subplots(1, len(SHOWN), sharey=True)
        for name, axis in zip(SHOWN, axes, strict=True):
            for number, (contender, result) in enumerate(_in_order(results)):
                positions = result["settings"]["batching.rows"] * result["settings"]["batching.length"]
                tokens = np.array(result["steps"]) * positions / 1e6
                values = 100 * accuracy_by_class(result)[name]
                style = {"color": series_colour(number), "marker": series_marker(number), "markersize": 3}
                axis.plot(tokens, values, label=contender, **style)
            axis.set_title(name)
            axis.set_xlabel("tokens (millions)")
        axes[0].set_ylabel("tokens right (%)")
        axes[-1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
        yield "mixtures", figure


def _in_order(results: Results) -> list[tuple[str, Mapping[str, Any]]]:
    found = {run.contender: result for run, result in results.items()}
    return [(contender, found[contender]) for contender in CONTENDERS if contender in found]


def accuracy_by_class(result: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the mean accuracy over each class's arms, by decision."""
    mixture = make_mixture("small_models", SETTINGS["batching.length"])
    group_of = dict(zip(mixture.names, mixture.groups, strict=True))
    measured = np.array(result["validation_accuracy"])
    groups = np.array([group_of[arm] for arm in result["arms"]])
    return {group: measured[:, groups == group].mean(axis=1) for group in SHOWN}


if __name__ == "__main__":
    main(SmallMixtures, __doc__)
