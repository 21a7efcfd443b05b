"""Statements about which memory retrieves: matrix states after the mixture and without it."""

from collections.abc import Iterator
from typing import Any

from studies.retrieval.conditions import Condition
from studies.retrieval.plans import DEFAULT_MODEL
from studies.retrieval.scales import SCALES
from studies.retrieval.worth import numbers_of_state
from studies.statements.figures import (
    Outcomes,
    Records,
    bits,
    by_seed,
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

_BIRDIE = on("docs/what_birdie_does.md")
_MIXERS = on("docs/which_mixer.md")
_README = on("README.md")
_RETRIEVAL = on("docs/measurements/retrieval.md")

_MIXTURE, _CAUSAL, _SCRATCH = "mixture_fixed_causal", "causal_lm_causal", "scratch"
_DELTANET, _MAMBA = Condition("gated_deltanet", _MIXTURE), Condition("mamba2", _MIXTURE)
_SMALL_DELTANET = Condition("gated_deltanet_equal_state", _MIXTURE)
_SMALL_MAMBA = Condition("mamba2_equal_state", _MIXTURE)
_SMALL_STATES = (_SMALL_DELTANET, _SMALL_MAMBA, Condition(DEFAULT_MODEL, _MIXTURE))


def statements(records: Records) -> Iterator[Statement]:
    """Yield the statements on all pages."""
    results = records["retrieval", "memory"]
    memory = Outcomes(SCALES["memory"], results)
    yield from _of_memory(memory, results)
    yield from _of_controls(memory)
    yield from _of_table(memory, results)


def _of_memory(memory: Outcomes, results: Any) -> Iterator[Statement]:
    gated = Condition(DEFAULT_MODEL, _MIXTURE)
    deltanet, mamba, small_deltanet = (
        memory.gap(exact(8), one, gated) for one in (_DELTANET, _MAMBA, _SMALL_DELTANET)
    )
    small_mamba = memory.gap(exact(8), gated, _SMALL_MAMBA)
    numbers = {numbers_of_state(run) for run in results if (run.model, run.procedure) in _SMALL_STATES}
    yield _RETRIEVAL("With {} numbers of state it depends on the model", listed(numbers, ","))
    steps = {one: ends(reached(memory.of(one))) for one in (_DELTANET, _MAMBA, gated)}
    less = [memory.gap(bits, gated, one).mean for one in (_DELTANET, _MAMBA)]
    failed = memory.of(_SMALL_MAMBA)
    yield _BIRDIE(
        "on eight entries, Gated DeltaNet is {0.mean:.0f} points above Gated SSM+ (95 %: {0:.0f}) and "
        "Mamba-2 {1.mean:.0f} ({1:.0f}).",
        *(deltanet, mamba),
    )
    yield _BIRDIE("as Gated SSM+, Mamba-2 is {:.0f} points below it", small_mamba.mean)
    yield _RETRIEVAL(
        "A matrix state of its own size retrieves more, as predicted ({0} seeds each). On eight entries "
        "`gated_deltanet` is {1.mean:.0f} points above `gated_ssm_plus` (95 %: {1:.0f}) and `mamba2` "
        "{2.mean:.0f} ({2:.0f}); at least 10 were predicted. Half right on two entries takes {3:.0f} to "
        "{4:.0f} and {5:.0f} to {6:.0f} steps, not {7:,.0f} to {8:,.0f}. Text takes {9:.2f} and {10:.2f} "
        "bits a byte less.",
        *(word(len(failed)), deltanet, mamba, *steps[_DELTANET], *steps[_MAMBA], *steps[gated], *less),
    )
    yield _RETRIEVAL(
        "`gated_deltanet` is {0.mean:.0f} points above `gated_ssm_plus` on eight entries ({0:.0f}). "
        "`mamba2` is {1.mean:.0f} points below it ({1:.0f}): {2} of its {3} fine-tunings gets to half "
        "right on two entries.",
        *(
            small_deltanet,
            small_mamba,
            word(len(tunings(failed))),
            word(sum(len(one.times) for one in failed)),
        ),
    )
    yield _MIXERS(
        "With eight entries it is {0.mean:.0f} points more for `mamba2` (95 %: {0:.0f}) and {1.mean:.0f} "
        "for `gated_deltanet` ({1:.0f}).",
        *(mamba, deltanet),
    )
    yield _MIXERS(
        "`mamba2` is {0.mean:.0f} points below ({0:.0f}). `gated_deltanet` is {1.mean:.0f} above, which "
        "three seeds do not settle ({1:.0f}).",
        *(small_mamba, small_deltanet),
    )
    yield _MIXERS("`mamba2` takes {:.2f} bits a byte less.", memory.gap(bits, _DELTANET, _MAMBA).mean)


def _of_controls(memory: Outcomes) -> Iterator[Statement]:
    """Yield the statements on memories after the mixture, after causal LM and without pre-training."""
    procedures = {_MIXTURE: "the mixture", _CAUSAL: "causal LM", _SCRATCH: "none"}
    for model in ("gated_deltanet", "mamba2", DEFAULT_MODEL):
        for procedure, title in procedures.items():
            found = Condition(model, procedure)
            outcomes = memory.of(found)
            steps, right = by_seed(medians(outcomes), ",.0f"), by_seed(map(exact(8), outcomes), ".0f")
            passages = memory.mean(f1, found)
            yield _BIRDIE("| `{}` | {} | {} | {} | {:.0f} |", model, title, steps, right, passages)
    yield _BIRDIE("the mean F1 on passages after {} steps", SCALES["memory"].extraction_tuning.steps)
    causal, scratch = (
        [one for mixture in (_DELTANET, _MAMBA) for one in memory.of(mixture._replace(procedure=name))]
        for name in (_CAUSAL, _SCRATCH)
    )
    yield _BIRDIE(
        "{} of these models get to half right after causal LM, and {} without pre-training",
        *map(got_there, (causal, scratch)),
    )
    gaps = [
        memory.gap(read, mixture, mixture._replace(procedure=_CAUSAL))
        for read in (exact(8), f1)
        for mixture in (_MAMBA, _DELTANET)
    ]
    yield _BIRDIE(
        "Mamba-2 has {0.mean:.0f} points more after the mixture than after causal LM ({0:.0f}). For Gated "
        "DeltaNet no difference is shown: {1.mean:.0f} ({1:.0f}).",
        *gaps[:2],
    )
    of_scratch = [
        memory.gap(exact(8), mixture, mixture._replace(procedure=_SCRATCH))
        for mixture in (_MAMBA, _DELTANET)
    ]
    yield _BIRDIE(
        "Against no pre-training none is shown for either: {0.mean:.0f} ({0:.0f}) and {1.mean:.0f} "
        "({1:.0f}).",
        *of_scratch,
    )
    yield _RETRIEVAL(
        "Against no pre-training, the mixture has {0.mean:.0f} ({0:.0f}) and {1.mean:.0f} ({1:.0f}) points "
        "more on eight entries",
        *of_scratch,
    )
    yield _RETRIEVAL(
        "On eight entries `mamba2` has {0.mean:.0f} points more after the mixture than after causal LM (95 "
        "%: {0:.0f}) and `gated_deltanet` {1.mean:.0f} ({1:.0f}). On passages F1 is {2.mean:.0f} ({2:.0f}) "
        "and {3.mean:.0f} ({3:.0f}) points higher.",
        *gaps,
    )
    yield _RETRIEVAL(
        "Half right on two entries takes {:,.0f} steps or more after causal LM, where {} get there, and "
        "{:,.0f} or more without pre-training, where {} do. Right on eight entries are at most {:.0f} % "
        "and {:.0f} %.",
        *(ends(reached(causal))[0], got_there(causal), ends(reached(scratch))[0], got_there(scratch)),
        *(ends(map(exact(8), one))[1] for one in (causal, scratch)),
    )


def _of_table(memory: Outcomes, results: Any) -> Iterator[Statement]:
    gated = Condition(DEFAULT_MODEL, _MIXTURE)
    titles = {
        _MAMBA: "`mamba2`",
        _DELTANET: "`gated_deltanet`",
        gated: "`gated_ssm_plus`",
        _SMALL_DELTANET: "`gated_deltanet`, a small state",
        _SMALL_MAMBA: "`mamba2`, a small state",
    }
    for one, title in titles.items():
        outcomes = memory.of(one)
        numbers = {numbers_of_state(run) for run in results if (run.model, run.procedure) == one}
        steps = by_seed(medians(outcomes), ",.0f") if reached(outcomes) else "more than 4,000"
        yield _MIXERS(
            "| {} | {} | {} | {} | {:.2f} |",
            *(title, listed(numbers, ","), steps, by_seed(map(exact(8), outcomes), ".0f")),
            memory.mean(bits, one),
        )
