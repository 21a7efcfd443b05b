"""Tables of evaluations for the terminal, and mean and deviation of scores over seeds."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from birdie_jax.errors import ConfigError
from birdie_jax.evaluation_record import EvaluationRecord, Interval, ShownAnswer, parse_evaluation
from birdie_jax.saved_config import read_json
from birdie_jax.storage import list_names, read_bytes
from birdie_jax.storage.workdir import Workdir

_SUFFIX = ".json"
# The only field that may differ between repetitions of a run.
_SEED = "seed"


class SeedScores(NamedTuple):
    """A metric over runs.

    Attributes:
        evaluation: the name of the evaluation.
        metric: the name of the metric.
        scores: the score of each run, in the order of the runs.
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
        """The sample standard deviation over runs (denominator n - 1)."""
        return float(np.std(self.scores, ddof=1))


def summarise_seeds(workdirs: Sequence[str]) -> list[SeedScores]:
    """Return each metric of each evaluation that all runs have.

    Raises:
        ConfigError: there are fewer than two runs; two runs have the same seed, or differ in more than the
            seed, or in the last step; a run was not evaluated at its newest checkpoint; or evaluations
            differ in settings or in the number of answers.
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
        # Older records also contain inner metrics.
        if all(metric in one[name].metrics for one in found)
    ]


def _check_seeds(workdirs: Sequence[str]) -> None:
    seeds: dict[Any, str] = {}
    first: dict[str, Any] = {}
    for workdir in workdirs:
        config = dict(read_json(Workdir(workdir).config, "the workdir of a run"))
        seed = config.pop(_SEED, None)
        if seed in seeds:
            raise ConfigError(f"{workdir}: found seed {seed}, as in {seeds[seed]}; allowed: another seed")
        seeds[seed] = workdir
        first = first or config
        for section in sorted(first.keys() | config.keys()):
            if first.get(section) != config.get(section):
                raise ConfigError(
                    f"{workdir}: found another config.{section} than in {workdirs[0]}; allowed: runs that "
                    "differ in their seed alone"
                )


def _check_evaluations(
    first_workdir: str,
    first: Mapping[str, EvaluationRecord],
    workdir: str,
    other: Mapping[str, EvaluationRecord],
) -> None:
    """Check that two runs have the same evaluations at the same step."""
    # Check steps first: an unfinished run needs more training before its evaluation is of use.
    first_step, step = (next(iter(records.values())).model.step for records in (first, other))
    if step != first_step:
        raise ConfigError(
            f"{workdir}: found the last step {step}, but {first_step} in {first_workdir}; allowed: the "
            "same step; finish the shorter run and evaluate it"
        )
    for name in sorted(first.keys() ^ other.keys()):
        lacking = workdir if name in first else first_workdir
        raise ConfigError(
            f"{lacking}: has no evaluation {name} of its newest checkpoint; allowed: the evaluations of "
            "the other runs; run birdie_jax.evaluate"
        )
    for name, record in other.items():
        if (record.task, record.settings) != (first[name].task, first[name].settings):
            raise ConfigError(
                f"{workdir}: the evaluation {name} has other settings than in {first_workdir}; allowed: "
                "the same"
            )
        if record.answers != first[name].answers:
            raise ConfigError(
                f"{workdir}: the evaluation {name} has {record.answers:,} answers, but "
                f"{first[name].answers:,} in {first_workdir}; allowed: the same number"
            )


def _evaluations(workdir: str) -> dict[str, EvaluationRecord]:
    """Return by name the evaluations of a run's newest checkpoint that have scores."""
    files = Workdir(workdir)
    steps = files.saved_steps()
    folder = files.evaluation(steps[-1], "").parent if steps else files.evaluations
    names = [name for name in list_names(folder) if name.endswith(_SUFFIX)] if steps else []
    records = {
        name.removesuffix(_SUFFIX): parse_evaluation(read_bytes(folder / name), str(folder / name))
        for name in names
    }
    # Predictions for a leaderboard have no metrics.
    scored = {name: record for name, record in records.items() if record.metrics}
    if not scored:
        raise ConfigError(
            f"{workdir}: has no evaluation of its newest checkpoint; allowed: a run that "
            "birdie_jax.evaluate has evaluated"
        )
    return scored


_WIDTH = 110
_MAX_REFUSED = 3


