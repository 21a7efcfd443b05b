"""Statements about the grid, the contenders that steer, and the search."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from birdie_jax.mixture_search.findings import Findings, NamedMixture
from birdie_jax.mixture_search.regression import rank_correlation
from studies.class_objective import GROUPS
from studies.mixture_grid import BEST as BEST_MIXTURES
from studies.mixture_grid import FIRST_SEED, GRID, PARTS, best_fixed, objective, quarter_objective
from studies.mixture_grid import Results as GridResults
from studies.mixture_search import PROXIES, MixtureSearch
from studies.mixture_search import Results as SearchResults
from studies.mixture_trajectories import STAGES, early_rows, fit_trajectories, of_contenders, trajectories
from studies.progress import seconds_of
from studies.statements.figures import Gap, Records, by_seed, ends, gap, listed, word
from studies.statements.statement import Statement, on
from studies.steering import (
    BEST,
    PERMUTED,
    UNIFORM,
    YOKED,
    Results,
    best_steering,
    differences,
    mean_losses,
    objectives,
    probability,
)
from studies.steering_policies import STEERING
from studies.tables import compare_predictions

_README = on("README.md")
_BIRDIE = on("docs/what_birdie_does.md")
_STEERING = on("docs/measurements/steering.md")
_RETRIEVAL = on("docs/measurements/retrieval.md")


def statements(records: Records) -> Iterator[Statement]:
    """Yield the statements on all pages."""
    grid, results = records["mixture_grid", "small"], records["steering", "small"]
    yield from _of_grid(grid)
    yield from _of_contenders(results, len(grid))
    yield from _of_classes(results)
    yield from _of_controls(results)
    yield from _of_search(records)


def _of_grid(grid: GridResults) -> Iterator[Statement]:
    mixture = best_fixed(grid)
    assert mixture is not None
    yield _STEERING(
        "The best fixed mixture is {}/{} short copying, {}/{} longer copying and {}/{} language.",
        *(part for sixths in mixture for part in (sixths, PARTS)),
    )
    by_end, by_quarter = (
        {run.mixture: read(result) for run, result in grid.items() if run.seed == FIRST_SEED}
        for read in (objective, quarter_objective)
    )
    best, best_then = (
        {*sorted(found, key=lambda one: found[one])[:BEST_MIXTURES]} for found in (by_end, by_quarter)
    )
    yield _STEERING(
        "the {} best at the end are the {} best then.", word(len(best)), word(len(best & best_then))
    )
    tokens = _tokens(next(iter(grid.values()))["settings"])
    yield _RETRIEVAL("`best_fixed` was chosen by J after {:.0f}M tokens", tokens)


def _of_contenders(results: Results, grid_runs: int) -> Iterator[Statement]:
    found = objectives(results)
    best = str(best_steering(results))
    paired = differences(found[BEST], found[best])
    lower, p = gap(paired), probability(paired)
    ahead = [
        name
        for name in STEERING
        if np.mean(list(found[name].values())) < np.mean(list(found[BEST].values()))
    ]
    corrected = p * len(STEERING)
    yield _README("the best of {} contenders, learning progress", word(len(STEERING)))
    yield _README(
        "Against the best of {} fixed mixtures only learning progress has lower losses", len(GRID)
    )
    yield _README("A mixture searched with {} runs", PROXIES)
    yield _BIRDIE(
        "{} other contenders, two of them the paper's policy, have a higher mean J than the best fixed "
        "mixture after {:.0f}M tokens",
        *(word(len(STEERING) - len(ahead)).capitalize(), _tokens(next(iter(results.values()))["settings"])),
    )
    yield _STEERING(
        "{0} contenders chose the mixture during training. Only `{1}` (learning progress) ended with a "
        "lower validation loss than the best of {2} fixed mixtures: {3.mean:.3f} nats lower in the mean "
        "over nine classes (95 %: {3:.3f}; {4} seeds). Its p is {5:.3f}, and {6:.2f} after correction for "
        "{7} contenders",
        *(word(len(STEERING)).capitalize(), listed(ahead, ""), len(GRID), lower, word(len(paired)), p),
        *(corrected, word(len(STEERING))),
    )
    without = gap([one for seed, one in zip(found[best], paired, strict=True) if seed != 5])
    yield _STEERING(
        "Without that seed `{0}` is {1.mean:.3f} below the best fixed mixture ({1:.3f}).", best, without
    )
    yield _STEERING(
        "{} contenders are compared, and its p is {:.3f}, {:.2f} after Bonferroni's correction.",
        *(word(len(STEERING)).capitalize(), p, corrected),
    )
    yield _STEERING("and the {:.3f} nats that `{}` gains over it may need no steering.", lower.mean, best)
    critics = {
        name: [
            compare_predictions(result["predicted_reward"], result["earned_reward"])
            for run, result in results.items()
            if run.contender == name
        ]
        for name in ("published", "standardised")
    }
    yield _STEERING(
        "over decisions, predicted and earned rewards correlate by {:.2f} to {:.2f} for `published` and "
        "{:.2f} to {:.2f} for `standardised`. In its second half `standardised` predicts a gain of {:.2f} "
        "to {:.2f} and earns a loss of {:.2f} to {:.2f}.",
        *(end for name in critics for end in ends(one.correlation for one in critics[name])),
        *ends(one.predicted for one in critics["standardised"]),
        *ends(-one.earned for one in critics["standardised"]),
    )
    yield _STEERING(
        "The best fixed mixture is {0.mean:.3f} ({0:.3f}) better than equal shares. To find it took {1} "
        "runs.",
        *(gap(differences(found[UNIFORM], found[BEST])), grid_runs),
    )


def _of_classes(results: Results) -> Iterator[Statement]:
    losses = {name: mean_losses(results, name) for name in (UNIFORM, BEST, "progress")}

    def less(first: str, second: str, *names: str) -> list[float]:
        """Return how much lower the losses of the first contender are."""
        return [losses[second][name] - losses[first][name] for name in names]

    yield _STEERING(
        "The best fixed mixture has {:.2f} nats less on short copying and {:.2f} more on causal LM. "
        "`progress` has {:.2f} less on short copying, {:.2f} less on short selective copying, {:.2f} less "
        "on copying, {:.2f} less on deshuffling, and {:.2f} more on causal LM.",
        *(*less(BEST, UNIFORM, "short_copying"), *less(UNIFORM, BEST, "causal_lm")),
        *less("progress", UNIFORM, "short_copying", "short_selective_copying", "copying", "deshuffling"),
        *less(UNIFORM, "progress", "causal_lm"),
    )
    copying, deshuffling = less("progress", BEST, "copying", "deshuffling")
    yield _STEERING(
        "{:.2f} less on causal LM, {:.2f} on full span corruption, and {} on copying and on deshuffling. "
        "Short copying is {:.2f} higher, and short selective copying {:.2f}.",
        *less("progress", BEST, "causal_lm", "full_span_corruption"),
        listed((copying, deshuffling), ".2f"),
        *less(BEST, "progress", "short_copying", "short_selective_copying"),
    )


def _of_controls(results: Results) -> Iterator[Statement]:
    found = objectives(results)

    def above(first: str, second: str) -> Gap:
        return gap(differences(found[first], found[second]))

    yield _STEERING(
        "Its mean shares held fixed (`yoked`) are {0.mean:.3f} ({0:.3f}) better than equal shares. They "
        "are {1.mean:.3f} better than the best fixed mixture, which has only three groups, and that "
        "interval includes 0. Changing the shares during the run brings another {2.mean:.3f}, and this "
        "interval includes 0 too. Shuffled and averaged over twelfths of the run (`permuted`), the "
        "changes are {3.mean:.3f} ({3:.3f}) worse than as they came.",
        *(above(UNIFORM, YOKED), above(BEST, YOKED), above(YOKED, "progress"), above(PERMUTED, "progress")),
    )
    early = {
        name: np.mean(
            [quarter_objective(result) for run, result in results.items() if run.contender == name]
        )
        for name in ("progress", BEST, UNIFORM)
    }
    yield _STEERING(
        "At a quarter of the run `progress` is level with the best fixed mixture and equal shares ({}).",
        by_seed(early.values(), ".3f"),
    )


def _of_search(records: Records) -> Iterator[Statement]:
    results, grid = records["mixture_search", "small"], records["mixture_grid", "small"]
    search = MixtureSearch(MixtureSearch.scales["small"], Path("unused"), Path("unused"), "")
    findings = search.findings(results)
    own, _, best, found = findings.mixtures
    settings = search.shared_settings()
    tokens, hours = _tokens(settings), sum(map(seconds_of, results.values())) / 3600
    J = {name: findings.objective(one.losses) for name, one in (("own", own), ("best", best))}
    first = min(objective(result) for run, result in grid.items() if run.seed == FIRST_SEED)
    gain, below_grid = J["own"] - J["best"], first - J["best"]
    losses = dict(zip(findings.measured, zip(own.losses, best.losses, strict=True), strict=True))

    yield _BIRDIE(
        "After {:.0f}M tokens the mixture that it found had a J {:.2f} nats below that of equal shares.",
        *(tokens, gain),
    )
    yield _RETRIEVAL(
        "At the proxies' {:.0f}M tokens its mixture was {:.3f} nats below equal shares, with one seed, "
        "mostly in short copying, which they had not learned yet ({:.2f} nats).",
        *(tokens, gain, losses["short_copying"][0]),
    )
    yield _STEERING(
        "in {} hours of a core it found a constant mixture {:.2f} nats below the best of the {}, with the "
        "same seed.",
        *(word(round(hours)), below_grid, len(GRID)),
    )
    yield _STEERING(
        "In {} hours of a core the search finds a mixture whose J is {:.2f} nats below that of equal "
        "shares ({:.3f} and {:.3f}, one seed). Such a choice of the best of {} by one seed",
        *(word(round(hours)), gain, J["best"], J["own"], PROXIES),
    )
    number = findings.numbers[int(np.argmin(findings.objectives(findings.losses)))]
    within = 100 * np.abs(found.shares - best.shares).max()
    yield _STEERING(
        "The found mixture is that of the best proxy, {}, within {:.1f} points in each class",
        number,
        max(0.1, within),
    )
    yield _STEERING(
        "It gives {:.0f} % of the targets to short copying, {:.0f} % to longer copying, and {:.0f} % to "
        "language, most of it causal LM. The best fixed mixture of the grid has {:.0f}, {:.0f} and {:.0f} "
        "%, and equal shares {:.0f}, {:.0f} and {:.0f} %.",
        *_groups(findings, found),
        *(100 * sixths / PARTS for sixths in best_fixed(grid) or ()),
        *_groups(findings, own),
    )
    gains = [
        losses[name][0] - losses[name][1]
        for name in ("short_copying", "short_selective_copying", "copying")
    ]
    worse = [losses[name][1] - losses[name][0] for name in ("causal_lm", "prefix_lm")]
    yield _STEERING(
        "Its gain is in copying: {:.2f} nats on short copying, {:.2f} on short selective copying, {:.2f} "
        "on copying. Causal LM is {:.2f} nats worse, prefix LM {:.2f}.",
        *(*gains, *worse),
    )
    column, row = findings.design.classes.index("causal_lm"), findings.measured.index("causal_lm")
    worst = int(np.argmax(findings.losses[:, row]))
    others = np.delete(findings.losses[:, row], worst)
    errors = np.abs(findings.left_out - findings.losses).mean(axis=0)
    yield _STEERING(
        "Proxy {} gives causal LM {:.1f} % of the targets and ends at {:.2f} nats there, where {} others "
        "have {:.1f} to {:.0f}.",
        *(findings.numbers[worst], 100 * findings.shares[worst, 0, column], findings.losses[worst, row]),
        *(len(others), *ends(others)),
    )
    yield _STEERING(
        "the error for causal LM is {:.2f} nats, that of J {:.3f} instead of", errors[row], findings.error
    )
    yield _STEERING("and the rank correlation {:.2f} instead of", findings.rank_correlation)
    yield _STEERING(
        "With this seed it is also {:.2f} nats below the best of the grid ({:.3f})", below_grid, first
    )
    yield from _of_trajectories(findings, results, records["steering", "small"])


def _of_trajectories(findings: Findings, search: SearchResults, steering: Results) -> Iterator[Statement]:
    losses = trajectories(search, findings.measured)
    found = fit_trajectories(findings, losses)
    quarter, half, _, end = early_rows(findings, losses)
    yield _STEERING(
        "J there has a rank correlation of {:.2f} with J at the end, and the law fitted there predicts the "
        "order of proxies left out with {:.2f} instead of {:.2f}. After a quarter it is {:.2f} and {:.2f}.",
        *(half.measured, half.by_law, end.by_law, quarter.measured, quarter.by_law),
    )
    yield _STEERING(
        "For proxies left out its error is {:.3f} nats, as large as that of the law. It predicts that the "
        "best schedule of {} stages gains {:.3f} nats over the best constant mixture",
        *(found.error, word(max(STAGES)), found.schedules[1] - found.schedules[max(STAGES)]),
    )
    measured, by_law, by_trajectories = np.array(of_contenders(findings, found.trajectory, steering)).T
    yield _STEERING(
        "On {} contenders and controls of the study above, which it has not seen, it orders J with a rank "
        "correlation of {:.2f}, and the law with their mean shares with {:.2f}. But its errors are larger: "
        "{:.3f} and {:.3f} nats.",
        len(measured),
        *(rank_correlation(each, measured) for each in (by_trajectories, by_law)),
        *(float(np.abs(each - measured).mean()) for each in (by_trajectories, by_law)),
    )


def _tokens(settings: Mapping[str, Any]) -> float:
    """Return the millions of tokens of a run."""
    return (
        math.prod(settings[name] for name in ("train.num_steps", "batching.rows", "batching.length")) / 1e6
    )


def _groups(findings: Findings, mixture: NamedMixture) -> list[float]:
    """Return the per cent of each group of classes."""
    shares = dict(zip(findings.design.classes, mixture.shares[0], strict=True))
    return [100 * sum(shares[name] for name in classes) for classes in GROUPS.values()]
