"""The value of the mixture: fine-tuning steps to half of the answers right on books of two entries.

The value of a pre-training seed is the median over its fine-tunings. Fine-tunings of one checkpoint are
similar and count as one run in every test. The value is censored if most of them never reach half right.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from birdie_jax.config import parse_config
from birdie_jax.models.layer_stacks import make_mixer
from studies.class_objective import class_of_arm, losses_of_classes
from studies.retrieval.conditions import Condition, Results, conditions_of, tasks_at
from studies.retrieval.curriculum import EXACT
from studies.retrieval.fine_tuning import EXTRACTION, PHONEBOOK, steps_to
from studies.retrieval.plans import DEFAULT_MODEL, LANGUAGE, PROCEDURES, Run, Scale
from studies.retrieval.pretraining import pretraining_config, rewards_of
from studies.retrieval.tables import table_of_runs
from studies.seed_statistics import (
    Times,
    censored,
    learned_or_not,
    log_rank,
    median_time,
    paired_log_rank,
)
from studies.tables import (
    HEAD_OF_PREDICTIONS,
    cells_of_predictions,
    mean_over_seeds,
    rows_of_table,
    section,
)

_HALF, _CELL = 0.5, "entries_2"
_NO_PAIRS = "No two conditions have two seeds in common yet."
# Each pair is compared as the second against the first. The first two pairs are the claim.
_COMPARISONS = (
    ("causal_lm_causal", "mixture_fixed_causal"),
    ("scratch", "mixture_fixed_causal"),
    ("causal_lm_fewer", "mixture_fixed_causal"),
    ("scratch", "causal_lm_causal"),
    ("causal_lm_causal", "causal_lm_fewer"),
    ("causal_lm_causal", "ul2_causal"),
    ("ul2_causal", "mixture_fixed_causal"),
    ("mixture_fixed_causal", "mixture_fixed"),
    *(
        (control, steered)
        for steered in ("steered", "searched", "published")
        for control in ("best_fixed", "uniform", "untuned")
    ),
    ("uniform", "best_fixed"),
    ("untuned", "best_fixed"),
    ("untuned", "uniform"),
)


class Outcome(NamedTuple):
    """The outcome of a run.

    Attributes:
        times: the steps of each fine-tuning to half right on two entries; None = never.
        cap: the maximum number of steps of a fine-tuning.
        exact: the share of exact test answers by cell, averaged over the fine-tunings.
        copied: the share of test answers on two entries that are a number of the book, asked or not,
            averaged over the fine-tunings.
        bits: the bits per byte on held-out text.
        copying: the share of tokens copied correctly without fine-tuning.
        f1: the F1 score on questions on passages.
        losses: the final validation loss of each class of `small_models` in nats; empty unless all of its
            arms were validated.
    """

    times: tuple[int | None, ...]
    cap: int
    exact: dict[str, float]
    copied: float
    bits: float
    copying: float
    f1: float
    losses: Mapping[str, float]

    @property
    def objective(self) -> float:
        """J, the objective of the bandit: the mean over the classes."""
        return float(np.mean(list(self.losses.values())))

    @property
    def median(self) -> float | None:
        """The median time; None if it is censored."""
        return median_time(self.times)


def outcome_of(result: Mapping[str, Any], cap: int) -> Outcome:
    """Return the outcome of a run; `cap` is the maximum number of steps of a fine-tuning."""
    repeats = result["fine_tuned"][PHONEBOOK]["repeats"]
    name = f"{_CELL}/{EXACT}"
    curves = [[point for point in one["curve"] if name in point] for one in repeats]
    pretrained, losses = tasks_at(result, "pretrained"), result["pretraining"]["validation_losses"]
    return Outcome(
        times=tuple(steps_to(curve, name, _HALF) for curve in curves),
        cap=cap,
        exact={
            cell: float(np.mean([_mean(one["test"][cell], EXACT) for one in repeats]))
            for cell in repeats[0]["test"]
        },
        copied=float(np.mean([_mean(one["test"][_CELL], "copied_entry") for one in repeats])),
        bits=_mean(pretrained[LANGUAGE], "bits_per_byte"),
        copying=_mean(pretrained["copying"], "token_accuracy"),
        f1=_mean(tasks_at(result, EXTRACTION)[EXTRACTION], "f1"),
        losses=losses_of_classes(losses) if class_of_arm().keys() <= losses.keys() else {},
    )


def numbers_of_state(run: Run) -> int:
    """Return the count of numbers in the states of all layers."""
    model = parse_config(pretraining_config(run)).model
    return model.layers * make_mixer(model, parent=None).empty_cache(1).state.size


def _mean(task: Mapping[str, Any], metric: str) -> float:
    return float(np.average(task["scores"][metric], weights=task["weights"]))


def worth_tables(scale: Scale, results: Results) -> list[str]:
    """Return every table of a scale."""
    if not results:
        return []
    found = {run: outcome_of(result, scale.phonebook_tuning.steps) for run, result in results.items()}
    sections = {
        "Runs": table_of_runs(results),
        "Means over seeds": _table_of_means(found),
        "Run by run": _table_of_outcomes(found),
        "Steps to half right on two entries: tests": _table_of_tests(found),
        "Paired differences, 95 % t-intervals over seeds": _table_of_differences(found),
    }
    if _have_losses(found):
        sections["Final validation losses by class, means over seeds, nats"] = _table_of_losses(found)
    if predictions := _table_of_predictions(results):
        sections["Rewards that the critic predicts, and that are earned"] = predictions
    return [section(title, table) for title, table in sections.items()]


def _steps(steps: float | None, cap: int) -> str:
    return f"> {cap}" if steps is None else f"{steps:g}"


def titles_of(runs: Iterable[Run]) -> dict[Condition, str]:
    """Return the title of each condition: only its procedure if all conditions have the same model."""
    conditions = conditions_of({run: {} for run in runs})
    one_model = len({condition.model for condition in conditions}) == 1
    return {
        condition: PROCEDURES[condition.procedure].title if one_model else condition.title
        for condition in conditions
    }


def _compared(runs: Iterable[Run]) -> Iterator[tuple[Condition, Condition]]:
    """Return pairs to compare: procedures of the same model, and models with the default model."""
    conditions = conditions_of({run: {} for run in runs})
    models = dict.fromkeys(condition.model for condition in conditions)
    pairs = [
        (Condition(model, one), Condition(model, other)) for model in models for one, other in _COMPARISONS
    ]
    pairs += [
        (Condition(DEFAULT_MODEL, condition.procedure), condition)
        for condition in conditions
        if condition.model != DEFAULT_MODEL
    ]
    return ((one, other) for one, other in pairs if one in conditions and other in conditions)


def _in_order(found: Mapping[Run, Outcome]) -> Iterator[tuple[Condition, Run, Outcome]]:
    for condition, seeds in conditions_of({run: {} for run in found}).items():
        for seed in seeds:
            (run,) = (run for run in found if (run.model, run.procedure, run.seed) == (*condition, seed))
            yield condition, run, found[run]


def _have_losses(found: Mapping[Run, Outcome]) -> bool:
    return all(one.losses for one in found.values())


def _measures(found: Mapping[Run, Outcome]) -> dict[str, Callable[[Outcome], float]]:
    """Return the measures that tables average, by title, in per cent unless the title says otherwise."""
    measures: dict[str, Callable[[Outcome], float]] = {}
    if _have_losses(found):
        measures["J, nats (less is better)"] = lambda one: one.objective
    return measures | {
        "held-out text, bits a byte (less is better)": lambda one: one.bits,
        "passages, F1": lambda one: 100 * one.f1,
        "tokens copied": lambda one: 100 * one.copying,
        f"{_CELL.replace('_', ' ')}, a number of the book": lambda one: 100 * one.copied,
        **{
            f"{cell.replace('_', ' ')}, exact": lambda one, cell=cell: 100 * one.exact[cell]
            for cell in next(iter(found.values())).exact
        },
    }


def _by_condition(
    found: Mapping[Run, Outcome],
) -> Iterator[tuple[Condition, tuple[Run, ...], tuple[Outcome, ...]]]:
    for condition, of_condition in itertools.groupby(_in_order(found), lambda one: one[0]):
        _, runs, outcomes = zip(*of_condition, strict=True)
        yield condition, runs, outcomes


def _table_of_losses(found: Mapping[Run, Outcome]) -> str:
    titles, classes = titles_of(found), sorted(set(class_of_arm().values()))
    rows = [
        [titles[condition], *(f"{np.mean([one.losses[name] for one in outcomes]):.3f}" for name in classes)]
        for condition, _, outcomes in _by_condition(found)
    ]
    return rows_of_table(["condition", *(name.replace("_", " ") for name in classes)], rows)


def _table_of_predictions(results: Results) -> str:
    """Return predicted and earned rewards of mixtures, of the runs with a critic; "" without any."""
    rows = []
    for run, result in results.items():
        predicted, earned = rewards_of(result)
        if predicted:
            title = PROCEDURES[run.procedure].title
            rows.append([title, str(run.seed), *cells_of_predictions(predicted, earned)])
    return rows_of_table(["condition", "seed", *HEAD_OF_PREDICTIONS], rows) if rows else ""


def _table_of_means(found: Mapping[Run, Outcome]) -> str:
    measures, titles = _measures(found), titles_of(found)
    rows = []
    for condition, runs, outcomes in _by_condition(found):
        medians = [one.median for one in outcomes]
        rows.append(
            [
                titles[condition],
                str(len(runs)),
                f"{numbers_of_state(runs[0]):,}",
                _steps(median_time(medians), outcomes[0].cap),
                str(sum(median is not None for median in medians)),
                *(f"{np.mean([read(one) for one in outcomes]):#.3g}" for read in measures.values()),
            ]
        )
    head = ["condition; per cent where no unit is given", "seeds", "numbers carried"]
    head += ["median steps to half right on two entries", "runs that got there"]
    return rows_of_table([*head, *measures], rows)


def _table_of_outcomes(found: Mapping[Run, Outcome]) -> str:
    rows, titles = [], titles_of(found)
    cells = list(next(iter(found.values())).exact)
    for condition, run, one in _in_order(found):
        rows.append(
            [
                titles[condition],
                str(run.seed),
                ", ".join(_steps(steps, one.cap) for steps in one.times),
                _steps(one.median, one.cap),
                *(f"{100 * one.exact[cell]:.0f}" for cell in cells),
                f"{100 * one.f1:.0f}",
                f"{100 * one.copying:.1f}",
                f"{one.bits:.3f}",
                *([f"{one.objective:.3f}"] if _have_losses(found) else []),
            ]
        )
    head = ["condition", "seed", "steps to half right on two entries", "median"]
    head += [f"{cell.replace('_', ' ')}, % exact" for cell in cells]
    head += ["passages, F1", "tokens copied, %", "bits a byte"]
    return rows_of_table(head + ["J"] * _have_losses(found), rows)


def _pairs(
    found: Mapping[Run, Outcome], first: Condition, second: Condition
) -> tuple[list[Outcome], list[Outcome]]:
    """Return the outcomes of two conditions with their common seeds."""
    by_seed = {
        condition: {run.seed: one for run, one in found.items() if (run.model, run.procedure) == condition}
        for condition in (first, second)
    }
    common = sorted(set(by_seed[first]) & set(by_seed[second]))
    return [by_seed[first][seed] for seed in common], [by_seed[second][seed] for seed in common]


def times_of(outcomes: Sequence[Outcome]) -> Times:
    """Return the median times of the outcomes of runs."""
    return censored([one.median for one in outcomes], outcomes[0].cap)


def _table_of_tests(found: Mapping[Run, Outcome]) -> str:
    rows, titles = [], titles_of(found)
    for first, second in _compared(found):
        before, after = _pairs(found, first, second)
        if len(before) < 2:
            continue
        times = times_of(before), times_of(after)
        reached = [int(one.reached.sum()) for one in times]
        count = len(before)
        rows.append(
            [
                f"{titles[second]} against {titles[first]}",
                str(count),
                *(
                    _steps(median_time([one.median for one in outcomes]), outcomes[0].cap)
                    for outcomes in (after, before)
                ),
                f"{reached[1]}, {reached[0]}",
                f"{log_rank(times[1], times[0]):.3f}",
                f"{paired_log_rank(times[1], times[0]):.3f}",
                f"{learned_or_not((reached[1], count), (reached[0], count)):.3f}",
            ]
        )
    if not rows:
        return _NO_PAIRS
    head = ["conditions", "seeds", "median steps of the first", "of the second", "runs that got there"]
    return rows_of_table([*head, "log-rank, p", "paired, p", "got there or not, p"], rows)


def _table_of_differences(found: Mapping[Run, Outcome]) -> str:
    measures = _measures(found)
    rows, titles = [], titles_of(found)
    for first, second in _compared(found):
        pairs = list(zip(*_pairs(found, first, second), strict=True))
        if len(pairs) < 2:
            continue
        cells = [
            mean_over_seeds([read(b) - read(a) for a, b in pairs], ".3g") for read in measures.values()
        ]
        rows.append([f"{titles[second]} less {titles[first]}", str(len(pairs)), *cells])
    if not rows:
        return _NO_PAIRS
    return rows_of_table(
        ["conditions; differences in points where no unit is given", "seeds", *measures], rows
    )
