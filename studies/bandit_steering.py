"""Does the bandit steer? Rewards and policies in real pre-training, at small scale.

    python -m studies.bandit_steering --results=DIR --text='/data/*.jsonl' [--contenders ...] [--seeds=3]

A Gated SSM+ of 2 layers and 64 features is pre-trained for 400 steps of 4 rows of 256 tokens on the eight
arms of the mixture `tiny`, with a decision every 20 steps. Contenders differ in `config.bandit` alone, and
runs of one seed in nothing else. What counts is the validation loss of every arm at the end, and their mean
over arms, each arm alike; runs of a seed are compared with `fixed`. Also shown by quarter of the run: how
even the mixture was (its entropy, as a share of that of eight equal arms), and how large rewards were.

A run that was stopped goes on when the command is started again; a finished one is one JSON file in
--results and is not run again. --smoke takes 4 decisions of 5 steps. The table and steering.png, beside the
files, show all that are there; --show does nothing else.
"""

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from birdie_jax.bandit import REWARDS
from birdie_jax.config import BanditConfig

SETTINGS = {
    "data.vocab_size": 512,
    "batching.rows": 4,
    "batching.length": 256,
    "model.layers": 2,
    "model.features": 64,
    "model.state": 128,
    "model.mlp_features": 128,
    "bandit.every_steps": 20,
    "bandit.critic_layers": 2,
    "bandit.critic_updates": 100,
    "optimizer.learning_rate": 4e-3,
    "optimizer.warmup_steps": 40,
    "train.num_steps": 400,
    "train.log_every_steps": 20,
    "checkpoint.every_steps": 100,
    "eval.batches_per_arm": 1,
    "eval.rows": 4,
}
SMOKE = {"train.num_steps": 20, "bandit.every_steps": 5, "checkpoint.every_steps": 10}
STAGES = (
    "0: causal_lm=3, prefix_lm=1, span_corruption=1; "
    "0.5: causal_lm=1, prefix_lm=1, span_corruption=1, full_span_corruption=1, "
    "full_span_corruption_deshuffling=1, deshuffling=1, copying=1, selective_copying=1"
)
# In the order in which they are run, seed by seed.
CONTENDERS = {
    "fixed": {"policy": "fixed"},
    "uniform": {"policy": "uniform"},
    "birdie-published": {"policy": "birdie", "reward": "published"},
    "thompson-learning_progress": {"policy": "thompson", "reward": "learning_progress"},
    "birdie-learning_progress": {"policy": "birdie", "reward": "learning_progress"},
    "exp3s-learning_progress": {"policy": "exp3s", "reward": "learning_progress"},
    "birdie-running_scale": {"policy": "birdie", "reward": "running_scale"},
    "thompson-running_scale": {"policy": "thompson", "reward": "running_scale"},
    "staged": {"policy": "staged", "stages": STAGES},
    "exp3s-running_scale": {"policy": "exp3s", "reward": "running_scale"},
    "thompson-published": {"policy": "thompson", "reward": "published"},
    "exp3s-published": {"policy": "exp3s", "reward": "published"},
    "birdie-absolute_progress": {"policy": "birdie", "reward": "absolute_progress"},
    "thompson-absolute_progress": {"policy": "thompson", "reward": "absolute_progress"},
    "exp3s-absolute_progress": {"policy": "exp3s", "reward": "absolute_progress"},
}
BASELINE = "fixed"
ROOT = Path(__file__).resolve().parents[1]


def train(contender: str, seed: int, text: str, workdir: Path, changed: dict) -> None:
    """Train one run to its end, or go on with it."""
    settings = SETTINGS | changed | {f"bandit.{name}": v for name, v in CONTENDERS[contender].items()}
    settings |= {"data.source": text, "seed": seed}
    command = [sys.executable, "-m", "birdie_jax.train", "--config=configs/tiny.py", f"--workdir={workdir}"]
    command += [f"--config.{name}={value}" for name, value in settings.items()]
    log = workdir.with_suffix(".log")
    with log.open("a") as file:
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ, stdout=file, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode:
        raise SystemExit(f"{contender}, seed {seed}: exit status {done.returncode}; see {log}")


