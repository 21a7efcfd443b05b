"""Shows that the models learn: `python -m studies.learning` (about two hours; start it again to resume).

Trains every model, bidirectional and causal, on three tasks:

- overfit: one batch that holds examples of every arm of the `tiny` mixture; the loss must fall below 0.05;
- copying: repeat 16 random tokens out of 64;
- selective copying: 4 tokens of a random text of 16, named by the token on either side of them.

The last two train together with shorter texts of the same task and are measured on texts of 16. With texts
of 16 only, selective copying reached 31 % after a thousand steps. A text of 6 tokens requires no search,
one of 8 has three places, and the skill transfers.

A wrong reset or shift passes tests of shape, and fails here. --output keeps each finished run as a JSON
file and does not run it again. The table, and curves.png next to the files, show all finished runs.
"""

import argparse
import dataclasses
import functools
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from birdie_jax.batch import Batch
from birdie_jax.batching import pack_rows, packed_length
from birdie_jax.config import ModelConfig, OptimizerConfig
from birdie_jax.engine.sharded_step import take_step
from birdie_jax.engine.state import TrainState
from birdie_jax.errors import UnsuitableText
from birdie_jax.models import build_model, language_model_names
from birdie_jax.models.parameters import parameter_policies
from birdie_jax.objectives import Example, Objective, make_mixture, make_objective
from birdie_jax.optimizers import make_optimizer
from birdie_jax.pretraining.language_model_step import language_model_loss
from birdie_jax.storage.cache_folder import cache_folder
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS
from studies.figure_style import figure_style

SYMBOLS = 64
VOCABULARY = 384
SPACING = 3
MEASURED_EVERY = 50
ROWS = 8
LENGTH = 120


@dataclasses.dataclass(frozen=True)
class Task:
    """A task, the size and training of its model, and the condition of success.

    The run trains one arm for each of `text_lengths`, and the last one decides. If empty, all arms decide.
    """

    name: str
    wanted: str
    steps: int
    layers: int
    text_lengths: tuple[int, ...] = ()
    learning_rate: float = 3e-3
    features: int = 128
    state: int = 256

    def learned(self, loss: float, accuracy: float) -> bool:
        """Return whether the mean loss (nats) or accuracy of the last steps meets the condition."""
        return loss < 0.05 if self.name == "overfit" else accuracy > 0.95


TASKS = (
    Task("overfit", "loss < 0.05", steps=400, layers=2),
    Task("copying", "accuracy > 95 %", steps=6000, layers=4, text_lengths=(4, 8, 12, 16)),
    Task(
        "selective_copying",
        "accuracy > 95 %",
        steps=6000,
        layers=4,
        text_lengths=(6, 7, 8, 9, 10, 12, 16),
    ),
)


def random_text(count, rng):
    """Return random tokens, drawn uniformly from the symbols."""
    return rng.integers(NUM_SPECIAL_TOKENS, NUM_SPECIAL_TOKENS + SYMBOLS, count).astype(np.int32)


def make_objectives(task: Task) -> list[Objective]:
    """Return the objectives of a task's arms; the last one decides."""
    options = {}
    if task.name == "selective_copying":
        options = {
            "spans": 1,
            "query_first": True,
            "span_length": (4, 4),
            "start_delimiter_length": (1, 1),
            "end_delimiter_length": (1, 1),
        }
    return [
        make_objective(task.name, min_length=count, max_length=count, **options)
        for count in task.text_lengths
    ]


def draw(objectives, task, rng) -> Example:
    """Return an example of a random arm."""
    arm = int(rng.integers(len(objectives)))
    while True:
        try:
            made = objectives[arm](random_text(task.text_lengths[arm], rng), rng)
        except UnsuitableText:
            continue
        return Example(made.context, made.target, arm)


def make_batch(task: Task, step: int) -> Batch:
    """Return rows of examples of random arms; each step has its own random numbers."""
    if task.name == "overfit":
        return overfit_batch()
    rng = np.random.default_rng((TASKS.index(task), step))
    objectives = make_objectives(task)
    rows = []
    for _ in range(ROWS):
        examples, room = [], LENGTH
        while True:
            example = draw(objectives, task, rng)
            room -= packed_length(example) + SPACING
            if room < 0:
                break
            examples.append(example)
        rows.append(examples)
    return pack_rows(rows, LENGTH, SPACING)


@functools.lru_cache
def overfit_batch() -> Batch:
    """Return a batch with one example of each arm of the mixture."""
    rng = np.random.default_rng(3)
    examples = []
    for number, arm in enumerate(make_mixture("tiny", 128).arms):
        made = arm.objective(random_text(128, rng), rng, length=128)
        examples.append([Example(made.context, made.target, number)])
    return pack_rows(examples, 128, SPACING)


