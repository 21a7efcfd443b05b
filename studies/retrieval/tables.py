"""Tables of the available results, for the generated part of a Markdown page."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from birdie_jax.evaluation_record import Interval
from birdie_jax.objectives.mixtures import make_mixture
from studies.comparison import Scored, gather, mean_with_interval, paired_difference
from studies.retrieval.conditions import (
    Condition,
    Measure,
    Results,
    conditions_of,
    grouped_scores,
    measures_of,
    result_of,
    scores_of,
    tasks_at,
)
from studies.retrieval.fine_tuning import EXTRACTION, PHONEBOOK
from studies.retrieval.measuring import SQUAD
from studies.retrieval.plans import LANGUAGE, PROCEDURES
from studies.tables import cells_of_circumstances, hours, percent, percentage, rows_of_table, section

# Each pair is compared as the second minus the first.
COMPARISONS = (
    ("causal_lm_causal", "mixture_causal"),
    ("causal_lm", "mixture"),
    ("causal_lm_causal", "causal_lm"),
    ("mixture_causal", "mixture"),
    ("causal_lm_causal", "birdie"),
    ("mixture", "birdie"),
    ("mixture_fixed", "birdie"),
    ("mixture", "mixture_fixed"),
    ("fixed_ratio", "birdie"),
    ("ul2", "birdie"),
)
_BITS = "bits_per_byte"
_PER_CENT = "per cent unless said otherwise"
_FIRST_CELL = "entries_2"


def all_tables(results: Results) -> list[str]:
    """Return every table of a scale."""
    if not results:
        return []
    measures = measures_of(next(iter(results.values())))
    passages = Measure("", EXTRACTION, (EXTRACTION,), "f1")
    language = Measure("", "pretrained", (LANGUAGE,), _BITS)
    sections = {
        "Runs": table_of_runs(results),
        "Means over seeds": _table_of_means(results, measures),
        "Paired differences, 95 % over seeds": _table_of_differences(results, measures),
        "Run by run: exact answers, and the fine-tuning that validation chose": _table_of_seeds(results),
        "Passages by length, F1": _table_of_groups(results, passages, "passage_tokens"),
        "Held-out text by position, bits a byte": _table_of_groups(results, language, "position"),
    }
    squad = {run: result[SQUAD] for run, result in results.items() if SQUAD in result}
    if squad:
        sections["SQuAD, asked once at the end"] = _table_of_squad(squad)
    return [section(title, table) for title, table in sections.items()]


def _mean(measure: Measure, scored: Scored) -> str:
    mean = mean_with_interval(scored).mean
    return f"{mean:.3f}" if measure.metric == _BITS else f"{percentage(mean):.1f}"


def _answered(result: Mapping[str, Any], measure: Measure) -> str:
    """Return how many questions a model answers; empty if it refuses none as too long."""
    tasks = [tasks_at(result, measure.place)[name] for name in measure.tasks]
    answered, refused = (sum(len(t["weights"]) for t in tasks), sum(t["refused"] for t in tasks))
    return f" ({answered:,} of {answered + refused:,} questions)" if refused else ""


def _interval(measure: Measure, interval: Interval) -> str:
    if measure.metric == _BITS:
        return f"{interval.mean:.3f} ({interval.low:.3f} .. {interval.high:.3f})"
    return percent(interval)


def table_of_runs(results: Results) -> str:
    """Return a table with a row per condition: its seeds, size, losses, hours and circumstances."""
    rows = []
    for condition, seeds in conditions_of(results).items():
        of_condition = [result_of(results, condition, seed) for seed in seeds]
        pretrainings = [result["pretraining"] for result in of_condition]
        rows.append(
            [
                condition.title,
                ", ".join(map(str, seeds)),
                _different(f"{one['summary']['parameters']:,}" for one in pretrainings),
                _different(f"{one['positions'] / 1e6:.2f}M" for one in pretrainings),
                ", ".join(map(_mean_over_classes, pretrainings)),
                *map(_mean_hours, zip(*map(_stage_seconds, of_condition), strict=True)),
                *map(_different, zip(*map(cells_of_circumstances, of_condition), strict=True)),
            ]
        )
    head = [
        "condition",
        "seeds",
        "parameters",
        "tokens",
        "final validation loss by seed, mean over classes",
        "mean hours: pre-training",
        "fine-tuning",
        "measuring",
        "cores",
    ]
    return rows_of_table([*head, "commits", "dates"], rows)


def _different(values: Iterable[str]) -> str:
    """Return each different value once."""
    return ", ".join(dict.fromkeys(values))


def _stage_seconds(result: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return the seconds of pre-training, fine-tuning and measuring."""
    seconds = result["circumstances"]["seconds"]
    tuning = sum(value for name, value in seconds.items() if name.endswith("_tuning"))
    return seconds.get("pretraining", 0.0), tuning, seconds["measuring"]


