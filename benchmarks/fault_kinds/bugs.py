"""Three bugs that the campaign must detect. A process gets one of them before it starts."""

from collections.abc import Callable


def keep_all_metrics() -> None:
    """Make a resumed run keep the old lines of steps that it repeats."""
    from birdie_jax.engine import metrics_file

    metrics_file.is_kept = lambda scalars, step, hooks_run_again: True


def restart_data() -> None:
    """Make a resumed run read its data from the start."""
    from birdie_jax.engine import FunctionBatches

    restore = FunctionBatches.restore
    FunctionBatches.restore = lambda self, position, state: restore(self, self.first_position(), state)


def swallow_failed_saves() -> None:
    """Make a run treat a checkpoint that it cannot write as written."""
    from birdie_jax.engine import checkpoint
    from birdie_jax.errors import CheckpointError

    def swallow(method: Callable) -> Callable:
        def call(*arguments, **options):
            try:
                return method(*arguments, **options)
            except CheckpointError:
                return None

        return call

    for name in ("save", "wait", "close"):
        setattr(checkpoint.Checkpoints, name, swallow(getattr(checkpoint.Checkpoints, name)))


BUGS: dict[str, Callable[[], None]] = {
    "metrics": keep_all_metrics,
    "data": restart_data,
    "saves": swallow_failed_saves,
}
"""The bugs by name."""
