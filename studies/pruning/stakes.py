"""The rule of scales with `identifiers`, and its conclusions. It was written before any result.

A model's seeds are compared in pairs: both policies prune the same model on the same windows or questions.
An interval is the paired 95 % t-interval of the differences over seeds.

Identifiers: the gate is the fall of the loss from the shortest context to the longest. A model is judged if
the mean of its seeds is at least `Identifiers.least_gain`. Otherwise its context is not at stake.

Noise: a seed has learned if its fine-tuning ended because enough answers were right. A model is judged on
the seeds that learned, if there are at least `LEAST_SEEDS`.

Influence keeps what is far if its loss is below that of each of `OTHERS` (or more answers are right), with
the interval off zero, at all shares of at most `CLEAR_SHARE`. It keeps less than another policy if the
interval is off zero on the other side at all of them. Every other result is unclear.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from birdie_jax.comparison.seed_interval import seed_interval
from birdie_jax.evaluation_record import Interval
from studies.pruning.conditions import Needle, Results, TextLosses, find_needle, needles_of, pruned_results
from studies.pruning.config import NEEDLE_METRIC, NEEDLES
from studies.pruning.judgement import CLEAR_SHARE, nats, points
from studies.pruning.plans import INFLUENCE, MODELS, RANDOM, RECENCY, UNIFORM, Scale

LEAST_SEEDS = 3
OTHERS = (RECENCY, UNIFORM, RANDOM)


class _Gain(NamedTuple):
    """What influence gains over another policy: less loss, or more right answers.

    Attributes:
        other: the other policy.
        keep: the share.
        interval: the mean over seeds.
    """

    other: str
    keep: float
    interval: Interval


def judge_stakes(scale: Scale, results: Results) -> list[str]:
    """Return the sentences of all models that are measured."""
    lines = []
    for mixer in MODELS:
        found = [(result, losses) for run, result, losses in pruned_results(results) if run.mixer == mixer]
        if len(found) < 2:
            continue
        lines.append(f"**{mixer}**, identifiers: {_judge_identifiers(scale, [one for _, one in found])}")
        for query in scale.queries:
            name = f"{NEEDLES}_{query}"
            tuned = [result["fine_tuned"][name] for result, _ in found]
            learned = [needles_of(one) for one in tuned if has_learned(scale, name, one)]
            title = f"**{mixer}**, items among noise, query {query}: {len(learned)} of {len(tuned)} learned"
            lines.append(f"{title}{_judge_needles(scale, learned)}")
    return lines


def has_learned(scale: Scale, name: str, tuned: Mapping[str, Any]) -> bool:
    """Return whether a fine-tuning ended because enough validation answers were right."""
    curve = tuned["training"]["curves"][f"task/{name}/{NEEDLE_METRIC}"]
    return curve[-1][1] >= scale.needles.learned


def context_falls(scale: Scale, seeds: Sequence[TextLosses]) -> list[float]:
    """Return how much the longest context lowers each seed's loss, compared with the shortest one."""
    shortest, longest = min(scale.contexts), max(scale.contexts)
    return [float(one.dense(shortest).losses.mean() - one.dense(longest).losses.mean()) for one in seeds]


def _judge_identifiers(scale: Scale, seeds: Sequence[TextLosses]) -> str:
    assert scale.identifiers is not None
    shortest, longest = min(scale.contexts), max(scale.contexts)
    falls = context_falls(scale, seeds)
    gate = f"{longest} tokens instead of {shortest} lower the loss by {np.mean(falls):.3f} nats"
    if np.mean(falls) < scale.identifiers.least_gain:
        return f"{gate}, less than {scale.identifiers.least_gain:g}: not judged."
    gains = []
    for keep in _judged(scale.shares):
        for other in OTHERS:
            pairs = [(one.get(other, keep, longest), one.get(INFLUENCE, keep, longest)) for one in seeds]
            values = [
                theirs.losses.mean() - own.losses.mean()
                for theirs, own in pairs
                if theirs is not None and own is not None
            ]
            gains.append(_Gain(other, keep, seed_interval(np.array(values))))
    return f"{gate}. {_verdict(gains, nats)}"


def _judge_needles(scale: Scale, learned: Sequence[Sequence[Needle]]) -> str:
    if len(learned) < LEAST_SEEDS:
        return f", fewer than {LEAST_SEEDS}: not judged."
    gains = []
    for keep in _judged(scale.needles.shares):
        for other in OTHERS:
            values = [
                np.mean(find_needle(one, INFLUENCE, keep).accuracy)
                - np.mean(find_needle(one, other, keep).accuracy)
                for one in learned
            ]
            gains.append(_Gain(other, keep, seed_interval(np.array(values))))
    return f". {_verdict(gains, points)}"


def _judged(shares: Sequence[float]) -> Iterator[float]:
    return (keep for keep in shares if keep <= CLEAR_SHARE)


def _verdict(gains: Sequence[_Gain], form: Callable[[Interval], str]) -> str:
    """Return the conclusion, and the gain over each policy at each share."""
    by_policy = {other: [one.interval for one in gains if one.other == other] for other in OTHERS}
    more = [other for other, found in by_policy.items() if all(one.low > 0 for one in found)]
    less = [other for other, found in by_policy.items() if all(one.high < 0 for one in found)]
    sides = [
        f"{side} {' and '.join(found)}"
        for side, found in (("more than", more), ("less than", less))
        if found
    ]
    unclear = [other for other in OTHERS if other not in (*more, *less)]
    if unclear:
        sides.append(f"no clear difference from {' and '.join(unclear)}")
    verdict = "Influence keeps what is far" if len(more) == len(OTHERS) else "The claim does not hold"
    listed = ", ".join(f"{form(one.interval)} over {one.other} at {one.keep:g}" for one in gains)
    return f"{verdict}: {'; '.join(sides)} ({listed})."
