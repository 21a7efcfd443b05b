"""The study's conclusions. A rule, written before any result, turns results into sentences.

On text, the rule compares policies on the same windows, with a bootstrap over documents. It uses the main
length of context and the shares `JUDGED_SHARES`.

1. Ordered: the mean loss of influence is below that of uniform, and the mean loss of uniform is below that
   of random (a mean over its seeds). The claim requires this at `MIN_ORDERED` of the shares.
2. Clear: at each judged share of at most `CLEAR_SHARE`, both differences (uniform minus influence, and
   random minus uniform) have 95 % intervals above zero.

The claim holds for a model if both conditions hold for each of its seeds. The sentence gives the number of
ordered shares and names the unclear differences. Recency is not part of the claim. At each share, another
sentence names the policy with the smaller loss, or reports that the interval contains zero.

Among noise, the rule judges a model only if it answers at least `MIN_LEARNED` of the tokens correctly
without pruning. Otherwise the model has not learned the task. Fine-tuning with a second loss helps if, at
the smallest share, its loss minus the loss of as many steps without it has an interval below zero.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from birdie_jax.evaluation_record import Interval
from studies.pruning.conditions import (
    Results,
    TextLosses,
    accuracy_difference,
    find_needle,
    needles_of,
    pruned_results,
)
from studies.pruning.config import NEEDLES, TEXT, TEXT_PRUNED
from studies.pruning.plans import INFLUENCE, JUDGED_SHARES, RANDOM, RECENCY, UNIFORM, Run, Scale

MIN_ORDERED = 4
CLEAR_SHARE = 0.3
MIN_LEARNED = 0.5


def judgements(scale: Scale, results: Results) -> list[str]:
    """Return all sentences that follow from the results."""
    found = []
    for run, result, losses in pruned_results(results):
        found.append(f"{_title(run)}, text: {judge_claim(losses, scale)}")
        found.append(f"{_title(run)}, text: {judge_recency(losses, scale)}")
        found += [f"{_title(run)}, {line}" for line in judge_needles(result["fine_tuned"])]
        found += [f"{_title(run)}, {line}" for line in judge_tuning(result["fine_tuned"], scale)]
    return found


def _title(run: Run) -> str:
    return f"**{run.model}, seed {run.seed}**"


def judged_shares(losses: TextLosses, scale: Scale) -> list[float]:
    """Return the judged shares that were measured."""
    return [keep for keep in losses.shares(INFLUENCE, scale.main_context) if keep in JUDGED_SHARES]


def judge_claim(losses: TextLosses, scale: Scale) -> str:
    """Return a sentence: whether influence is better than uniform, and uniform better than random."""
    shares = judged_shares(losses, scale)
    ordered, unclear = [], []
    for keep in shares:
        found = [losses.get(policy, keep, scale.main_context) for policy in (INFLUENCE, UNIFORM, RANDOM)]
        influence, uniform, random = found
        assert influence is not None and uniform is not None and random is not None
        if influence.losses.mean() < uniform.losses.mean() < random.losses.mean():
            ordered.append(keep)
        if keep <= CLEAR_SHARE:
            for name, one, other in (("uniform", influence, uniform), ("random", uniform, random)):
                if losses.difference(one, other).low <= 0:
                    unclear.append(f"{name} at {keep:g}")
    holds = len(ordered) >= min(MIN_ORDERED, len(shares)) and not unclear
    counted = f"influence < uniform < random in loss at {len(ordered)} of {len(shares)} shares"
    clear = (
        f"both differences off zero at {CLEAR_SHARE:g} and less"
        if not unclear
        else f"not above zero: {', '.join(unclear)}"
    )
    return f"{counted}; {clear}. The claim {'holds' if holds else 'does not hold'}."


def judge_recency(losses: TextLosses, scale: Scale) -> str:
    """Return a sentence: the shares at which influence, recency or neither has the smaller loss."""
    sides: dict[str, list[str]] = {"influence": [], "recency": [], "neither": []}
    for keep in judged_shares(losses, scale):
        influence = losses.get(INFLUENCE, keep, scale.main_context)
        recency = losses.get(RECENCY, keep, scale.main_context)
        assert influence is not None and recency is not None
        sides[_smaller(losses.difference(influence, recency))].append(f"{keep:g}")
    parts = [f"{name} at {', '.join(shares)}" for name, shares in sides.items() if shares]
    return f"the smaller loss of influence and recency: {'; '.join(parts)}."


def _smaller(recency_minus_influence: Interval) -> str:
    if recency_minus_influence.low > 0:
        return "influence"
    return "recency" if recency_minus_influence.high < 0 else "neither"


def judge_needles(fine_tuned: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each query: the accuracy of influence compared with uniform and recency."""
    for what, result in fine_tuned.items():
        if not what.startswith(NEEDLES):
            continue
        needles = needles_of(result)
        query = f"items among noise, query {what.removeprefix(f'{NEEDLES}_')}"
        dense = needles[0].mean.mean
        if dense < MIN_LEARNED:
            yield f"{query}: {100 * dense:.0f} % right with all tokens: not learned, not judged."
            continue
        parts = []
        for keep in sorted({one.keep for one in needles[1:] if one.keep <= CLEAR_SHARE}, reverse=True):
            influence = find_needle(needles, INFLUENCE, keep)
            others = {one.policy for one in needles}
            compared = [
                f"{points(accuracy_difference(find_needle(needles, other, keep), influence))} over {other}"
                for other in (UNIFORM, RECENCY)
                if other in others
            ]
            parts.append(f"at {keep:g} influence {100 * influence.mean.mean:.0f} %, {', '.join(compared)}")
        yield f"{query}: {100 * dense:.0f} % right with all tokens; {'; '.join(parts)}."


def judge_tuning(fine_tuned: Mapping[str, Any], scale: Scale) -> Iterator[str]:
    """Yield a sentence: the effect of fine-tuning's second loss on pruned and on whole prompts."""
    if not {TEXT, TEXT_PRUNED} <= set(fine_tuned):
        return
    without, tuned = (TextLosses(fine_tuned[what]["losses"]) for what in (TEXT, TEXT_PRUNED))
    keep = min(scale.tuned_variant.shares)
    found = [one.get(INFLUENCE, keep, scale.main_context) for one in (without, tuned)]
    assert found[0] is not None and found[1] is not None
    pruned = without.difference(found[0], found[1])
    dense = without.difference(without.dense(scale.main_context), tuned.dense(scale.main_context))
    verdict = "helps" if pruned.high < 0 else "harms" if pruned.low > 0 else "makes no clear difference"
    yield (
        f"{scale.text_tuning.steps} steps with the second loss minus without it: {nats(pruned)} at keep "
        f"{keep:g} by influence, {nats(dense)} with all tokens. It {verdict} for pruned prompts."
    )


def nats(interval: Interval) -> str:
    """Return a difference of losses with its interval."""
    return f"{interval.mean:+.4f} [{interval.low:+.4f}, {interval.high:+.4f}]"


def points(interval: Interval) -> str:
    """Return a difference of accuracies in points, with its interval."""
    return f"{100 * interval.mean:+.0f} [{100 * interval.low:+.0f}, {100 * interval.high:+.0f}] points"
