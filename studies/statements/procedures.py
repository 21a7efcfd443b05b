"""Statements about the earlier runs, how a small model copies, and recall."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from birdie_jax.evaluation_record import Interval
from studies.class_objective import mean_of_classes
from studies.comparison import mean_with_interval, paired_difference
from studies.recall import best_rates
from studies.retrieval.conditions import (
    Condition,
    Measure,
    conditions_of,
    measures_of,
    result_of,
    scores_of,
)
from studies.retrieval.fine_tuning import EXTRACTION, PHONEBOOK
from studies.retrieval.measuring import SQUAD
from studies.retrieval.plans import DEFAULT_MODEL, LANGUAGE
from studies.retrieval.scales import SCALES
from studies.small_mixtures import accuracy_by_class
from studies.statements.figures import Outcomes, Records, by_seed, copying, ends, listed, word
from studies.statements.statement import Statement, on
from studies.tables import percentage

_BIRDIE = on("docs/what_birdie_does.md")
_MIXERS = on("docs/which_mixer.md")

_CAUSAL, _CAUSAL_BOTH = "causal_lm_causal", "causal_lm"
_MIXTURE_CAUSAL, _MIXTURE_BOTH, _FIXED = "mixture_causal", "mixture", "mixture_fixed"
_TABLE = (_CAUSAL, _CAUSAL_BOTH, _MIXTURE_CAUSAL, _MIXTURE_BOTH)
_BITS = Measure("", "pretrained", (LANGUAGE,), "bits_per_byte")
_COPYING = Measure("", "pretrained", ("copying",), "token_accuracy")
_PASSAGES = Measure("", EXTRACTION, (EXTRACTION,), "f1")


def statements(records: Records) -> Iterator[Statement]:
    """Yield the statements on all pages."""
    small = _Small(records["retrieval", "small"])
    yield from _of_answers(small)
    yield from _of_counts(small)
    yield from _of_other_conditions(small)
    yield from _of_what_it_does_not_do(small)
    yield from _of_copies(small, records)
    yield from _of_recall(records["recall", "small"])


class _Small:
    """The results of the scale `small`."""

    def __init__(self, results: Any) -> None:
        self.results = results
        self.conditions = conditions_of(results)

    def per_cent(self, measure: Measure, procedure: str, model: str = DEFAULT_MODEL) -> list[float]:
        """Return a measure of each seed."""
        condition = Condition(model, procedure)
        return [
            percentage(mean_with_interval(scores_of(self.results, condition, [seed], measure)).mean)
            for seed in self.conditions[condition]
        ]

    def right(
        self, cell: str, procedure: str, model: str = DEFAULT_MODEL, metric="exact_match"
    ) -> list[float]:
        """Return the per cent of right answers of each seed."""
        return self.per_cent(Measure("", PHONEBOOK, (cell,), metric), procedure, model)

    def mean(self, measure: Measure, procedure: str) -> float:
        """Return the mean of a measure over seeds."""
        condition = Condition(DEFAULT_MODEL, procedure)
        return mean_with_interval(
            scores_of(self.results, condition, self.conditions[condition], measure)
        ).mean

    def difference(self, measure: Measure, first: str, second: str) -> Interval:
        """Return the second mean less the first, over all their seeds."""
        return paired_difference(
            *(
                scores_of(self.results, one, self.conditions[one], measure)
                for one in (Condition(DEFAULT_MODEL, name) for name in (first, second))
            )
        )

    def times(self, procedure: str) -> list[int | None]:
        """Return the step to half right on two entries of each seed; None if it does not get there."""
        condition = Condition(DEFAULT_MODEL, procedure)
        return [
            result_of(self.results, condition, seed)["fine_tuned"][PHONEBOOK]["steps_to_exact_match"][
                "entries_2"
            ]["half"]
            for seed in self.conditions[condition]
        ]

    def learned(self, *procedures: str) -> tuple[int, int]:
        """Return how many runs get to half right, and how many there are."""
        times = [time for name in procedures for time in self.times(name)]
        return sum(time is not None for time in times), len(times)


def _of_answers(small: _Small) -> Iterator[Statement]:
    for entries, title in ((2, "number looked up exactly, 2 entries"), (8, "8 entries")):
        cells = [by_seed(small.right(f"entries_{entries}", name), ".0f") for name in _TABLE]
        yield _BIRDIE("| {} | {} % | {} % | {} % | {} % |", title, *cells)
    yield _BIRDIE(
        "| questions on passages, F1 | {} % | {} % | {} % | {} % |",
        *(by_seed(small.per_cent(_PASSAGES, name), ".0f") for name in _TABLE),
    )
    yield _BIRDIE(
        "| held-out text, bits a byte, mean | {:.2f} | {:.2f} | {:.2f} | {:.2f} |",
        *(small.mean(_BITS, name) for name in _TABLE),
    )
    bits = small.difference(_BITS, _MIXTURE_BOTH, _MIXTURE_CAUSAL)
    copies = small.difference(_COPYING, _MIXTURE_BOTH, _MIXTURE_CAUSAL)
    yield _BIRDIE(
        "both ways takes {:.3f} bits a byte less (95 %: {:.3f} to {:.3f}), and copies {:.1f} points fewer "
        "tokens without fine-tuning ({:.1f} to {:.1f}).",
        *(bits.mean, bits.low, bits.high),
        *(100 * value for value in (copies.mean, copies.low, copies.high)),
    )


def _of_counts(small: _Small) -> Iterator[Statement]:
    eight = small.right("entries_8", _MIXTURE_CAUSAL)
    mixture = small.learned(_MIXTURE_CAUSAL, _MIXTURE_BOTH, _FIXED)
    causal = small.learned(_CAUSAL, _CAUSAL_BOTH)
    (time,) = (time for name in (_CAUSAL, _CAUSAL_BOTH) for time in small.times(name) if time is not None)
    yield _BIRDIE(
        "With rows of {} positions and read both ways, {} of {} earlier runs learned it after {:,} steps.",
        *(SCALES["small"].phonebook_tuning.length, *map(word, causal), time),
    )
    yield _BIRDIE(
        "These runs had three seeds or one, larger books that grow at fixed steps, and {:,} steps of "
        "fine-tuning.",
        SCALES["small"].phonebook_tuning.steps,
    )
    yield _BIRDIE(
        "The same condition has {:.0f} % with one seed and {:.0f} % with the next, so count runs. {} of "
        "{} runs of the mixture learned to look up (three conditions, pooled after the fact), against {} "
        "of {} of causal LM.",
        *(*eight[:2], word(mixture[0]).capitalize(), word(mixture[1]), *map(word, causal)),
    )
    fixed, bandit = small.learned(_FIXED), small.learned("birdie")
    yield _BIRDIE(
        "{} of {} runs in its fixed shares learned to look up too.",
        word(fixed[0]).capitalize(),
        word(fixed[1]),
    )
    losses = {
        name: [
            mean_of_classes(result["pretraining"]["validation_losses"])
            for run, result in small.results.items()
            if (run.model, run.procedure) == (DEFAULT_MODEL, name)
        ]
        for name in ("birdie", _FIXED)
    }
    yield _BIRDIE(
        "The paper's bandit taught {} run of {}, where fixed shares of the same arms taught {}.",
        *(*map(word, bandit), word(fixed[0])),
    )
    yield _BIRDIE(
        "the final validation loss is {:.2f} to {:.2f} nats, against {:.2f} to {:.2f}.",
        *(*ends(losses["birdie"]), *ends(losses[_FIXED])),
    )


def _of_other_conditions(small: _Small) -> Iterator[Statement]:
    def right(procedure: str, model: str = DEFAULT_MODEL) -> list[float]:
        """Return the per cent right on two and on eight entries."""
        return [one for entries in (2, 8) for one in small.right(f"entries_{entries}", procedure, model)]

    yield _BIRDIE("({:.0f} % on two entries, {:.0f} % on eight)", *right("fixed_ratio"))
    yield _BIRDIE(
        "a Transformer looked up {:.0f} % on two entries and {:.0f} % on eight, and {:.0f} and {:.0f} % "
        "after causal LM. Hawk looked up {:.0f} and {:.0f} %.",
        *(*right("birdie", "transformer"), *right(_CAUSAL, "transformer"), *right("birdie", "hawk")),
    )


def _of_what_it_does_not_do(small: _Small) -> Iterator[Statement]:
    def mean(numbers: int, procedure: str, metric: str) -> float:
        return float(np.mean(small.right(f"numbers_{numbers}", procedure, metric=metric)))

    placed = {
        (numbers, name): mean(numbers, name, "number_accuracy")
        for numbers in (2, 4)
        for name in (_MIXTURE_BOTH, _MIXTURE_CAUSAL)
    }
    yield _BIRDIE(
        "Asked for 2 numbers, it puts {:.0f} % of them in their places (read causally {:.0f} %), and "
        "{:.0f} % of its answers are all right. Asked for 4, it puts {:.0f} % ({:.0f} %), and {} answer "
        "is all right.",
        *(placed[2, _MIXTURE_BOTH], placed[2, _MIXTURE_CAUSAL], mean(2, _MIXTURE_BOTH, "exact_match")),
        *(placed[4, _MIXTURE_BOTH], placed[4, _MIXTURE_CAUSAL]),
        "no" if mean(4, _MIXTURE_BOTH, "exact_match") == 0 else "an",
    )
    squad = {run: result[SQUAD] for run, result in small.results.items() if SQUAD in result}
    recurrent = [
        100 * np.average(one["scores"]["f1"], weights=one["weights"])
        for run, one in squad.items()
        if run.model != "transformer"
    ]
    counts = {run.model: len(one["weights"]) for run, one in squad.items()}
    yield _BIRDIE(
        "F1 is below {:.0f} %. The Transformers could read only {} of the {}, and one of their answers "
        "shares a word with the right one.",
        *(np.ceil(max(recurrent)), counts["transformer"], counts[DEFAULT_MODEL]),
    )


def _of_copies(small: _Small, records: Records) -> Iterator[Statement]:
    memory = Outcomes(SCALES["memory"], records["retrieval", "memory"])
    worth = Outcomes(SCALES["worth"], records["retrieval", "worth"])
    gated = [
        *(copying(one) for name in ("mixture_fixed", "mixture_fixed_causal") for one in worth.of(name)),
        *(
            one
            for name in (_MIXTURE_CAUSAL, _MIXTURE_BOTH, _FIXED)
            for one in small.per_cent(_COPYING, name)
        ),
    ]
    large = [
        copying(one)
        for model in ("mamba2", "gated_deltanet")
        for one in memory.of(Condition(model, "mixture_fixed_causal"))
    ]
    measures = measures_of(next(iter(small.results.values())))
    recalled = next(one for one in measures if one.title == "values recalled")
    values = [
        one for name in (_MIXTURE_CAUSAL, _MIXTURE_BOTH, _FIXED) for one in small.per_cent(recalled, name)
    ]
    yield _BIRDIE(
        "After the mixture, Gated SSM+ copies {:.0f} to {:.0f} % of the tokens of passages of {} to {} "
        "tokens, and Mamba-2 and Gated DeltaNet with large states {:.0f} to {:.0f} %. Gated SSM+ recalls "
        "under {:.0f} % of the values of associative recall",
        *(*ends(gated), *ends(SCALES["worth"].measuring.lengths), *ends(large), np.ceil(max(values))),
    )
    results = {run.contender: result for run, result in records["small_mixtures", "small"].items()}
    short = {name: 100 * accuracy_by_class(result)["short_copying"][-1] for name, result in results.items()}
    settings = results["short"]["settings"]
    positions = settings["train.num_steps"] * settings["batching.rows"] * settings["batching.length"]
    yield _BIRDIE(
        "{:.0f} % of the tokens of short copies were right after {:.0f}M tokens, and with 96 % of the "
        "examples on short copying {:.0f} %",
        *(short["language"], positions / 1e6, short["short"]),
    )


def _of_recall(results: Any) -> Iterator[Statement]:
    best = {key: [100 * value for value in values] for key, (_, values, _) in best_rates(results).items()}
    largest = [*best["mamba2", 8192], *best["gated_deltanet", 8192]]
    mamba = [np.mean(values) for (name, _), values in best.items() if name == "mamba"]
    yield _BIRDIE("small models of it recall {:.0f} %", np.mean(best["gated_ssm_plus", 512]))
    yield _MIXERS(
        "with {:,} numbers of state a layer, `mamba2` and `gated_deltanet` recall {} % with every seed. "
        "With {:,}, `mamba2` recalls {:.0f} to {:.0f} %, and `gated_deltanet` {:.0f} to {:.0f} %, "
        "depending on the seed. `mamba` ({:.0f} to {:.0f} %), `birdie_ssm` ({:.0f} %) and the transformer "
        "({:.0f} %) had not learned the task",
        *(8192, listed(largest, ".0f"), 2048, *ends(best["mamba2", 2048])),
        *(*ends(best["gated_deltanet", 2048]), *ends(mamba)),
        *(np.mean(best["birdie_ssm", 512]), np.mean(best["transformer", 8192])),
    )