def run(task: Task, name: str, bidirectional: bool, partial: Path) -> dict:
    """Train until two consecutive measurements meet the task's condition, or until the last step.

    Each measurement updates the curve in the file `partial`.
    """
    config = ModelConfig(
        name=name,
        bidirectional=bidirectional,
        layers=task.layers,
        features=task.features,
        state=task.state,
        mlp_features=task.features,
        dtype="float32",
        remat="none",
    )
    model = build_model(config, VOCABULARY)
    optimizer = make_optimizer(
        OptimizerConfig(learning_rate=task.learning_rate, warmup_steps=50, weight_decay=0.0),
        task.steps,
        parameter_policies(model),
    )
    batch = make_batch(task, 0)
    arms = len(task.text_lengths) or int(batch.arm_ids.max()) + 1
    judged = slice(-1, None) if task.text_lengths else slice(None)
    params = model.init(jax.random.key(0), batch)["params"]
    state = TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), {})
    loss = language_model_loss(model, arms, batch.tokens.shape[1])
    step_function = jax.jit(functools.partial(take_step, loss, optimizer, 1), donate_argnums=0)
    curve, begin, learned_before = [], time.monotonic(), False
    loss = correct = tokens = 0.0
    for step in range(1, task.steps + 1):
        state, metrics = step_function(state, make_batch(task, step))
        sums = jax.device_get(metrics.sums)
        loss, correct, tokens = (
            loss + sums["loss"][judged].sum(),
            correct + sums["correct"][judged].sum(),
            tokens + sums["tokens"][judged].sum(),
        )
        if step % MEASURED_EVERY == 0:
            point = (step, float(loss / tokens), float(correct / tokens), time.monotonic() - begin)
            curve.append(point)
            partial.write_text(json.dumps(curve))
            loss = correct = tokens = 0.0
            learned = task.learned(point[1], point[2])
            if learned and learned_before:
                break
            learned_before = learned
    return {
        "task": task.name,
        "model": name,
        "bidirectional": bidirectional,
        "learned": learned_before,
        "wanted": task.wanted,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "curve": curve,
    }


def draw_curves(results, path):
    """Plot the loss or accuracy of every run by step."""
    with figure_style():
        _draw_curves(results, path)


def _draw_curves(results, path):
    figure = Figure(figsize=(12, 3.6 * len(TASKS)), layout="constrained")
    axes = figure.subplots(len(TASKS), 2, squeeze=False)
    for row, task in zip(axes, TASKS, strict=True):
        for axis, bidirectional in zip(row, (True, False), strict=True):
            for result in results:
                if result["task"] == task.name and result["bidirectional"] == bidirectional:
                    steps, losses, accuracies, _ = zip(*result["curve"], strict=True)
                    values = losses if task.name == "overfit" else accuracies
                    axis.plot(steps, values, label=result["model"])
            axis.set_title(
                f"{task.name.replace('_', ' ')}, {'bidirectional' if bidirectional else 'causal'}"
            )
            axis.set_xlabel("step")
            if task.name == "overfit":
                axis.set_yscale("log")
                axis.set_ylabel("loss, nats a token")
                axis.axhline(0.05, color="grey", linestyle=":")
            else:
                axis.set_ylim(0, 1.02)
                axis.set_ylabel("share of tokens right")
                axis.axhline(0.95, color="grey", linestyle=":")
            if axis.get_legend_handles_labels()[1]:
                axis.legend()
    figure.savefig(path, dpi=80)


def show(output):
    """Print the table and plot the curves of all available results."""
    results = [json.loads(path.read_text()) for path in sorted(output.glob("*.json"))]
    print("| task | model | reads the context | learned | steps | seconds | last loss | last accuracy |")
    print("|---|---|---|---|---|---|---|---|")
    for result in results:
        step, loss, accuracy, seconds = result["curve"][-1]
        direction = "both ways" if result["bidirectional"] else "causally"
        learned = "yes" if result["learned"] else f"no ({result['wanted']})"
        print(
            f"| {result['task']} | {result['model']} | {direction} | {learned} | {step} | {seconds:.0f} "
            f"| {loss:.4f} | {accuracy:.1%} |"
        )
    draw_curves(results, output / "curves.png")


def main():
    """Run what is missing, and show all results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = cache_folder() / "studies/learning"
    parser.add_argument("--output", type=Path, default=default)
    parser.add_argument("--tasks", nargs="*", default=[task.name for task in TASKS])
    parser.add_argument("--models", nargs="*", default=language_model_names())
    parser.add_argument("--directions", nargs="*", default=["bidirectional", "causal"])
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for task in TASKS:
        for name in language_model_names():
            for direction in ("bidirectional", "causal"):
                path = arguments.output / f"{task.name}-{name}-{direction}.json"
                is_selected = (
                    task.name in arguments.tasks
                    and name in arguments.models
                    and direction in arguments.directions
                )
                if is_selected and not path.exists():
                    partial = path.with_suffix(".partial")
                    result = run(task, name, direction == "bidirectional", partial)
                    path.write_text(json.dumps(result))
                    partial.unlink()
                    print(f"finished {path.stem}", flush=True)
    show(arguments.output)


if __name__ == "__main__":
    main()
