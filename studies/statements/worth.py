"""Statements about what the mixture is worth, and wider steps of fine-tuning."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from birdie_jax.objectives.mixtures import make_mixture
from studies.class_objective import GROUPS
from studies.retrieval.curriculum import EXACT
from studies.retrieval.fine_tuning import PHONEBOOK
from studies.retrieval.plans import runs_of
from studies.retrieval.scales import SCALES
from studies.statements.figures import (
    Outcomes,
    Records,
    bits,
    by_seed,
    copied,
    copying,
    ends,
    exact,
    f1,
    got_there,
    listed,
    medians,
    reached,
    tunings,
    word,
)
from studies.statements.statement import Statement, on

_README = on("README.md")
_BIRDIE = on("docs/what_birdie_does.md")
_MIXERS = on("docs/which_mixer.md")
_RETRIEVAL = on("docs/measurements/retrieval.md")

_MIXTURE, _CAUSAL, _SCRATCH, _FEWER = (
    "mixture_fixed_causal",
    "causal_lm_causal",
    "scratch",
    "causal_lm_fewer",
)
_BOTH_WAYS, _UL2 = "mixture_fixed", "ul2_causal"
_SCALES = ("worth", "worth_wide", "memory", "direction", "verdict")


def statements(records: Records) -> Iterator[Statement]:
    """Yield the statements on all pages."""
    worth, wide = (Outcomes(SCALES[name], records["retrieval", name]) for name in ("worth", "worth_wide"))
    for name in _SCALES:
        done = sum(run.scale == name for run in records["retrieval", name])
        yield _RETRIEVAL("| `{}` | {} of {} |", name, done, len(list(runs_of(SCALES[name]))))
    yield from _of_size(records["retrieval", "worth"])
    yield from _of_commits(records["retrieval", "worth"])
    yield from _of_worth(worth)
    yield from _of_part_of_language(worth)
    yield from _of_fine_tuned(worth)
    yield from _of_directions(worth)
    yield from _of_wide(worth, wide, records["retrieval", "worth_wide"])


def _of_size(results: Any) -> Iterator[Statement]:
    pretraining = next(result for run, result in results.items() if run.procedure == _MIXTURE)[
        "pretraining"
    ]
    layers, parameters = (
        pretraining["config"]["model"]["layers"],
        pretraining["summary"]["parameters"] / 1e6,
    )
    tokens = pretraining["positions"] / 1e6
    mixture = make_mixture("small_models", pretraining["config"]["batching"]["length"])
    copies = {*GROUPS["short copying"], *GROUPS["longer copying"]}
    weights = dict(zip(mixture.names, mixture.weights, strict=True))
    share = sum(
        weights[name] for name, group in zip(mixture.names, mixture.groups, strict=True) if group in copies
    )
    yield _README(
        "A dot is one Gated SSM+ of {:.2f}M parameters, pre-trained on {:.1f}M tokens", parameters, tokens
    )
    yield _BIRDIE("of {} layers and {:.2f}M parameters on {:.1f}M tokens", layers, parameters, tokens)
    yield _MIXERS("each model has {:.2f}M parameters, is pre-trained on {:.1f}M tokens", parameters, tokens)
    yield _BIRDIE(
        "The mixture is `small_models`: {:.0f} % of its examples are copying",
        100 * share / sum(weights.values()),
    )


def _of_commits(results: Any) -> Iterator[Statement]:
    commits: dict[bool, set[str]] = {True: set(), False: set()}
    for run, result in results.items():
        commits[run.procedure == _BOTH_WAYS].add(result["circumstances"]["commit"][:7])
    yield _RETRIEVAL(
        "The last {} runs (`mixture_fixed`) are of {}, the others of {}.",
        word(sum(run.procedure == _BOTH_WAYS for run in results)),
        *(listed(found, "") for found in (commits[True], commits[False])),
    )


def _of_worth(worth: Outcomes) -> Iterator[Statement]:
    mixture, causal, scratch, fewer, ul2 = map(worth.of, (_MIXTURE, _CAUSAL, _SCRATCH, _FEWER, _UL2))
    steps = ends(reached(mixture))
    price = worth.gap(bits, _MIXTURE, _CAUSAL)
    per_cent = 100 * price.mean / worth.mean(bits, _CAUSAL)
    tests = [worth.p(_MIXTURE, name) for name in (_CAUSAL, _SCRATCH, _FEWER)]
    yield _README(
        "After the mixture {} models learn to look up numbers in a phone book of two names: half of the "
        "answers are right after {:,.0f} to {:,.0f} fine-tuning steps. {} gets there in 4,000 steps after "
        "causal language modelling, and {} without pre-training. The mixture costs {:.0f} % more bits a "
        "byte of text.",
        *(got_there(mixture), *steps, got_there(causal).capitalize(), got_there(scratch), per_cent),
    )
    yield _BIRDIE("Mixture: {} runs get there, after {:,.0f} to {:,.0f} steps.", got_there(mixture), *steps)
    yield _BIRDIE("Causal LM: {} runs gets there in 4,000 steps.", got_there(causal))
    yield _BIRDIE("Causal LM with as many language targets as the mixture: {}.", got_there(fewer))
    yield _BIRDIE("No pre-training: {}.", got_there(scratch))
    yield _BIRDIE("the log-rank p is {} for the mixture against each of these three", listed(tests, ".3f"))
    yield _BIRDIE(
        "the mixture costs {0.mean:.2f} bits a byte of language more than causal LM (95 %: {0:.2f}), "
        "which is {1:.0f} %.",
        *(price, per_cent),
    )
    yield _BIRDIE("Language, at this size: {:.0f} % more bits a byte of held-out text.", per_cent)
    yield _RETRIEVAL(
        "After pre-training on the mixture, {} runs learn to look up numbers within 4,000 steps of "
        "fine-tuning; after causal LM or without pre-training, {} does.",
        *(got_there(mixture), listed({got_there(causal): 0, got_there(scratch): 0}, "")),
    )
    yield _RETRIEVAL("where the controls do not, and costs {:.0f} % more bits a byte", per_cent)
    yield _RETRIEVAL(
        "After the mixture, read causally, {} runs get to half right on two entries, at medians of "
        "{:,.0f} to {:,.0f} steps of fine-tuning. In 4,000 steps {} does after causal LM, and {} without "
        "pre-training. The log-rank p is {} against each",
        *(got_there(mixture), *steps, got_there(causal), got_there(scratch), listed(tests[:2], ".3f")),
    )
    yield _RETRIEVAL(
        "{} of their {} fine-tunings got there (seed {} without pre-training, after {} steps)",
        word(len(tunings([*causal, *scratch]))).capitalize(),
        sum(len(one.times) for one in [*causal, *scratch]),
        listed([seed for seed, one in worth.by_seed(_SCRATCH).items() if tunings([one])], ""),
        listed(tunings(scratch), ",.0f"),
    )
    yield _RETRIEVAL("UL2 ({} seeds): {} gets there.", word(len(ul2)), word(len(reached(ul2))))
    yield _RETRIEVAL(
        "What it costs: {0.mean:.2f} bits a byte of held-out text ({0:.2f}), {1:.0f} % more than causal "
        "LM.",
        *(price, per_cent),
    )


def _of_part_of_language(worth: Outcomes) -> Iterator[Statement]:
    fewer, causal = worth.of(_FEWER), worth.of(_CAUSAL)
    less, whole = (
        [worth.gap(exact(entries), name, _CAUSAL) for entries in (2, 8)] for name in (_FEWER, _MIXTURE)
    )
    yield _RETRIEVAL(
        "Less language explains a part: {:.0f} of the {:.0f} points on two entries, and {:.0f} of {:.0f} "
        "on eight. After causal LM with the mixture's language targets alone no median of six gets there "
        "either, p = {:.3f}. But less causal LM is better than more for this: {} of its {} fine-tunings "
        "got there, after {:,} steps or more, and {} of {} after the whole of causal LM. On two entries "
        "it has {:.0f} points more than the whole (95 %: {:.0f}).",
        *(less[0].mean, whole[0].mean, less[1].mean, whole[1].mean, worth.p(_MIXTURE, _FEWER)),
        *(len(tunings(fewer)), sum(len(one.times) for one in fewer), tunings(fewer)[0]),
        *(word(len(tunings(causal))), sum(len(one.times) for one in causal), less[0].mean, less[0]),
    )


def _of_fine_tuned(worth: Outcomes) -> Iterator[Statement]:
    passages = worth.gap(f1, _CAUSAL, _SCRATCH)
    yield _RETRIEVAL("On passages its F1 is {0.mean:.1f} points higher than without ({0:.1f}).", passages)
    passages = worth.gap(f1, _MIXTURE, _CAUSAL)
    yield _RETRIEVAL(
        "After fine-tuning, {:.0f} to {:.0f} % of the numbers of two entries are right, {:.0f} to {:.0f} "
        "% of four, and {:.0f} to {:.0f} % of eight. After causal LM they are {:.0f} to {:.0f} %, {:.0f} "
        "to {:.0f} %, and {:.0f} to {:.0f} %. On passages F1 is {:.0f} points higher ({:.0f}).",
        *(end for entries in (2, 4, 8) for end in ends(map(exact(entries), worth.of(_MIXTURE)))),
        *(end for entries in (2, 4, 8) for end in ends(map(exact(entries), worth.of(_CAUSAL)))),
        *(passages.mean, passages),
    )


def _of_directions(worth: Outcomes) -> Iterator[Statement]:
    both = worth.by_seed(_BOTH_WAYS)
    less, fewer = (worth.gap(read, _MIXTURE, _BOTH_WAYS) for read in (bits, copying))
    yield _RETRIEVAL(
        "Reading direction ({} seeds): both ways takes {} steps, causally {} (p = {:.1f}): no difference "
        "in steps is shown. Both ways takes {:.3f} bits a byte less ({:.3f}), and copies {:.1f} points "
        "fewer tokens ({:.1f}).",
        word(len(both)),
        by_seed(medians(both.values()), ",.0f"),
        by_seed(medians(worth.by_seed(_MIXTURE)[seed] for seed in both), ",.0f"),
        *(worth.p(_BOTH_WAYS, _MIXTURE), less.mean, less, fewer.mean, fewer),
    )


class _Tuning(NamedTuple):
    """A fine-tuning after causal LM.

    Attributes:
        seed: the seed of its run.
        right: the per cent of the test answers on two entries that are right.
        from_book: the per cent that are a number of the book.
        reached: the steps at which half of the validation answers on two entries are right.
    """

    seed: int
    right: float
    from_book: float
    reached: list[int]


def _tunings_after_causal_lm(results: Any) -> list[_Tuning]:
    """Return all fine-tunings, the worst first."""
    found = [
        _Tuning(
            run.seed,
            *(
                100 * float(np.average(test["scores"][metric], weights=test["weights"]))
                for metric in (EXACT, "copied_entry")
            ),
            [point["step"] for point in one["curve"] if point.get(f"entries_2/{EXACT}", 0) >= 0.5],
        )
        for run, result in results.items()
        if run.procedure == _CAUSAL
        for one in result["fine_tuned"][PHONEBOOK]["repeats"]
        for test in [one["test"]["entries_2"]]
    ]
    return sorted(found, key=lambda one: one.right)


def _of_wide(worth: Outcomes, wide: Outcomes, results: Any) -> Iterator[Statement]:
    mixture, causal = wide.of(_MIXTURE), wide.of(_CAUSAL)
    lengths = [SCALES[name].phonebook_tuning.length for name in ("worth_wide", "worth")]
    steps, book = listed(medians(mixture), ",.0f"), wide.mean(copied, _CAUSAL)
    tuned = _tunings_after_causal_lm(results)
    *others, best = tuned
    once = [one.seed for one in others if one.reached]
    yield _BIRDIE(
        "With {:g} times as many positions a step, causal LM gets there with {} seeds, and the mixture "
        "after {} steps. Causal LM then writes a number of the book in {:.0f} % of its answers on two "
        "entries",
        *(lengths[0] / lengths[1], got_there(causal), steps, book),
    )
    yield _BIRDIE(
        "{} of the {} fine-tunings of these {} runs has {:.0f} % right at its end.",
        word(sum(one.right >= 50 for one in tuned)).capitalize(),
        *(word(len(tuned)), word(len(causal)), best.right),
    )
    yield _RETRIEVAL(
        "All {} runs are done. By the rule, the result of `worth`", word(len(causal + mixture))
    )
    yield _RETRIEVAL(
        "Causal LM gets there with {} seeds in 4,000 steps. After the mixture the medians are {} steps.",
        *(got_there(causal), steps),
    )
    yield _RETRIEVAL(
        "After it {:.0f} % of the test answers on two entries are a number of the book, and {:.0f} % are "
        "the asked one: about half, as if it drew the entry. With the rows of `worth` they are {:.0f} % "
        "and {:.0f} %. After the mixture they are {:.1f} and {:.1f} %. On eight entries causal LM has "
        "{:.0f} % right.",
        *(book, wide.mean(exact(2), _CAUSAL), worth.mean(copied, _CAUSAL), worth.mean(exact(2), _CAUSAL)),
        *(wide.mean(copied, _MIXTURE), wide.mean(exact(2), _MIXTURE), wide.mean(exact(8), _CAUSAL)),
    )
    yield _RETRIEVAL(
        "One of its {} fine-tunings begins to look up: that of seed {} from step {:,}, with {:.0f} % of "
        "the test answers right and {:.0f} % from the book. The other {} have {:.0f} to {:.0f} % right. "
        "One fine-tuning each of seeds {} reached half right in a single validation of 64 questions",
        *(word(len(tuned)), best.seed, best.reached[0], best.right, best.from_book),
        *(word(len(others)), *ends(one.right for one in others)),
        listed(once, "") if max(len(one.reached) for one in others) == 1 else "more",
    )
