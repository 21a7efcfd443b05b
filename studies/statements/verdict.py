"""Statements about whether steering pays: the verdict."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from studies.class_objective import GROUPS, class_of_arm
from studies.mixture_grid import GRID
from studies.mixture_search import PROXIES
from studies.retrieval.pretraining import rewards_of
from studies.retrieval.scales import SCALES
from studies.statements.figures import (
    Gap,
    J,
    Outcomes,
    Records,
    bits,
    copying,
    ends,
    exact,
    f1,
    got_there,
    loss,
    median,
    reached,
    word,
)
from studies.statements.statement import Statement, on
from studies.tables import compare_predictions

_BIRDIE = on("docs/what_birdie_does.md")
_README = on("README.md")
_RETRIEVAL = on("docs/measurements/retrieval.md")
_STEERING = on("docs/measurements/steering.md")

_STEERED, _BEST, _UNIFORM = "steered", "best_fixed", "uniform"
_UNTUNED, _SEARCHED, _PUBLISHED = "untuned", "searched", "published"


def statements(records: Records) -> Iterator[Statement]:
    """Yield the statements on all pages."""
    results = records["retrieval", "verdict"]
    verdict, grid_runs = Outcomes(SCALES["verdict"], results), len(records["mixture_grid", "small"])
    yield from _of_table(verdict, results, grid_runs)
    yield from _of_steered(verdict, results)
    yield from _of_published(verdict, results)
    yield from _of_equal_shares(verdict, grid_runs)
    yield from _of_searched(verdict, results)
    yield from _of_units(verdict)


def _of_table(verdict: Outcomes, results: Any, grid_runs: int) -> Iterator[Statement]:
    yield _BIRDIE(
        "Six ways to choose the shares of the same {} arms, in {} classes.",
        *(len(class_of_arm()), word(len(set(class_of_arm().values())))),
    )
    rows = {
        _UNIFORM: "equal shares of target tokens",
        _SEARCHED: f"the mixture of a search with {PROXIES} runs",
        _STEERED: "steered by learning progress",
        _BEST: f"the best of {len(GRID)} fixed mixtures, found in {grid_runs} runs",
        _PUBLISHED: "the paper's policy, with its full critic",
        _UNTUNED: "equal shares of examples",
    }
    for name, title in rows.items():
        outcomes = verdict.of(name)
        steps = median(outcomes)
        yield _BIRDIE(
            "| {} | {} | {:.1f}M{} | {:.2f} | {:.2f} | {} | {:.0f} |",
            *(title, len(outcomes), _tokens(results, name)),
            {_STEERED: ", at the same cost", _PUBLISHED: ", at a higher cost"}.get(name, ""),
            *(verdict.mean(J, name), verdict.mean(bits, name)),
            f"{steps:,.0f}" if np.isfinite(steps) else "more than 4,000",
            verdict.mean(f1, name),
        )


def _tokens(results: Any, name: str) -> float:
    """Return the millions of tokens that a run of a condition reads."""
    (found,) = {
        result["pretraining"]["positions"] for run, result in results.items() if run.procedure == name
    }
    return found / 1e6


def _of_steered(verdict: Outcomes, results: Any) -> Iterator[Statement]:
    steps = {name: median(verdict.of(name)) for name in (_STEERED, _BEST, _UNIFORM)}
    below_best, above_uniform = verdict.gap(J, _BEST, _STEERED), verdict.gap(J, _STEERED, _UNIFORM)
    p = {name: verdict.p(_STEERED, name) for name in (_BEST, _UNIFORM, _UNTUNED)}
    decisions = {
        len(result["pretraining"]["mixture"])
        for run, result in results.items()
        if run.procedure == _STEERED
    }
    yield _BIRDIE("The steered runs measure every arm {} times.", max(decisions))
    yield _BIRDIE(
        "have a J that is {0.mean:.3f} nats lower (95 %: {0:.3f}) and look up sooner (log-rank p = "
        "{1:.3f}). Against the best fixed mixture the steered J is {2.mean:.3f} nats lower ({2:.3f}), but "
        "the models do not look up sooner (p = {3:.2f}).",
        *(above_uniform, p[_UNIFORM], below_best, p[_BEST]),
    )
    yield _STEERING(
        "In the verdict, with {} other seeds and three times the tokens, the loss of `progress` is {:.3f} "
        "nats lower than that of the best fixed mixture, but {:.3f} higher than that of equal shares at "
        "equal total cost.",
        *(word(len(verdict.of(_STEERED))), below_best.mean, above_uniform.mean),
    )
    yield _RETRIEVAL("All {} runs are done. - By the rule, steering does not win.", len(results))
    yield _RETRIEVAL(
        "Its J is {0.mean:.3f} nats below that of `best_fixed` ({0:.3f}), lower with every seed. But it "
        "does not learn to look up sooner: half right on two entries after a median of {1:,.0f} steps, "
        "and {2:,.0f} with `best_fixed` (log-rank p = {3:.2f}).",
        *(below_best, steps[_STEERED], steps[_BEST], p[_BEST]),
    )
    language = {
        name: 100
        * np.mean(
            [
                sum(decision["probabilities"][one] for one in GROUPS["language"])
                for run, result in results.items()
                if run.procedure == name
                for decision in result["pretraining"]["mixture"]
            ]
        )
        for name in (_STEERED, _BEST, _UNIFORM)
    }
    yield _RETRIEVAL(
        "It gains language: {0.mean:.3f} bits a byte less ({0:.3f}). Over a run `steered` gives {1:.0f} % "
        "of the targets to language, and `best_fixed` {2:.0f} %. On causal LM its validation loss is "
        "{3:.2f} nats lower, on short selective copying {4:.2f} higher.",
        *(verdict.gap(bits, _BEST, _STEERED), language[_STEERED], language[_BEST]),
        verdict.gap(loss("causal_lm"), _BEST, _STEERED).mean,
        verdict.gap(loss("short_selective_copying"), _STEERED, _BEST).mean,
    )
    yield _RETRIEVAL(
        "{:.0f} % of its targets, where `uniform` has {:.0f} % and `steered` {:.0f} %.",
        *(language[_BEST], language[_UNIFORM], language[_STEERED]),
    )
    numbers, passages = (verdict.gap(read, _BEST, _STEERED) for read in (exact(8), f1))
    yield _RETRIEVAL(
        "After fine-tuning no difference is shown: {0.mean:.0f} points fewer numbers of eight entries "
        "({0.high:.0f} fewer to {1.high:.0f} more), {2.mean:.0f} point less F1 ({2.high:.0f} less to "
        "{3.high:.0f} more).",
        *(numbers, _opposite(numbers), passages, _opposite(passages)),
    )
    yield _RETRIEVAL(
        "J of `steered` is {0.mean:.3f} nats above that of `uniform` ({0:.3f}), and it needs {1.mean:.3f} "
        "bits a byte more ({1:.3f}). Half right takes a median of {2:,.0f} steps, and {3:,.0f} after "
        "`uniform` (log-rank p = {4:.3f}). Against `untuned`, the other half of the claim, it is "
        "{5.mean:.3f} nats lower ({5:.3f}) and ahead (p = {6:.3f}).",
        *(above_uniform, verdict.gap(bits, _STEERED, _UNIFORM), steps[_STEERED], steps[_UNIFORM]),
        *(p[_UNIFORM], verdict.gap(J, _UNTUNED, _STEERED), p[_UNTUNED]),
    )


def _opposite(one: Gap) -> Gap:
    return Gap(-one.mean, -one.high, -one.low)


def _of_published(verdict: Outcomes, results: Any) -> Iterator[Statement]:
    below_best, above_uniform = verdict.gap(J, _BEST, _PUBLISHED), verdict.gap(J, _PUBLISHED, _UNIFORM)
    fewer, of_two = (verdict.gap(exact(entries), _BEST, _PUBLISHED) for entries in (8, 2))
    below_untuned = verdict.gap(J, _UNTUNED, _PUBLISHED)
    steps = {name: median(verdict.of(name)) for name in (_PUBLISHED, _BEST, _UNIFORM)}
    yield _BIRDIE(
        "No difference in J from the best fixed mixture shows ({0.high:.3f} nats lower to {1.high:.3f} "
        "higher), and after fine-tuning it looks up {2.mean:.0f} points fewer numbers of eight entries "
        "({2:.0f}). Its J is {3.mean:.3f} nats above that of equal shares of target tokens ({3:.3f}), and "
        "{4.mean:.3f} below that of equal shares of examples ({4:.3f}).",
        *(below_best, _opposite(below_best), fewer, above_uniform, below_untuned),
    )
    yield _RETRIEVAL(
        "No difference in J shows between `published` and `best_fixed` ({0.high:.3f} nats lower to "
        "{1.high:.3f} higher), nor in half right (medians {2:,.0f} and {3:,.0f}, p = {4:.2f}). After "
        "fine-tuning it answers {5.mean:.0f} points fewer numbers of eight entries ({5:.0f}) and "
        "{6.mean:.0f} points fewer of two ({6:.1f}).",
        *(below_best, _opposite(below_best), steps[_PUBLISHED], steps[_BEST]),
        *(verdict.p(_PUBLISHED, _BEST), fewer, of_two),
    )
    yield _RETRIEVAL(
        "its J is {0.mean:.3f} nats above that of `uniform` ({0:.3f}), and it needs {1.mean:.3f} bits a "
        "byte more ({1:.3f}); half right takes a median of {2:,.0f} steps, and {3:,.0f} after `uniform` (p "
        "= {4:.3f}). Against `untuned` J is {5.mean:.3f} nats lower ({5:.3f}) and it is ahead (p = "
        "{6:.3f}).",
        *(above_uniform, verdict.gap(bits, _PUBLISHED, _UNIFORM), steps[_PUBLISHED], steps[_UNIFORM]),
        *(verdict.p(_PUBLISHED, _UNIFORM), below_untuned, verdict.p(_PUBLISHED, _UNTUNED)),
    )
    critics = [
        compare_predictions(*rewards_of(result))
        for run, result in results.items()
        if run.procedure == _PUBLISHED
    ]
    yield _RETRIEVAL(
        "over decisions, the two correlate by {:.2f} to {:.2f}. In the second half it predicts twice as "
        "much as is earned: {:.2f} and {:.2f} in the mean of {} seeds.",
        *ends(one.correlation for one in critics),
        *(np.mean([one.predicted for one in critics]), np.mean([one.earned for one in critics])),
        word(len(critics)),
    )


def _of_equal_shares(verdict: Outcomes, grid_runs: int) -> Iterator[Statement]:
    yield _RETRIEVAL(
        "J of `best_fixed` is {0.mean:.3f} nats above that of `uniform` ({0:.3f}), and it needs "
        "{1.mean:.3f} bits a byte more. Looking up shows no difference (medians {2:,.0f} and {3:,.0f}, p "
        "= {4:.2f}). `best_fixed` has a quarter fewer tokens here, but took {5} runs to find.",
        *(verdict.gap(J, _BEST, _UNIFORM), verdict.gap(bits, _BEST, _UNIFORM)),
        *(median(verdict.of(_BEST)), median(verdict.of(_UNIFORM)), verdict.p(_BEST, _UNIFORM), grid_runs),
    )


def _of_searched(verdict: Outcomes, results: Any) -> Iterator[Statement]:
    below, above = verdict.gap(J, _UNIFORM, _SEARCHED), verdict.gap(J, _SEARCHED, _UNIFORM)
    copies, p = verdict.gap(copying, _SEARCHED, _UNIFORM), verdict.p(_SEARCHED, _UNIFORM)
    tokens = {name: _tokens(results, name) for name in (_SEARCHED, _STEERED, _BEST)}
    yield _BIRDIE(
        "After {4:.1f}M tokens it is {0.mean:.3f} nats below ({0.high:.3f} below to {1.high:.3f} above), "
        "and no difference in looking up is shown (p = {2:.2f}). It copies {3.mean:.1f} points more "
        "tokens without fine-tuning ({3:.1f}).",
        *(below, above, p, copies, tokens[_SEARCHED]),
    )
    yield _RETRIEVAL(
        "J of `searched` is {0.mean:.3f} nats below that of `uniform` ({0.high:.3f} below to {1.high:.3f} "
        "above), and half right takes a median of {2:,.0f} steps, {3:,.0f} after `uniform` (p = {4:.2f}). "
        "Against `untuned` J is {5.mean:.3f} nats lower ({5:.3f}), and half right comes sooner (p = "
        "{6:.3f}). Without fine-tuning `searched` copies {7.mean:.1f} points more tokens than `uniform` "
        "({7:.1f}).",
        *(below, above, median(verdict.of(_SEARCHED)), median(verdict.of(_UNIFORM)), p),
        *(verdict.gap(J, _UNTUNED, _SEARCHED), verdict.p(_SEARCHED, _UNTUNED), copies),
    )
    yield _RETRIEVAL("After {:.1f}M tokens language probably pays more.", tokens[_BEST])
    yield _RETRIEVAL("No run tests equal shares with {:.1f}M tokens", tokens[_STEERED])
    yield _STEERING(
        "After {:.1f}M tokens, with {} other seeds, it is not shown to be better than equal shares",
        *(tokens[_SEARCHED], word(len(verdict.of(_SEARCHED)))),
    )
    gains = [verdict.gap(loss(name), _UNIFORM, _SEARCHED).mean for name in ("copying", "short_copying")]
    losses = [
        verdict.gap(loss(name), _SEARCHED, _UNIFORM).mean for name in ("deshuffling", "selective_copying")
    ]
    yield _RETRIEVAL(
        "After {:.1f}M tokens they have ({:.2f}). It gains {:.2f} nats on copying and {:.2f} on short "
        "copying, and loses {:.2f} on deshuffling and {:.2f} on selective copying.",
        *(tokens[_SEARCHED], verdict.mean(loss("short_copying"), _UNIFORM), *gains, *losses),
    )


def _of_units(verdict: Outcomes) -> Iterator[Statement]:
    untuned, uniform = verdict.of(_UNTUNED), verdict.of(_UNIFORM)
    got, late, soon = got_there(untuned), reached(untuned), ends(reached(uniform))
    p, language = verdict.p(_UNTUNED, _UNIFORM), verdict.gap(bits, _UNIFORM, _UNTUNED)
    copies = (
        100
        * sum(len(GROUPS[name]) for name in ("short copying", "longer copying"))
        / len(set(class_of_arm().values()))
    )
    yield _BIRDIE(
        "and {} runs get to half right, after {:,.0f} and {:,.0f} steps. With equal shares of target "
        "tokens they have {:.0f} %, and {} get there after {:,.0f} to {:,.0f} (p = {:.3f}). Text costs "
        "{:.2f} bits a byte more.",
        *(got, *late, copies, got_there(uniform), *soon, p, language.mean),
    )
    yield _RETRIEVAL(
        "With equal shares of *examples*, {0} runs get to half right, after {1:,.0f} and {2:,.0f} steps. "
        "With equal shares of target tokens all do, after {3:,.0f} to {4:,.0f} (log-rank p = {5:.3f}). J "
        "is {6.mean:.3f} nats higher ({6:.3f}).",
        *(got, *late, *soon, p, verdict.gap(J, _UNTUNED, _UNIFORM)),
    )
    yield _RETRIEVAL("{:.0f} % with equal shares of these", copies)
    yield _RETRIEVAL("In return text costs {0.mean:.3f} bits a byte less ({0:.3f}).", language)
