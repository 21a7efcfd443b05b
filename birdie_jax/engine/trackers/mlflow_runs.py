"""MLflow (https://mlflow.org): `config.train.trackers=mlflow`, with the extra of that name."""

import importlib
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from birdie_jax.engine.trackers.registry import TrackedRun, register_tracker

_TAG = "birdie_jax_run"
# MLflow rejects longer requests, and other characters in names.
_MAX_METRICS = 1000
_REFUSED = re.compile(r"[^\w\-./ :]")


class MlflowRuns:
    """An MLflow run, configured by MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and so on."""

    def __init__(self):
        """Create a tracker without a run."""
        self._client: Any = None
        self._run = ""

    def start(self, run: TrackedRun) -> None:
        """Open the run that has a tag with this identity, or create it."""
        mlflow = importlib.import_module("mlflow")
        self._client = mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "birdie-jax")
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        found = self._client.search_runs([number], f"tags.{_TAG} = '{run.identity}'")
        if found:
            self._run = found[0].info.run_id
            self._client.set_terminated(self._run, "RUNNING")
        else:
            created = self._client.create_run(number, run_name=run.name, tags={_TAG: run.identity})
            self._run = created.info.run_id
            self._client.log_dict(self._run, dict(run.config), "config.json")

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Log scalars of a step."""
        metric = importlib.import_module("mlflow.entities").Metric
        now = int(time.time() * 1000)
        metrics = [metric(_REFUSED.sub("_", name), value, now, step) for name, value in scalars.items()]
        for first in range(0, len(metrics), _MAX_METRICS):
            self._client.log_batch(self._run, metrics=metrics[first : first + _MAX_METRICS])

    def finish(self, *, succeeded: bool) -> None:
        """Record whether the process succeeded."""
        self._client.set_terminated(self._run, "FINISHED" if succeeded else "FAILED")


register_tracker("mlflow", MlflowRuns, module="mlflow", install="birdie-jax[mlflow]")
