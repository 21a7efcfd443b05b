"""Trackers by name. A new tracker needs one file, and one line here."""

# Importing a tracker registers it.
from birdie_jax.engine.trackers import mlflow_runs, weights_and_biases
from birdie_jax.engine.trackers.registry import (
    TRACKERS,
    TrackedRun,
    Tracker,
    register_tracker,
    tracker_names,
)
from birdie_jax.engine.trackers.sending import sending

__all__ = [
    "TRACKERS",
    "TrackedRun",
    "Tracker",
    "mlflow_runs",
    "register_tracker",
    "sending",
    "tracker_names",
    "weights_and_biases",
]
