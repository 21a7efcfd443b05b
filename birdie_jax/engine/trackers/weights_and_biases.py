"""Weights & Biases (https://wandb.ai): `config.train.trackers=wandb`, with the extra of that name."""

import importlib
import os
from collections.abc import Mapping
from typing import Any

from birdie_jax.engine.trackers.registry import TrackedRun, register_tracker

_STEP = "train_step"
_LOGIN_SECONDS = 30


class WeightsAndBiases:
    """A Weights & Biases run, configured by WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE and so on.

    It receives scalars and the configuration, but no code and no printed output. Curves are over
    `train_step`, because W&B's own step cannot decrease. A run that resumes after a kill repeats steps.
    """

    def __init__(self):
        """Create a tracker without a run."""
        self._run: Any = None

    def start(self, run: TrackedRun) -> None:
        """Open the run with this identity, or create it."""
        wandb = importlib.import_module("wandb")
        self._run = wandb.init(
            id=run.identity,
            resume="allow",
            project=os.environ.get("WANDB_PROJECT", "birdie-jax"),
            name=os.environ.get("WANDB_NAME", run.name),
            dir=run.folder,
            config=dict(run.config),
            save_code=False,
            settings=wandb.Settings(console="off", disable_git=True, login_timeout=_LOGIN_SECONDS),
        )
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP)

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Log scalars of a step."""
        self._run.log({_STEP: step, **scalars})

    def finish(self, *, succeeded: bool) -> None:
        """Wait until W&B has received everything."""
        self._run.finish(exit_code=0 if succeeded else 1)


register_tracker("wandb", WeightsAndBiases, module="wandb", install="birdie-jax[wandb]")
