"""Tables of the available results, for the generated part of a Markdown page."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from birdie_jax.evaluation_record import Interval
from birdie_jax.objectives.mixtures import make_mixture
from studies.comparison import gather, mean_with_interval, paired_difference
from studies.retrieval.arms import (
    Arm,
    Measure,
    Results,
    arms_of,
    grouped_scores,
    measures_of,
    result_of,
    scores_of,
)
from studies.retrieval.fine_tuning import EXTRACTION, PHONEBOOK
from studies.retrieval.measuring import COMMONEST_DIGITS, COPIED_DIGITS, SQUAD
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


def all_tables(results: Results) -> list[str]:
    """Return every table of a scale."""
    if not results:
        return []
    measures = measures_of(next(iter(results.values())))
    passages, language = (
        Measure("", EXTRACTION, (EXTRACTION,), "f1"),
        Measure("", "pretrained", (LANGUAGE,), _BITS),
    )
    sections = {
        "Runs": table_of_runs(results),
        "Means": _table_of_means(results, measures),
        "Paired differences": _table_of_differences(results, measures),
        "Phone book by seed: exactly right": _table_of_seeds(results),
        "Phone book by entries and numbers": _table_of_cells(results),
        "Fine-tuning: what was chosen, and steps to half and nine tenths": _table_of_tuning(results),
        "Passages by length": _table_of_groups(results, passages, "passage_tokens", percent),
        "Held-out text: bits a byte by position": _table_of_groups(results, language, "position", _bits),
    }
    squad = {run: result[SQUAD] for run, result in results.items() if SQUAD in result}
    if squad:
        sections["SQuAD, asked once at the end"] = _table_of_squad(squad)
    return [section(title, table) for title, table in sections.items()]


def _bits(interval: Interval) -> str:
    return f"{interval.mean:.3f} ({interval.low:.3f} .. {interval.high:.3f})"


def _writer(measure: Measure) -> Callable[[Interval], str]:
    return _bits if measure.metric == _BITS else percent


def table_of_runs(results: Results) -> str:
    """Return a table with a row per arm: its seeds, size, losses, hours and circumstances."""
    rows = []
    for arm, seeds in arms_of(results).items():
        of_arm = [result_of(results, arm, seed) for seed in seeds]
        pretrainings = [result["pretraining"] for result in of_arm]
        rows.append(
            [
                arm.title,
                ", ".join(map(str, seeds)),
                _different(f"{one['summary']['parameters']:,}" for one in pretrainings),
                _different(f"{one['positions'] / 1e6:.2f}M" for one in pretrainings),
                ", ".join(map(_mean_over_classes, pretrainings)),
                *map(_mean_hours, zip(*map(_stage_seconds, of_arm), strict=True)),
                *map(_different, zip(*map(cells_of_circumstances, of_arm), strict=True)),
            ]
        )
    head = [
        "arm",
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
    arms = arms_of(results)
    rows = []
    for measure in measures:
        cells = [
            _writer(measure)(mean_with_interval(scores_of(results, arm, seeds, measure)))
            for arm, seeds in arms.items()
        ]
        rows.append([measure.title, *cells])
    head = [
        "per cent unless said otherwise",
        *(f"{arm.title} ({len(seeds)} seeds)" for arm, seeds in arms.items()),
    ]
    return rows_of_table(head, rows)


def _table_of_differences(results: Results, measures: Sequence[Measure]) -> str:
    arms = arms_of(results)
    pairs = []
    models = dict.fromkeys(arm.model for arm in arms)
    for model, (first, second) in itertools.product(models, COMPARISONS):
        one, other = Arm(model, first), Arm(model, second)
        common = sorted(set(arms.get(one, [])) & set(arms.get(other, [])))
        if common:
            pairs.append((one, other, common))
    if not pairs:
        return "No two arms have a seed in common yet."
    rows = []
    for measure in measures:
        cells = []
        for one, other, common in pairs:
            difference = paired_difference(
                scores_of(results, one, common, measure), scores_of(results, other, common, measure)
            )
            cells.append(_writer(measure)(difference))
        rows.append([measure.title, *cells])
    head = [
        f"{other.title} minus {PROCEDURES[one.procedure].title} ({len(common)} seeds)"
        for one, other, common in pairs
    ]
    return rows_of_table(["in points; 95 % over seeds, of one over questions", *head], rows)


def _table_of_seeds(results: Results) -> str:
    """Return exact answers by seed, because a mean over seeds hides which runs learned the task."""
    tasks = next(iter(results.values()))["fine_tuned"][PHONEBOOK]["test"]
    rows = []
    for arm, seeds in arms_of(results).items():
        for seed in seeds:
            cells = [
                scores_of(results, arm, [seed], Measure("", PHONEBOOK, (name,), "exact_match"))
                for name in tasks
            ]
            means = [f"{percentage(mean_with_interval(scored).mean):.0f}" for scored in cells]
            rows.append([arm.title, str(seed), *means])
    return rows_of_table(["per cent", "seed", *(name.replace("_", " ") for name in tasks)], rows)


def _table_of_cells(results: Results) -> str:
    first = next(iter(results.values()))["fine_tuned"][PHONEBOOK]["test"]
    metrics = {
        "exact": "exact_match",
        "digits": "digit_accuracy",
        "digits, of copying any entry": COPIED_DIGITS,
        "digits, of the commonest": COMMONEST_DIGITS,
        "asked entry": "asked_entry",
    }
    rows = []
    for arm, seeds in arms_of(results).items():
        for title, metric in metrics.items():
            cells = [
                f"{percentage(mean_with_interval(scores_of(results, arm, seeds, measure)).mean):.1f}"
                for measure in (Measure("", PHONEBOOK, (name,), metric) for name in first)
            ]
            rows.append([arm.title, title, *cells])
    return rows_of_table(["arm", "per cent", *(name.replace("_", " ") for name in first)], rows)


def _table_of_tuning(results: Results) -> str:
    rows = []
    for run, result in results.items():
        for tuning in (PHONEBOOK, EXTRACTION):
            found = result["fine_tuned"][tuning]
            chosen = found["chosen"]
            milestones = [
                f"{cell.replace('_', ' ')}: {steps['half'] or '-'}, {steps['nine_tenths'] or '-'}"
                for cell, steps in found["steps_to_exact_match"].items()
            ]
            rows.append(
                [
                    Arm(run.model, run.procedure).title,
                    str(run.seed),
                    tuning,
                    f"{chosen['learning_rate']:g}",
                    str(chosen["step"]),
                    f"{100 * chosen['score']:.1f}",
                    "; ".join(milestones) or "-",
                ]
            )
    head = [
        "arm",
        "seed",
        "fine-tuned on",
        "learning rate",
        "steps",
        "validation score",
        "steps to 50, 90 % exact",
    ]
    return rows_of_table(head, rows)


def _table_of_groups(
    results: Results, measure: Measure, group: str, write: Callable[[Interval], str]
) -> str:
    rows, head = [], []
    for arm in arms_of(results):
        scores = grouped_scores(results, arm, measure, group)
        head = [f"{group.replace('_', ' ')} {value}" for value in scores]
        rows.append([arm.title, *(write(mean_with_interval(scored)) for scored in scores.values())])
    return rows_of_table(["arm", *head], rows)


def _table_of_squad(squad: Results) -> str:
    """Return the scores on SQuAD's questions by arm, over seeds and questions."""
    metrics = {"f1": "F1", "contains": "contains an answer", "exact_match": "exactly right"}
    rows = []
    for arm, seeds in arms_of(squad).items():
        of_seeds = [scores for run, scores in squad.items() if Arm(run.model, run.procedure) == arm]
        scored = [gather(of_seeds, metric) for metric in metrics]
        questions = scored[0].scores.shape[1]
        means = [percent(mean_with_interval(one)) for one in scored]
        rows.append([arm.title, str(len(seeds)), f"{questions:,}", *means])
    return rows_of_table(
        ["arm", "seeds", "questions", *(f"per cent {name}" for name in metrics.values())], rows
    )
