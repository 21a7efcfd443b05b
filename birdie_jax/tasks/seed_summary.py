"""Mean and spread of scores over runs that differ only in their seed, each at its last checkpoint.

    python -m birdie_jax.tasks.seed_summary --workdir=runs/rte --workdir=runs/rte_1

Reads the evaluations in the workdirs. Only scores of a run's newest checkpoint count, so no score is the
best of several checkpoints.
"""

from absl import flags

from birdie_jax.command_line import start
from birdie_jax.tasks.evaluation_table import rendered_columns, summarise_seeds

_WORKDIRS = flags.DEFINE_multi_string("workdir", [], "Workdir of a run; give two or more.")


def main(arguments: list[str]) -> None:
    """Print the table."""
    del arguments
    rows = [
        (
            one.evaluation,
            one.metric,
            f"{one.mean:.4f}",
            f"{one.deviation:.4f}",
            f"{min(one.scores):.4f} .. {max(one.scores):.4f}",
            str(len(one.scores)),
        )
        for one in summarise_seeds(_WORKDIRS.value)
    ]
    print(rendered_columns(("task", "metric", "mean", "deviation", "range", "runs"), rows))


if __name__ == "__main__":
    start("tasks.seed_summary", main, OSError)
