"""What makes a small model copy soonest: mixtures and settings beside each other, as curves.

    python -m studies.small_mixtures --results=DIR --text='/data/*.jsonl' [--only CONTENDER ...]

A Gated SSM+ of 4 layers, 128 features and a state of 256 is pre-trained on 2M tokens in rows of 4 x 256.
All are measured on the same arms, those of the mixture `small_models`, twenty times. Contenders differ in
the shares of its classes, which `bandit.stages` gives, or in one setting beside them. The learning rate
falls along a cosine over the run. About six minutes of one core a contender.

A run that was stopped goes on when the command is started again; a finished one is one JSON file in
--results and is not run again. The table and small_mixtures.png, beside the files, show all that are there:
for each class, the accuracy on its arms' targets.
"""

import argparse
import json
import shutil
import time
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from birdie_jax.objectives import make_mixture
from birdie_jax.objectives.mixtures import SMALL_MODEL_STAGES
from studies.bandit_steering import read_decisions
from studies.verbs import Command, run_verb

SETTINGS = {
    "data.vocab_size": 512,
    "objectives.mixture": "small_models",
    "batching.rows": 4,
    "batching.length": 256,
    "model.layers": 4,
    "model.features": 128,
    "model.state": 256,
    "model.mlp_features": 128,
    "bandit.policy": "staged",
    "bandit.every_steps": 100,
    "optimizer.learning_rate": 3e-3,
    "optimizer.warmup_steps": 100,
    "train.num_steps": 2000,
    "train.log_every_steps": 100,
    "checkpoint.every_steps": 200,
    "eval.batches_per_arm": 1,
    "eval.rows": 4,
}
# Of 100 examples 95 copy texts of 3 to 18 tokens; causal LM has some 30 % of the loss.
SHORT = "0: short_copying=30, short_selective_copying=66, causal_lm=1, prefix_lm=1, span_corruption=2"
# Of 100 examples 75 copy, texts of all lengths; causal LM and prefix LM have some 70 % of the loss.
LANGUAGE = (
    "0: short_copying=8, copying=7, short_selective_copying=30, selective_copying=30, causal_lm=7, "
    "prefix_lm=7, span_corruption=6, deshuffling=5"
)
LONG = "0: copying=30, selective_copying=66, causal_lm=1, prefix_lm=1, span_corruption=2"
CONTENDERS = {
    "short": {"bandit.stages": SHORT},
    "language": {"bandit.stages": LANGUAGE},
    "long": {"bandit.stages": LONG},
    "staged": {"bandit.stages": SMALL_MODEL_STAGES},
    "fixed": {"bandit.policy": "fixed"},
    "short, 2048 pieces": {"bandit.stages": SHORT, "data.vocab_size": 2048},
    "short, state 512": {"bandit.stages": SHORT, "model.state": 512},
    "short, rate 0.008": {"bandit.stages": SHORT, "optimizer.learning_rate": 8e-3},
    "short, rate 0.001": {"bandit.stages": SHORT, "optimizer.learning_rate": 1e-3},
    "short, 2 rows": {
        "bandit.stages": SHORT,
        "batching.rows": 2,
        "eval.rows": 2,
        "eval.batches_per_arm": 2,
        "train.num_steps": 4000,
        "bandit.every_steps": 200,
    },
    "short, read causally": {"bandit.stages": SHORT, "model.bidirectional": False},
}
SHOWN = ("short_copying", "short_selective_copying", "copying", "selective_copying", "causal_lm")


def run(contender: str, text: str, results: Path, steps: int) -> None:
    path = results / f"{contender.replace(', ', '-').replace(' ', '_')}.json"
    if path.exists():
        return
    settings = SETTINGS | CONTENDERS[contender]
    # Shares of the run, whatever its length.
    scale = steps / SETTINGS["train.num_steps"]
    for name in ("train.num_steps", "bandit.every_steps", "optimizer.warmup_steps"):
        settings[name] = max(1, round(settings[name] * scale))
    workdir = results / "workdirs" / path.stem
    given = {"data.source": text, **settings}
    flags = [f"--config.{name}={value}" for name, value in given.items()]
    begun = time.monotonic()
    command = Command("train", ("--config=configs/tiny.py", f"--workdir={workdir}", *flags))
    run_verb(command, workdir.with_suffix(".log"))
    result = {"contender": contender, "settings": settings, "seconds": time.monotonic() - begun}
    result |= read_decisions(workdir)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result))
    partial.rename(path)
    shutil.rmtree(workdir)


def accuracy_by_class(result: dict) -> dict[str, np.ndarray]:
    """Return the mean accuracy of each class's arms, by decision."""
    mixture = make_mixture("small_models", SETTINGS["batching.length"])
    group_of = dict(zip(mixture.names, mixture.groups, strict=True))
    measured = np.array(result["validation_accuracy"])
    groups = np.array([group_of[arm] for arm in result["arms"]])
    return {group: measured[:, groups == group].mean(axis=1) for group in SHOWN}


def show(results: Path) -> None:
    """Print the table, and draw the curves, of all that are there."""
    read = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    order = {name: number for number, name in enumerate(CONTENDERS)}
    read.sort(key=lambda result: order[result["contender"]])
    print("| contender | " + " | ".join(SHOWN) + " | seconds |")
    print("|---|" + "---|" * (len(SHOWN) + 1))
    for result in read:
        last = {name: values[-1] for name, values in accuracy_by_class(result).items()}
        shown = " | ".join(f"{100 * last[name]:.1f} %" for name in SHOWN)
        print(f"| {result['contender']} | {shown} | {result['seconds']:.0f} |")
    figure = Figure(figsize=(15, 3.6), layout="constrained")
    axes = figure.subplots(1, len(SHOWN), sharey=True)
    for name, axis in zip(SHOWN, axes, strict=True):
        for result in read:
            positions = result["settings"]["batching.rows"] * result["settings"]["batching.length"]
            tokens = np.array(result["steps"]) * positions / 1e6
            axis.plot(tokens, 100 * accuracy_by_class(result)[name], label=result["contender"])
        axis.set_title(name)
        axis.set_xlabel("tokens (millions)")
    axes[0].set_ylabel("tokens right (%)")
    axes[-1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(results / "small_mixtures.png", dpi=110)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, required=True, help="Where finished runs are kept.")
    parser.add_argument("--text", default="stdlib", help="The corpus, as config.data.source takes it.")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument(
        "--steps", type=int, default=SETTINGS["train.num_steps"], help="Of rows of 4 x 256."
    )
    parser.add_argument("--show", action="store_true", help="Draw what is there, and run nothing.")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    if not options.show:
        for contender in options.only:
            run(contender, options.text, options.results, options.steps)
    show(options.results)


if __name__ == "__main__":
    main()
