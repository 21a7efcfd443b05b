"""Test the bandit on a synthetic problem, and measure a decision at the paper's size.

    python benchmarks/bandit.py [--plot=bandit.png]
    python benchmarks/bandit.py --priors

The first command compares the policies birdie and uniform on six arms. The losses of all arms fall in
proportion to the probability of one arm. They fall by 15 % per decision at probability 1, because the
reward is cubic. The command then measures the time of `observe` (200 updates of the critic on the whole
history) and of `propose` (8192 candidates) with 104 arms in 7 classes over 64 decisions. It uses both
critics and takes under two minutes on two CPU cores.

--priors compares both settings of `bandit.candidate_prior` instead, at 104 arms in the classes of the
birdie mixture, with a smaller critic. The losses of all arms fall in proportion to the probability of the
rewarding part: a class of 16 arms, a class of one arm, or one arm of the class of 54. The command prints
the probability of that part in the proposals without exploration, over the last third of all decisions.
It takes four minutes.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from birdie_jax.bandit import candidate_scores, init_bandit, observe, propose
from birdie_jax.bandit.proposals import best_action, random_candidates
from birdie_jax.config import BanditConfig

_PLOT = flags.DEFINE_string("plot", "", "Write the probability of the rewarding arm to this picture.")

_PRIORS = flags.DEFINE_bool("priors", False, "Compare the candidate priors at 104 arms, and nothing else.")
_SEEDS = flags.DEFINE_integer("seeds", 3, "Runs of each case of --priors.")

ARMS, DECISIONS, REWARDING = 6, 40, 4
# The number of arms in each class of the birdie mixture, from span corruption to causal LM. The weight of
# each class is 1/7.
PAPER_CLASSES = (26, 54, 2, 4, 16, 1, 1)
PAPER_GROUPS = np.repeat(np.arange(len(PAPER_CLASSES)), PAPER_CLASSES)
PAPER_WEIGHTS = 1 / np.array(PAPER_CLASSES)[PAPER_GROUPS]

# The rewarding part -> its arms, and the relative fall of the loss at probability 1. A single arm of 54
# seldom has a probability above 1/20, so it needs a stronger effect to show in a cubic reward.
PRIOR_CASES = {
    "the class of 16 arms": (PAPER_GROUPS == 4, 0.15),
    "a class of one arm": (PAPER_GROUPS == 5, 0.15),
    "one arm of the class of 54": (np.arange(PAPER_GROUPS.size) == 40, 0.6),
}
PRIOR_DECISIONS, PRIOR_LAST = 48, 16


jitted_best_action = jax.jit(best_action)


def synthetic_run(policy: str, critic: str, seed: int) -> np.ndarray:
    config = BanditConfig(
        policy=policy,
        critic=critic,
        critic_layers=2,
        critic_features=32,
        critic_state=32,
        critic_updates=50,
        critic_learning_rate=2e-3,
        candidates=256,
    )
    state = init_bandit(config, np.ones(ARMS), np.arange(ARMS), DECISIONS, jax.random.key(seed))
    losses = np.full(ARMS, 4.0, np.float32)
    probabilities = []
    for _ in range(DECISIONS):
        state = propose(observe(state, losses))
        probabilities.append(float(state.mixture[REWARDING]))
        losses = (losses * (1 - 0.15 * probabilities[-1])).astype(np.float32)
    return np.array(probabilities)


def synthetic_problem(seeds: range = range(5)) -> dict[str, np.ndarray]:
    policies = {
        "birdie, Gated SSM critic": ("birdie", "gated_ssm"),
        "birdie, Transformer critic": ("birdie", "transformer"),
        "uniform": ("uniform", "gated_ssm"),
    }
    print(
        f"probability of the rewarding arm, mean of {len(seeds)} seeds, by tenth of {DECISIONS} decisions"
    )
    curves = {}
    for name, (policy, critic) in policies.items():
        runs = np.stack([synthetic_run(policy, critic, seed) for seed in seeds])
        curves[name] = runs
        tenths = runs.mean(axis=0).reshape(10, -1).mean(axis=1)
        last = runs[:, -15:].mean(axis=1)
        print(
            f"  {name:27}", " ".join(f"{p:.2f}" for p in tenths), f" last 15: worst seed {last.min():.2f}"
        )
    return curves


def prior_run(prior: str, case: str, seed: int) -> np.ndarray:
    """Return the probability of the rewarding part in each of the last proposals."""
    rewards, fall = PRIOR_CASES[case]
    config = BanditConfig(
        policy="birdie",
        critic_layers=2,
        critic_features=64,
        critic_state=128,
        critic_updates=100,
        critic_learning_rate=1e-3,
        candidates=1024,
        candidate_prior=prior,
    )
    state = init_bandit(config, PAPER_WEIGHTS, PAPER_GROUPS, PRIOR_DECISIONS, jax.random.key(seed))
    losses = np.full(PAPER_GROUPS.size, 4.0, np.float32)
    proposed = []
    for decision in range(PRIOR_DECISIONS):
        state = propose(observe(state, losses))
        if decision >= PRIOR_DECISIONS - PRIOR_LAST:
            best = jitted_best_action(state, jax.random.fold_in(jax.random.key(seed), decision))
            proposed.append(float(best[rewards].sum()))
        losses = (losses * (1 - fall * float(state.mixture[rewards].sum()))).astype(np.float32)
    return np.array(proposed)


def compare_priors(seeds: range) -> None:
    print(f"probability of what rewards: mean of {len(seeds)} seeds (worst seed)")
    print(f"  {'':27} {'uniform':>9} {'weights':>9} {'arms':>13} {'classes':>13}")
    for case, (rewards, _) in PRIOR_CASES.items():
        uniform, weights = rewards.mean(), (PAPER_WEIGHTS / PAPER_WEIGHTS.sum())[rewards].sum()
        row = f"  {case:27} {uniform:9.3f} {weights:9.3f}"
        for prior in ("arms", "classes"):
            means = [prior_run(prior, case, seed).mean() for seed in seeds]
            row += f" {np.mean(means):5.3f} ({min(means):5.3f})"
        print(row, flush=True)


def time_paper_size(critic: str, layers: int) -> None:
    config = BanditConfig(
        policy="birdie",
        critic=critic,
        critic_layers=layers,
        explore_first=0.0,
        explore_from=0.0,
        explore_to=0.0,
    )
    state = init_bandit(config, PAPER_WEIGHTS, PAPER_GROUPS, 64, jax.random.key(0))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.policy_state.parameters))
    losses = jnp.asarray(np.random.default_rng(0).uniform(2, 4, PAPER_GROUPS.size), jnp.float32)
    state = observe(state, losses)

    def seconds(function, *arguments, repeats):
        begun = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        first = time.perf_counter() - begun
        begun = time.perf_counter()
        for _ in range(repeats):
            jax.block_until_ready(function(*arguments))
        return first, (time.perf_counter() - begun) / repeats

    # The first observation has no data to learn from; this one runs all updates.
    _, again = seconds(observe, state, losses * 0.9, repeats=1)
    print(f"  {critic}, {parameters / 1e6:.1f}M parameters")
    print(f"    observe {again:.2f} s")
    first, again = seconds(propose, state, repeats=2)
    memory = propose.lower(state).compile().memory_analysis().temp_size_in_bytes
    print(f"    propose {again:.2f} s (first call {first:.1f} s), {memory / 2**20:.0f} MiB of buffers")
    candidates = random_candidates(jax.random.key(1), config, state.groups, state.classes)
    scores = candidate_scores(state, candidates)
    print(f"    scores of the untrained critic: {float(scores.min()):.3f} to {float(scores.max()):.3f}")


def plot(curves: dict[str, np.ndarray], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for name, runs in curves.items():
        axes.plot(runs.mean(axis=0), label=name)
    axes.set(xlabel="decision", ylabel="probability of the rewarding arm", ylim=(0, 1))
    axes.legend()
    figure.savefig(path, dpi=120)
    print(f"wrote {path}")


def main(_: list[str]) -> None:
    print(f"device: {jax.devices()[0].device_kind}")
    if _PRIORS.value:
        compare_priors(range(_SEEDS.value))
        return
    curves = synthetic_problem()
    print("one decision with 104 arms, 64 decisions, the defaults of BanditConfig")
    time_paper_size("gated_ssm", 4)
    time_paper_size("transformer", 2)
    if _PLOT.value:
        plot(curves, _PLOT.value)


if __name__ == "__main__":
    app.run(main)
