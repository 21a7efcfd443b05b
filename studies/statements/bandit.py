"""Statements about policies in short pre-training, and on problems whose best mixtures are known."""

from collections.abc import Collection, Iterator

import numpy as np

from studies.bandit_problems import ARMS, DECISIONS
from studies.bandit_regret import CONSTANT, FIRST_PROBLEMS, SCALES, regrets, shares_of
from studies.bandit_regret import Results as RegretResults
from studies.bandit_steering import BASELINE, STAGES, Results, entropy
from studies.statements.figures import Records, ends, gap, listed, of_runs, word
from studies.statements.statement import Statement, on

_BANDIT = on("docs/measurements/bandit.md")
_THOMPSON = ("thompson-learning_progress", "thompson-running_scale")


def statements(records: Records) -> Iterator[Statement]:
    """Yield the statements on all pages."""
    yield from _of_training(records["bandit_steering", "small"])
    yield from _of_problems(records["bandit_regret", "full"])
    yield from _of_long_problems(records["bandit_regret", "long"])


def _names(text: str, found: Collection[str], expected: Collection[str]) -> Statement:
    """Return a text that names policies and has no figure; if the records name others, those."""
    return _BANDIT(
        text if {*found} == {*expected} else f"in place of '{text}': {listed(sorted(found), '')}"
    )