def _mean_hours(seconds: Sequence[float]) -> str:
    return hours(mean(seconds))


def _mean_over_classes(pretraining: Mapping[str, Any]) -> str:
    """Return the last validation loss in nats, averaged over the arms of each class, then over classes."""
    config = pretraining["config"]
    mixture = make_mixture(config["objectives"]["mixture"], config["batching"]["length"])
    of_class: dict[str, list[float]] = defaultdict(list)
    for arm, group in zip(mixture.names, mixture.groups, strict=True):
        if arm in pretraining["validation_losses"]:
            of_class[group].append(pretraining["validation_losses"][arm])
    return f"{mean(map(mean, of_class.values())):.3f}" if of_class else ""


def _table_of_means(results: Results, measures: Sequence[Measure]) -> str:
    rows = [
        [
            condition.title,
            str(len(seeds)),
            *(
                _mean(measure, scores_of(results, condition, seeds, measure))
                + _answered(result_of(results, condition, seeds[0]), measure)
                for measure in measures
            ),
        ]
        for condition, seeds in conditions_of(results).items()
    ]
    return rows_of_table([_PER_CENT, "seeds", *(measure.title for measure in measures)], rows)


def _table_of_differences(results: Results, measures: Sequence[Measure]) -> str:
    conditions = conditions_of(results)
    rows = []
    models = dict.fromkeys(condition.model for condition in conditions)
    for model, (first, second) in itertools.product(models, COMPARISONS):
        one, other = Condition(model, first), Condition(model, second)
        if common := sorted(set(conditions.get(one, [])) & set(conditions.get(other, []))):
            differences = (
                paired_difference(
                    *(scores_of(results, condition, common, measure) for condition in (one, other))
                )
                for measure in measures
            )
            rows.append(
                [
                    f"{other.title} minus {PROCEDURES[first].title}",
                    str(len(common)),
                    *itertools.starmap(_interval, zip(measures, differences, strict=True)),
                ]
            )
    if not rows:
        return "No two conditions have a seed in common yet."
    head = ["in points unless said otherwise; with one seed the interval is over questions", "seeds"]
    return rows_of_table([*head, *(measure.title for measure in measures)], rows)


def _table_of_seeds(results: Results) -> str:
    """Return exact answers by seed, because a mean over seeds hides which runs learned the task."""
    tasks = next(iter(results.values()))["fine_tuned"][PHONEBOOK]["test"]
    rows = []
    for condition, seeds in conditions_of(results).items():
        for seed in seeds:
            tuned = result_of(results, condition, seed)["fine_tuned"][PHONEBOOK]
            chosen = tuned["chosen"]
            cells = [
                scores_of(results, condition, [seed], Measure("", PHONEBOOK, (name,), "exact_match"))
                for name in tasks
            ]
            rows.append(
                [
                    condition.title,
                    str(seed),
                    *(f"{percentage(mean_with_interval(scored).mean):.0f}" for scored in cells),
                    f"{chosen['learning_rate']:g}",
                    str(chosen["step"]),
                    str(tuned["steps_to_exact_match"][_FIRST_CELL]["half"] or "never"),
                ]
            )
    head = ["per cent exact", "seed", *(name.replace("_", " ") for name in tasks), "rate", "steps"]
    return rows_of_table([*head, "steps to half right on two entries"], rows)


def _table_of_groups(results: Results, measure: Measure, group: str) -> str:
    rows, head = [], []
    for condition in conditions_of(results):
        scores = grouped_scores(results, condition, measure, group)
        head = [f"{group.replace('_', ' ')} {value}" for value in scores]
        rows.append([condition.title, *(_mean(measure, scored) for scored in scores.values())])
    return rows_of_table(["condition", *head], rows)


def _table_of_squad(squad: Results) -> str:
    """Return the scores on SQuAD's questions by condition."""
    rows = []
    for condition, seeds in conditions_of(squad).items():
        scored = gather(
            [scores for run, scores in squad.items() if Condition(run.model, run.procedure) == condition],
            "f1",
        )
        rows.append(
            [
                condition.title,
                str(len(seeds)),
                f"{scored.scores.shape[1]:,}",
                percent(mean_with_interval(scored)),
            ]
        )
    return rows_of_table(["condition", "seeds", "questions", "F1, per cent"], rows)