def read_decisions(workdir: Path) -> dict:
    """Return what was measured of every arm, by decision; the last one is the end of the run."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    measured = {line["step"]: line for line in lines if any("/validation_loss" in name for name in line)}
    measured = [measured[step] for step in sorted(measured)]
    arms = sorted(name.split("/")[1] for name in measured[0] if name.endswith("/validation_loss"))

    def values(metric: str, lines: list[dict]) -> list[list[float]]:
        return [[line[f"arm/{arm}/{metric}"] for arm in arms] for line in lines]

    return {
        "arms": arms,
        "steps": [line["step"] for line in measured],
        "validation_loss": values("validation_loss", measured),
        "validation_accuracy": values("validation_accuracy", measured),
        "probability": values("probability", measured[:-1]),
        "reward": values("reward", measured[1:]),
    }


def run(contender: str, seed: int, text: str, results: Path, changed: dict) -> None:
    path = results / f"{contender}-{seed}.json"
    if path.exists():
        return
    workdir = results / "workdirs" / f"{contender}-{seed}"
    workdir.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    train(contender, seed, text, workdir, changed)
    result = {"contender": contender, "seed": seed, "settings": SETTINGS | changed | CONTENDERS[contender]}
    result |= {"seconds": time.monotonic() - begun} | read_decisions(workdir)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result))
    partial.rename(path)
    shutil.rmtree(workdir)
    print(f"finished {path.stem} in {result['seconds']:.0f} s", flush=True)


def entropy(result: dict) -> np.ndarray:
    """Return the entropy of the mixture of each decision, 1 where all arms are equal."""
    p = np.array(result["probability"])
    return -np.sum(p * np.log(np.maximum(p, 1e-12)), axis=1) / np.log(p.shape[1])


def by_quarter(values: np.ndarray) -> list[float]:
    return [float(np.mean(part)) for part in np.array_split(values, 4)]


def load(results: Path) -> dict[str, dict[int, dict]]:
    """Return the finished runs by contender and seed."""
    found: dict[str, dict[int, dict]] = {name: {} for name in CONTENDERS}
    for path in sorted(results.glob("*.json")):
        result = json.loads(path.read_text())
        found[result["contender"]][result["seed"]] = result
    return {name: runs for name, runs in found.items() if runs}


def final(result: dict) -> np.ndarray:
    return np.array(result["validation_loss"][-1])


def show(found: dict[str, dict[int, dict]]) -> None:
    arms = next(iter(next(iter(found.values())).values()))["arms"]
    base = found.get(BASELINE, {})
    print("| contender | seeds | mean loss of the arms | against fixed | evenness by quarter ", end="")
    print("| mean size of a reward by quarter | largest probability, mean |")
    print("|---" * 7 + "|")
    for name, runs in found.items():
        losses = [final(one).mean() for one in runs.values()]
        paired = [
            final(one).mean() - final(base[seed]).mean() for seed, one in runs.items() if seed in base
        ]
        against = f"{np.mean(paired):+.3f} ({min(paired):+.3f} to {max(paired):+.3f})" if paired else ""
        even = np.mean([by_quarter(entropy(one)) for one in runs.values()], axis=0)
        sizes = [by_quarter(np.abs(one["reward"]).mean(axis=1)) for one in runs.values()]
        largest = np.mean([np.max(one["probability"], axis=1).mean() for one in runs.values()])
        print(
            f"| {name} | {len(runs)} | {np.mean(losses):.3f} | {against} "
            f"| {' '.join(f'{value:.2f}' for value in even)} "
            f"| {' '.join(f'{value:.2g}' for value in np.mean(sizes, axis=0))} | {largest:.2f} |"
        )
    print(f"\n| contender | {' | '.join(arms)} |")
    print("|---" * (len(arms) + 1) + "|")
    for name, runs in found.items():
        losses = np.mean([final(one) for one in runs.values()], axis=0)
        print(f"| {name} | {' | '.join(f'{loss:.3f}' for loss in losses)} |")


def show_rewards(found: dict[str, dict[int, dict]]) -> None:
    """Print what each reward makes of the losses of runs that nothing steered."""
    print("\n| run | reward | mean size by quarter | standard deviation over arms by quarter |")
    print("|---" * 4 + "|")
    for contender in ("fixed", "uniform"):
        for seed, result in found.get(contender, {}).items():
            losses = jnp.asarray(result["validation_loss"], jnp.float32)
            for name, reward in REWARDS.items():
                earned = jax.lax.map(
                    functools.partial(reward, BanditConfig(), losses), jnp.arange(1, len(losses))
                )
                sizes, spread = (
                    by_quarter(np.asarray(part))
                    for part in (jnp.abs(earned).mean(axis=1), earned.std(axis=1))
                )
                print(
                    f"| {contender}, seed {seed} | {name} | {' '.join(f'{value:.2g}' for value in sizes)} "
                    f"| {' '.join(f'{value:.2g}' for value in spread)} |"
                )


def draw(found: dict[str, dict[int, dict]], path: Path) -> None:
    figure = Figure(figsize=(15, 4.5), layout="constrained")
    axes = figure.subplots(1, 3)
    for number, (name, runs) in enumerate(found.items()):
        style = {"label": name, "color": f"C{number % 10}", "linestyle": ("-", "--")[number // 10]}
        steps = next(iter(runs.values()))["steps"]
        losses = np.mean([np.mean(one["validation_loss"], axis=1) for one in runs.values()], axis=0)
        axes[0].plot(steps[1:], losses[1:], **style)
        axes[1].plot(steps[:-1], np.mean([entropy(one) for one in runs.values()], axis=0), **style)
        sizes = np.mean([np.abs(one["reward"]).mean(axis=1) for one in runs.values()], axis=0)
        axes[2].plot(steps[1:], np.maximum(sizes, 1e-8), **style)
    axes[0].set(title="Mean validation loss of the arms", xlabel="step", ylabel="nats a token")
    axes[1].set(title="Entropy of the mixture", xlabel="step", ylabel="share of that of equal arms")
    axes[2].set(title="Mean size of a reward", xlabel="step", yscale="log")
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--text", default="stdlib", help="what config.data.source may be")
    parser.add_argument("--contenders", nargs="*", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--show", action="store_true")
    arguments = parser.parse_args()
    results = arguments.results.resolve()
    results.mkdir(parents=True, exist_ok=True)
    if not arguments.show:
        for seed in range(arguments.seeds):
            for contender in arguments.contenders:
                run(contender, seed, arguments.text, results, SMOKE if arguments.smoke else {})
    found = load(results)
    if found:
        show(found)
        show_rewards(found)
        draw(found, results / "steering.png")


if __name__ == "__main__":
    main()