def _of_training(results: Results) -> Iterator[Statement]:
    settings = next(iter(results.values()))["settings"]
    steps, every = settings["train.num_steps"], settings["bandit.every_steps"]
    rows, length = settings["batching.rows"], settings["batching.length"]
    found: dict[str, dict[int, float]] = {}
    even: dict[str, list[float]] = {}
    for run, result in results.items():
        found.setdefault(run.contender, {})[run.seed] = float(np.mean(result["validation_loss"][-1]))
        even.setdefault(run.contender, []).append(entropy(result))
    behind = {
        name: [of_seed - found[BASELINE][seed] for seed, of_seed in sorted(by_seed.items())]
        for name, by_seed in found.items()
    }
    published = gap(behind["birdie-published"])
    yield _BANDIT(
        "In {} steps of real pre-training no policy that steers is better than fixed shares: the policy of "
        "the paper ends {:.3f} nats behind them (95 %: {:.3f}), Thompson sampling {:.3f} and {:.3f}.",
        *(steps, published.mean, published),
        *sorted(float(np.mean(behind[name])) for name in _THOMPSON),
    )
    arms = len(next(iter(results.values()))["arms"])
    yield _BANDIT(
        "{} steps of {} rows of {} tokens, a decision every {} steps, and the {} arms of `tiny`.",
        *(steps, rows, length, every, word(arms)),
    )
    yield _BANDIT("in {:.1f}M tokens no model copies yet", steps * rows * length / 1e6)
    exp3s = behind["exp3s-running_scale"]
    yield _BANDIT(
        "`exp3s` is level with `fixed` ({} seeds are ahead), and hardly leaves its shares in {} decisions.",
        *(of_runs(sum(value < 0 for value in exp3s), len(exp3s)), steps // every),
    )
    shown = [name for name, values in behind.items() if name != BASELINE and gap(values).low > 0]
    yield _names(
        "only the published policy and `thompson` are behind `fixed` beyond their interval",
        shown,
        {"birdie-published", *_THOMPSON},
    )
    yield _BANDIT(
        "`uniform` costs {:.2f} to {:.2f} nats by seed, and the schedule, whose first half has {} of {} "
        "arms, {:.2f} to {:.2f}.",
        *(
            *ends(behind["uniform"]),
            word(STAGES.split(";")[0].count("=")),
            word(arms),
        ),
        *ends(behind["staged"]),
    )
    quarters = {
        name: np.mean([[part.mean() for part in np.array_split(one, 4)] for one in runs], axis=0)
        for name, runs in even.items()
    }
    others = [
        name
        for name in quarters
        if name.split("-")[0] in ("birdie", "thompson") and name != "thompson-running_scale"
    ]
    yield _BANDIT(
        "`exp3s` keeps its mixture as even as `fixed`, and `thompson` with `running_scale` at {:.2f} or "
        "more. The others fall to {:.2f} to {:.2f}.",
        quarters["thompson-running_scale"].min(),
        *ends(quarters[name].min() for name in others),
    )
    sizes = [
        np.abs(result["reward"]).mean(axis=1)
        for run, result in results.items()
        if run.contender == BASELINE
    ]
    first, *_, last = np.mean([[part.mean() for part in np.array_split(one, 4)] for one in sizes], axis=0)
    yield _BANDIT("the published reward shrinks to a {:.0f}th", round(first / last, -2))


def _of_problems(results: RegretResults) -> Iterator[Statement]:
    table = regrets(results)
    per_cent = {name: 100 * float(shares_of(table, name).mean()) for name in table}
    mean = {name: {problem: row.mean() for problem, row in of.items()} for name, of in table.items()}
    thompson, birdie = (
        {name: value for name, value in per_cent.items() if name.startswith(start)}
        for start in ("thompson, ", "birdie, ")
    )
    scale = SCALES["full"]
    yield _BANDIT(
        "On synthetic problems with known best mixtures, Thompson sampling has {:.0f} to {:.0f} % of the "
        "regret of equal shares, by reward.",
        *ends(thompson.values()),
    )
    yield _BANDIT("runs {} arms, {} decisions and {} seeds.", word(ARMS), DECISIONS, scale.seeds)
    one = "one arm"
    yield _BANDIT(
        '("one arm"): {:.3f} against {:.3f} nats.',
        *(mean[f"thompson, {reward}"][one] for reward in ("published", "learning_progress")),
    )
    ahead = [
        problem
        for problem in FIRST_PROBLEMS
        if mean["thompson, learning_progress"][problem] < mean["birdie, published"][problem]
    ]
    others = [value for name, value in birdie.items() if not name.endswith("published")]
    swing = "gradual change"
    yield _BANDIT(
        "and with the other rewards {:.0f} to {:.0f} %. It is behind `thompson` on {} of {} problems, and "
        "ahead where nothing is transferred ({:.3f} nats where rates swing, `uniform` {:.3f}).",
        *(*ends(others), word(len(ahead)), word(len(FIRST_PROBLEMS))),
        *(mean["birdie, published"][swing], mean["uniform"][swing]),
    )
    critic = next(result for run, result in results.items() if run.contender == "birdie, published")[
        "config"
    ]
    yield _BANDIT(
        "Its critic is small here, with {} layers and {} features, and {} updates a decision.",
        *(critic[name] for name in ("critic_layers", "critic_features", "critic_updates")),
    )


def _of_long_problems(results: RegretResults) -> Iterator[Statement]:
    table = regrets(results)
    per_cent = {name: 100 * float(shares_of(table, name).mean()) for name in table}
    mean = {name: {problem: row.mean() for problem, row in of.items()} for name, of in table.items()}
    del mean[CONSTANT]
    uniform = mean.pop("uniform")
    scale = SCALES["long"]
    best = [min(mean, key=lambda name, problem=problem: mean[name][problem]) for problem in uniform]
    more = len(uniform) - len(FIRST_PROBLEMS)
    yield _BANDIT("runs {} decisions, and {} more problems", scale.decisions, word(more))
    yield _BANDIT("has the least regret on {} of ten problems.", word(best.count("gradients")))
    yield _BANDIT(
        "`attribution` ({:.0f} %) and `learning_curves` ({:.0f} %) are worse than `uniform`",
        *(per_cent[name] for name in ("attribution", "learning_curves")),
    )
    names = ("birdie, published", "birdie, standardised", "thompson, learning_progress")
    yield _BANDIT(
        "The paper's policy has {:.0f} % of the regret of `uniform`, and {:.0f} % with standardised "
        "rewards. Thompson sampling, with neither critic nor candidates, has {:.0f} %.",
        *(per_cent[name] for name in names),
    )
    threshold, delayed = (
        {name for name in mean if mean[name][problem] > uniform[problem]}
        for problem in ("threshold dose", "delayed returns")
    )
    yield _names(
        "every policy but `progress` and the paper's is behind `uniform`.",
        {*mean} - threshold,
        {"progress", "birdie, published", "birdie, standardised"},
    )
    yield _names(
        "`progress`, `cross_effects`, `learning_curves` and `attribution` are behind",
        delayed,
        {"progress", "cross_effects", "learning_curves", "attribution"},
    )
