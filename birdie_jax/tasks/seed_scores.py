"""Scores over runs that differ in their seed alone, each at its last checkpoint."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from birdie_jax.config_errors import ConfigError
from birdie_jax.evaluation_record import EvaluationRecord, parse_evaluation
from birdie_jax.saved_config import read_json
from birdie_jax.storage import list_names, read_bytes
from birdie_jax.storage.workdir import Workdir

_SUFFIX = ".json"
# What may differ between two runs that are repetitions of one.
_SEED = "seed"


class SeedScores(NamedTuple):
    """A metric over runs.

    Attributes:
        evaluation: the name of the evaluation.
        metric: the name of the metric.
        scores: the score of each run, in their order.
    """

    evaluation: str
    metric: str
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over runs."""
        return float(np.mean(self.scores))

    @property
    def deviation(self) -> float:
        """The standard deviation over runs, with n - 1 in its denominator."""
        return float(np.std(self.scores, ddof=1))


def summarise_seeds(workdirs: Sequence[str]) -> list[SeedScores]:
    """Return each metric of each evaluation that all runs have.

    Raises:
        ConfigError: there are fewer than two runs, two have one seed, or they differ in more than that, or
            in their last step; a run was not evaluated at its newest checkpoint; or evaluations differ in
            their settings or in the number of their answers.
    """
    if len(workdirs) < 2:
        raise ConfigError(f"--workdir: found {len(workdirs)}; allowed: two or more runs")
    _check_seeds(workdirs)
    found = [_evaluations(workdir) for workdir in workdirs]
    first, *others = found
    for workdir, other in zip(workdirs[1:], others, strict=True):
        _check_evaluations(workdirs[0], first, workdir, other)
    return [
        SeedScores(name, metric, tuple(one[name].metrics[metric].mean for one in found))
        for name in sorted(first)
        for metric in first[name].metrics
        # Records of before inner metrics were left out have more.
        if all(metric in one[name].metrics for one in found)
    ]


def _check_seeds(workdirs: Sequence[str]) -> None:
    seeds: dict[Any, str] = {}
    first: dict[str, Any] = {}
    for workdir in workdirs:
        config = dict(read_json(Workdir(workdir).config, "the workdir of a run"))
        seed = config.pop(_SEED, None)
        if seed in seeds:
            raise ConfigError(f"{workdir}: found seed {seed}, which {seeds[seed]} has; allowed: another")
        seeds[seed] = workdir
        first = first or config
        for section in sorted(first.keys() | config.keys()):
            if first.get(section) != config.get(section):
                raise ConfigError(
                    f"{workdir}: its config.{section} is another than that of {workdirs[0]}; allowed: runs "
                    "that differ in their seed alone"
                )


def _check_evaluations(
    first_workdir: str,
    first: Mapping[str, EvaluationRecord],
    workdir: str,
    other: Mapping[str, EvaluationRecord],
) -> None:
    """Check that two runs were asked the same at the same step."""
    # First, as an unfinished run would be evaluated in vain.
    first_step, step = (next(iter(records.values())).model.step for records in (first, other))
    if step != first_step:
        raise ConfigError(
            f"{workdir}: found step {step} as its last, and step {first_step} of {first_workdir}; "
            "allowed: the same step: finish the run that has fewer, and evaluate it"
        )
    for name in sorted(first.keys() ^ other.keys()):
        lacking = workdir if name in first else first_workdir
        raise ConfigError(
            f"{lacking}: has no evaluation {name} of its newest checkpoint; allowed: those of the "
            "others: ask for it by birdie_jax.evaluate"
        )
    for name, record in other.items():
        if (record.task, record.settings) != (first[name].task, first[name].settings):
            raise ConfigError(
                f"{workdir}: the evaluation {name} has other settings than in {first_workdir}; allowed: "
                "the same"
            )
        if record.answers != first[name].answers:
            raise ConfigError(
                f"{workdir}: the evaluation {name} has {record.answers:,} answers, and "
                f"{first[name].answers:,} in {first_workdir}; allowed: the same number"
            )


def _evaluations(workdir: str) -> dict[str, EvaluationRecord]:
    """Return the evaluations of a run's newest checkpoint by their names, those that have scores."""
    files = Workdir(workdir)
    steps = files.saved_steps()
    folder = files.evaluation(steps[-1], "").parent if steps else files.evaluations
    names = [name for name in list_names(folder) if name.endswith(_SUFFIX)] if steps else []
    records = {
        name.removesuffix(_SUFFIX): parse_evaluation(read_bytes(folder / name), str(folder / name))
        for name in names
    }
    # Predictions for a leaderboard have none.
    scored = {name: record for name, record in records.items() if record.metrics}
    if not scored:
        raise ConfigError(
            f"{workdir}: has no evaluation of its newest checkpoint; allowed: a run that "
            "birdie_jax.evaluate has asked"
        )
    return scored
