"""Statements about the tokens that have to stay where far ones are needed."""

from collections.abc import Iterator

import numpy as np

from studies.pruning.conditions import Needle, Results, find_needle, needles_of, pruned_results
from studies.pruning.config import NEEDLES
from studies.pruning.plans import INFLUENCE, RECENCY, SCALES
from studies.pruning.stakes import OTHERS, context_falls, has_learned
from studies.statements.figures import Gap, Records, ends, gap, of_runs, word
from studies.statements.statement import Statement, on

_PRUNING = on("docs/measurements/pruning_study.md")
_SCALE = SCALES["stake"]
_LEAST = min(_SCALE.needles.shares)
_NOISE = f"{NEEDLES}_last"


def statements(records: Records) -> Iterator[Statement]:
    """Yield the statements on all pages."""
    results = records["pruning", "stake"]
    yield from _of_gated_ssm(results)
    yield from _of_mamba(results)
    yield from _of_hawk(results)
    yield from _of_identifiers(results)


def _right(needles: list[Needle], policy: str, keep: float = _LEAST) -> float:
    return 100 * float(np.mean(find_needle(needles, policy, keep).accuracy))


def _ahead(seeds: list[list[Needle]], other: str) -> Gap:
    return gap([_right(one, INFLUENCE) - _right(one, other) for one in seeds])


def _seeds(results: Results, mixer: str) -> tuple[list[list[Needle]], list[list[Needle]]]:
    """Return the measurements of the seeds that learned, and of the others."""
    learned, failed = [], []
    for run, result, _ in pruned_results(results):
        if run.mixer == mixer:
            tuned = result["fine_tuned"][_NOISE]
            (learned if has_learned(_SCALE, _NOISE, tuned) else failed).append(needles_of(tuned))
    return learned, failed


def _of_gated_ssm(results: Results) -> Iterator[Statement]:
    learned, failed = _seeds(results, "gated_ssm")
    gaps = [_ahead(learned, other) for other in OTHERS]
    yield _PRUNING(
        "by influence a Gated SSM answers as well with {:.0f} % of the tokens as with all, where recency "
        "loses {:.0f} points.",
        100 * _LEAST,
        np.mean([_right(one, "dense", 1.0) - _right(one, RECENCY) for one in learned]),
    )
    yield _PRUNING(
        "{} seeds learned the task: {:.0f} to {:.0f} % of the tokens are right with the whole context. "
        "With a tenth of it, by influence, {:.0f} to {:.0f} % are: {:.0f} points more than by recency (95 "
        "%: {:.0f}), {:.0f} more than uniform ({:.0f}) and {:.0f} more than random ({:.0f}).",
        of_runs(len(learned), len(learned + failed)).capitalize(),
        *ends(_right(one, "dense", 1.0) for one in learned),
        *ends(_right(one, INFLUENCE) for one in learned),
        *(part for one in gaps for part in (one.mean, one)),
    )
    yield _PRUNING(
        "The other {} have {:.0f} and {:.0f} % right after {:,} steps. With them, which the rule leaves "
        "out, influence is {:.0f} points above recency ({:.0f}).",
        word(len(failed)),
        *sorted(_right(one, "dense", 1.0) for one in failed),
        _SCALE.needle_tuning.steps,
        *((whole := _ahead(learned + failed, RECENCY)).mean, whole),
    )


def _of_mamba(results: Results) -> Iterator[Statement]:
    learned, failed = _seeds(results, "mamba")
    behind = gap([_right(one, RECENCY) - _right(one, INFLUENCE) for one in learned])
    yield _PRUNING(
        "For Mamba it does not. {} seeds learned the task: {:.0f} to {:.0f} % are right with the whole "
        "context. With a tenth of it, by influence, {:.0f} to {:.0f} % are, {:.1f} points fewer than by "
        "recency ({:.1f}). No difference is shown from uniform ({:.0f}) or random ({:.0f}).",
        of_runs(len(learned), len(learned + failed)).capitalize(),
        *ends(_right(one, "dense", 1.0) for one in learned),
        *ends(_right(one, INFLUENCE) for one in learned),
        *(behind.mean, behind),
        *(_ahead(learned, other) for other in OTHERS if other != RECENCY),
    )


def _of_hawk(results: Results) -> Iterator[Statement]:
    learned, failed = _seeds(results, "hawk")
    yield _PRUNING(
        "Hawk's {} run is too few for the rule. It learned: {:.0f} % are right with the whole context. "
        "With a tenth of it {:.0f} % are by influence, and {:.0f} % by recency.",
        word(len(learned + failed)),
        *(_right(learned[0], "dense", 1.0), _right(learned[0], INFLUENCE), _right(learned[0], RECENCY)),
    )


def _of_identifiers(results: Results) -> Iterator[Statement]:
    assert _SCALE.identifiers is not None
    falls = [
        np.mean(
            context_falls(
                _SCALE, [losses for run, _, losses in pruned_results(results) if run.mixer == mixer]
            )
        )
        for mixer in ("gated_ssm", "mamba", "hawk")
    ]
    yield _PRUNING(
        "{} tokens of context in place of {} lower the loss by {:.3f}, {:.3f} and {:.3f} nats, and the "
        "gate asks for {:.1f}.",
        *(max(_SCALE.contexts), min(_SCALE.contexts), *falls, _SCALE.identifiers.least_gain),
    )