def rendered_columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text as a table with the first two columns left-aligned."""
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(names):
        table.add_column(name, justify="left" if number < 2 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return _rendered(table)


def evaluation_table(records: Sequence[EvaluationRecord]) -> str:
    """Return a table with a row for each metric of each evaluation, then lines on skipped questions."""
    table = Table(box=None, pad_edge=False)
    for name in ("task", "metric", "mean", "95 % interval", "answers"):
        table.add_column(name, justify="left" if name in ("task", "metric") else "right", no_wrap=True)
    for record in records:
        for number, (metric, interval) in enumerate(record.metrics.items()):
            name = record.name if number == 0 else ""
            answers = f"{record.answers:,}" if number == 0 else ""
            table.add_row(name, metric, *_cells(interval), answers)
        if not record.metrics:
            table.add_row(record.name, "none", "", "", f"{record.answers:,}")
    return "\n".join([_rendered(table), *refused_lines(records)])


def answer_lines(record: EvaluationRecord, answers: Sequence[ShownAnswer]) -> str:
    """Return a line with the number of exactly right answers, then some answers in full.

    Args:
        record: the evaluation.
        answers: the first answers of the evaluation.
    """
    lines = [record.name]
    if record.exact is not None:
        lines = [f"{record.name}: {record.exact:,} of {record.answers:,} exactly right; the first:"]
    for answer in answers:
        right = "the same" if answer.is_right else answer.reference
        for title, text in (("read", answer.prompt), ("wrote", answer.answer), ("right", right)):
            lines.append(f"  {title:5}  " + text.replace("\n", "\n         "))
    return "\n".join(lines)


def breakdown_tables(record: EvaluationRecord) -> str:
    """Return tables of the main metric by group and category; empty if the evaluation has neither."""
    return "\n\n".join(filter(None, (group_tables(record), category_tables(record))))


def group_tables(record: EvaluationRecord) -> str:
    """Return a table of the main metric for each group; empty if the evaluation has no groups."""
    parts = []
    for group, scores in record.groups.items():
        if len(scores) < 2:
            continue
        table = Table(box=None, pad_edge=False, title_justify="left")
        table.add_column(group.replace("_", " "), justify="right", no_wrap=True)
        for name in (record.main_metric, "95 % interval", "answers"):
            table.add_column(name, justify="right", no_wrap=True)
        for part in scores:
            values = f"{part.low:,}" if part.low == part.high else f"{part.low:,}-{part.high:,}"
            table.add_row(values, *_cells(part.metrics[record.main_metric]), f"{part.count:,}")
        parts.append(f"{record.name} by {group.replace('_', ' ')}\n{_rendered(table)}")
    return "\n\n".join(parts)


def category_tables(record: EvaluationRecord) -> str:
    """Return a table of the main metric for each kind of categories; empty if there is none."""
    parts = []
    for kind, categories in record.categories.items():
        table = Table(box=None, pad_edge=False)
        table.add_column(kind, justify="left", no_wrap=True)
        for name in (record.main_metric, "95 % interval", "answers"):
            table.add_column(name, justify="right", no_wrap=True)
        for one in categories.scores:
            table.add_row(one.name, *_cells(one.metrics[record.main_metric]), f"{one.count:,}")
        title = f"{record.name} by {kind}, known of {categories.known:,} of {record.answers:,} answers"
        parts.append(f"{title}\n{_rendered(table)}")
    return "\n\n".join(parts)


def comparison_table(
    origins: Sequence[str],
    records: Sequence[Sequence[EvaluationRecord]],
    differences: Sequence[Sequence[tuple[dict[str, Interval], int]]],
) -> str:
    """Return a table that compares the metrics of models with the metrics of the first model.

    The table denotes models by letters. A list of the letters and models follows it.

    Args:
        origins: the names of the models.
        records: the evaluations of each model, in the same order for each.
        differences: for each model except the first and each evaluation, the paired differences by metric,
            and the number of questions that both models answered.
    """
    table = Table(box=None, pad_edge=False)
    for name in (
        "task",
        "metric",
        "model",
        "mean",
        "95 % interval",
        "difference",
        "95 % interval",
        "pairs",
    ):
        table.add_column(name, justify="left" if name in ("task", "metric", "model") else "right")
    letters = [_letter(model) for model in range(len(origins))]
    for number, first in enumerate(records[0]):
        for place, metric in enumerate(first.metrics):
            for model, letter in enumerate(letters):
                record = records[model][number]
                interval = record.metrics.get(metric)
                cells = _cells(interval) if interval else ("none", "")
                found, pairs = differences[model - 1][number] if model else ({}, 0)
                difference = _cells(found[metric], signed=True) if metric in found else ("", "")
                table.add_row(
                    first.name if place == 0 and model == 0 else "",
                    metric if model == 0 else "",
                    letter,
                    *cells,
                    *difference,
                    f"{pairs:,}" if model else "",
                )
    names = [f"{letter}: {origin}" for letter, origin in zip(letters, origins, strict=True)]
    return "\n".join([_rendered(table), *names])


def refused_lines(records: Sequence[EvaluationRecord]) -> list[str]:
    """Return lines with the first skipped questions and the number of the others."""
    lines = []
    for record in records:
        if record.refused:
            lines.append(f"{record.name}: {len(record.refused):,} skipped:")
            lines += [f"  {line}" for line in record.refused[:_MAX_REFUSED]]
            if len(record.refused) > _MAX_REFUSED:
                lines.append(f"  and {len(record.refused) - _MAX_REFUSED:,} more, in the evaluation's file")
    return lines


def _letter(number: int) -> str:
    """Return the letter of a model: A to Z, then A1 to Z1, and so on."""
    turn, place = divmod(number, 26)
    return chr(ord("A") + place) + (str(turn) if turn else "")


def _cells(interval: Interval, *, signed: bool = False) -> tuple[str, str]:
    mean, low, high = (_number(value, signed) for value in (interval.mean, interval.low, interval.high))
    return mean, f"{low} .. {high}"


def _number(value: float, signed: bool) -> str:
    if not math.isfinite(value):
        return str(value)
    sign = "+" if signed else ""
    if abs(value) < 100:
        return f"{value:{sign}.4f}"
    return f"{value:{sign},.1f}" if abs(value) < 1e9 else f"{value:{sign}.3e}"


def _rendered(table: Table) -> str:
    text = io.StringIO()
    Console(file=text, width=_WIDTH, force_terminal=False, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip("\n").split("\n"))
