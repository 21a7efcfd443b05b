"""The bandit on a synthetic problem, and what a decision costs at the paper's size.

    python benchmarks/bandit.py [--plot=bandit.png]

First, policies birdie and uniform on six arms whose losses all fall in proportion to the probability of
one of them; the fall is large (15 % a decision at probability 1), for the reward is cubic. Then the time of
`observe` (200 updates of the critic on the whole history) and of `propose` (8192 candidates) with 104 arms
in 7 classes over 64 decisions. Both critics; under two minutes on two CPU cores.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from birdie_jax.bandit import candidate_scores, init_bandit, observe, propose
from birdie_jax.bandit.proposals import random_candidates
from birdie_jax.config import BanditConfig

_PLOT = flags.DEFINE_string("plot", "", "Write the probability of the rewarding arm to this picture.")

ARMS, DECISIONS, REWARDING = 6, 40, 4
PAPER_CLASSES = (26, 54, 2, 4, 16, 1, 1)


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


def time_paper_size(critic: str, layers: int) -> None:
    config = BanditConfig(
        critic=critic, critic_layers=layers, explore_first=0.0, explore_from=0.0, explore_to=0.0
    )
    groups = np.repeat(np.arange(len(PAPER_CLASSES)), PAPER_CLASSES)
    weights = 1 / np.array(PAPER_CLASSES)[groups]
    state = init_bandit(config, weights, groups, 64, jax.random.key(0))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.critic))
    losses = jnp.asarray(np.random.default_rng(0).uniform(2, 4, groups.size), jnp.float32)
    state = observe(state, losses)

    def seconds(function, *arguments, repeats):
        begun = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        first = time.perf_counter() - begun
        begun = time.perf_counter()
        for _ in range(repeats):
            jax.block_until_ready(function(*arguments))
        return first, (time.perf_counter() - begun) / repeats

    # The first observation has nothing to learn from; this one takes all updates.
    _, again = seconds(observe, state, losses * 0.9, repeats=1)
    print(f"  {critic}, {parameters / 1e6:.1f}M parameters")
    print(f"    observe {again:.2f} s")
    first, again = seconds(propose, state, repeats=2)
    memory = propose.lower(state).compile().memory_analysis().temp_size_in_bytes
    print(f"    propose {again:.2f} s (first call {first:.1f} s), {memory / 2**20:.0f} MiB of buffers")
    scores = candidate_scores(state, random_candidates(jax.random.key(1), config.candidates, groups.size))
    print(f"    scores of the untaught critic: {float(scores.min()):.3f} to {float(scores.max()):.3f}")


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
    curves = synthetic_problem()
    print("one decision with 104 arms, 64 decisions, the defaults of BanditConfig")
    time_paper_size("gated_ssm", 4)
    time_paper_size("transformer", 2)
    if _PLOT.value:
        plot(curves, _PLOT.value)


if __name__ == "__main__":
    app.run(main)
