"""The mixture that `search_mixture` finds, by the objective of the bandit.

    python -m studies.mixture_search --scale=small --results=results/mixture_search --text='/data/*.jsonl'

The proxies, the law and the choice are those of `birdie_jax.search_mixture`; the setting is that of
`studies.mixture_grid`. A run is a proxy with a record of its own, so another machine can finish a search. J
is the mean over the classes of the mixture `small_models` of the final validation loss, in nats; lower is
better. A run takes about six minutes of one core. --text: any value of config.data.source.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from birdie_jax.config import parse_config
from birdie_jax.config_flag import load_config
from birdie_jax.mixture_search.design import Design, stages_text
from birdie_jax.mixture_search.findings import MIN_PROXIES, Findings
from birdie_jax.mixture_search.page import loss_rows, share_rows
from birdie_jax.mixture_search.request import make_design, parse_objective
from birdie_jax.objectives import Mixture
from birdie_jax.resolve import class_names
from studies.class_objective import losses_of_classes
from studies.figure_style import series_colour
from studies.mixture_trajectories import MIN_VALIDATIONS, early_rows, fit_trajectories, trajectories
from studies.one_training import OneTraining
from studies.progress import seconds_of
from studies.runner import main
from studies.small_mixtures import SCALES, SETTINGS, Scale, of_length
from studies.tables import hours, rows_of_table, section

PROXIES = 32
SEED = 0


class Run(NamedTuple):
    """The training of a proxy.

    Attributes:
        scale: the name of the scale.
        proxy: the number of the proxy.
    """

    scale: str
    proxy: int

    @property
    def name(self) -> str:
        """The name of the run within its scale, as --only matches it."""
        return f"{self.proxy:02d}"


Results = Mapping[Run, Mapping[str, Any]]


@dataclass(frozen=True)
class MixtureSearch(OneTraining[Scale, Run]):
    """Searches a mixture."""

    name = "mixture_search"
    page = "steering.md"
    scales = SCALES
    make_run = Run

    def shared_settings(self) -> dict[str, Any]:
        """Return the settings that all proxies share."""
        of_search = {
            "seed": SEED,
            "objectives.mixture": "small_models_even",
            "objectives.shares_of": "target_tokens",
            "bandit.policy": "fixed",
        }
        return of_length(SETTINGS | of_search, self.scale)

    def design(self) -> tuple[Design, Mixture]:
        """Return the mixtures of the search, and the arms on which proxies are evaluated."""
        config = load_config("configs/tiny.py")
        config.update_from_flattened_dict(self.shared_settings())
        return make_design(parse_config(config), 1, SEED)

    def findings(self, results: Results) -> Findings:
        """Return the law and the found mixture of the finished proxies; three are the minimum."""
        design, mixture = self.design()
        measured = class_names(mixture)
        losses = [
            losses_of_classes(dict(zip(result["arms"], result["validation_loss"][-1], strict=True)))
            for result in results.values()
        ]
        return Findings(
            design,
            measured,
            parse_objective(None, design, mixture),
            PROXIES,
            np.array([run.proxy for run in results]),
            np.array([[of_proxy[name] for name in measured] for of_proxy in losses]),
        )

    def runs(self) -> Iterator[Run]:
        """Return a run for each proxy."""
        return (Run(self.scale.name, number) for number in range(PROXIES))

    def settings(self, run: Run) -> dict[str, Any]:
        """Return the shared settings with the shares of a proxy."""
        design, _ = self.design()
        stages = stages_text(design.classes, design.points(run.proxy + 1)[-1])
        return self.shared_settings() | {"bandit.policy": "staged", "bandit.stages": stages}

    def tables(self, results: Results) -> list[str]:
        """Return the mixtures that the search compares, their losses, and the test of the law."""
        if len(results) < MIN_PROXIES:
            return []
        findings = self.findings(results)
        names = [one.name for one in findings.mixtures]
        spent = hours(sum(map(seconds_of, results.values())))
        test = (
            f"{len(results)} proxies, {spent} hours of a core. The law predicts proxies that are left out "
            f"with a rank correlation of {findings.rank_correlation:.2f} and a mean absolute error of "
            f"{findings.error:.3f} nats."
        )
        return [
            section(
                "Shares of the search",
                "\n\n".join(
                    [
                        test,
                        *(f"The search warns: {warning}." for warning in findings.warnings()),
                        rows_of_table(
                            ["class", *names], [[row.name, *row.cells] for row in share_rows(findings)]
                        ),
                    ]
                ),
            ),
            section(
                "Losses of the search by class, nats",
                rows_of_table(
                    ["class", "weight", *names[:-1], "found, predicted", "error, left out"],
                    [[row.name, *row.cells] for row in loss_rows(findings)],
                ),
            ),
            *self._of_trajectories(findings, results),
        ]

    def _of_trajectories(self, findings: Findings, results: Results) -> Iterator[str]:
        losses = trajectories(results, findings.measured)
        if losses.shape[1] < MIN_VALIDATIONS:
            return
        found = fit_trajectories(findings, losses)
        yield section(
            "Trajectories of the search",
            "\n\n".join(
                [
                    f"The regression predicts proxies that are left out with a rank correlation of "
                    f"{found.rank_correlation:.2f} and a mean absolute error of {found.error:.3f} nats.",
                    rows_of_table(
                        ["J after", "rank correlation with J at the end", "the same, predicted by the law"],
                        [[name, f"{j:.2f}", f"{law:.2f}"] for name, j, law in early_rows(findings, losses)],
                    ),
                    rows_of_table(
                        ["stages of the best schedule", "predicted J"],
                        [[str(stages), f"{j:.3f}"] for stages, j in found.schedules.items()],
                    ),
                ]
            ),
        )

    def figures(self, results: Results) -> Iterator[tuple[str, Figure]]:
        """Yield a figure of J against its prediction by the other proxies."""
        if len(results) < MIN_PROXIES:
            return
        findings = self.findings(results)
        predicted, measured = (findings.objectives(each) for each in (findings.left_out, findings.losses))
        figure = Figure(figsize=(4.5, 3.5), layout="constrained")
        axes = figure.subplots()
        ends = [measured.min(), measured.max()]
        axes.plot(ends, ends, color="grey", linewidth=0.8)
        axes.plot(predicted, measured, "o", color=series_colour(0), markersize=4)
        axes.set_xlabel("J that the other proxies predict, nats")
        axes.set_ylabel("J, nats (lower is better)")
        yield "search", figure


if __name__ == "__main__":
    main(MixtureSearch, __doc__)
