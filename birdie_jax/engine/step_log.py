"""What the train steps tell, read one step late so that the device never waits, and summed up."""

import math
import time
from collections.abc import Callable

import jax
import numpy as np

from birdie_jax.engine.metrics_file import STEP_LINE_KEY
from birdie_jax.engine.state import StepMetrics, StepTotals

Summarise = Callable[[StepTotals], dict[str, float]]


class TrainingDiverged(RuntimeError):  # noqa: N818 - the run's outcome, not a fault of the program
    """The loss, or what a hook measured, is NaN or infinite; names the step and the last checkpoint."""


class StepLog:
    """Collects the metrics of the steps and sums them up every `log_every_steps`.

    Attributes:
        tokens_seen: the tokens of all steps up to the last summary.
    """

    def __init__(self, summarise: Summarise, log_every_steps: int, tokens_seen: int):
        """Start a log.

        Args:
            summarise: `Step.summarise`, see `protocols.py`.
            log_every_steps: the number of steps that one summary covers.
            tokens_seen: the number of tokens seen before the first step of this log.
        """
        self._summarise = summarise
        self._every = log_every_steps
        self.tokens_seen = tokens_seen
        self._began = time.monotonic()
        self._pending: tuple[int, StepMetrics, float] | None = None
        self._clear()

    def _clear(self) -> None:
        self._since = time.monotonic()
        self._paused = 0.0
        self._waited = 0.0
        self._steps = 0
        self._loss = 0.0
        self._grad_norm = 0.0
        self._weight = 0.0
        self._tokens = 0.0
        self._sums: dict[str, np.ndarray] = {}

    def add(self, step: int, metrics: StepMetrics, host_wait: float) -> dict[str, float] | None:
        """Take what step `step` tells, still on the device; read the step before it.

        Returns:
            A summary when the step before it completes one, else None.

        Raises:
            TrainingDiverged: the loss of the step before it is not finite.
        """
        summary = self.flush()
        self._pending = (step, metrics, host_wait)
        return summary

    def flush(self) -> dict[str, float] | None:
        """Read the step that is pending; see `add`."""
        if self._pending is None:
            return None
        step, on_device, host_wait = self._pending
        self._pending = None
        metrics = jax.device_get(on_device)
        if not math.isfinite(metrics.loss) or not math.isfinite(metrics.grad_norm):
            raise TrainingDiverged(self._divergence(step, metrics))
        self._steps += 1
        self._waited += host_wait
        self._loss += float(metrics.loss)
        self._grad_norm += float(metrics.grad_norm)
        self._weight += float(metrics.weight)
        self._tokens += float(metrics.tokens)
        for name, value in metrics.sums.items():
            # In float64, which adds up many steps without rounding that shows.
            self._sums[name] = self._sums.get(name, np.zeros(np.shape(value))) + value
        if step % self._every:
            return None
        summary = self._summary(step)
        self._clear()
        return summary

    def exclude(self, seconds: float) -> None:
        """Leave out of the throughput `seconds` that were spent on hooks."""
        self._paused += seconds

    def _summary(self, step: int) -> dict[str, float]:
        elapsed = max(time.monotonic() - self._since - self._paused, 1e-9)
        self.tokens_seen += int(self._tokens)
        summary = {
            "step": step,
            "loss": self._loss / self._steps,
            "grad_norm": self._grad_norm / self._steps,
            "tokens_per_second": self._tokens / elapsed,
            "tokens_seen": float(self.tokens_seen),
            "host_wait_seconds": self._waited / self._steps,
            STEP_LINE_KEY: elapsed / self._steps,
            "elapsed_seconds": time.monotonic() - self._began,
            **self._summarise(StepTotals(step, self._steps, self._weight, self._tokens, self._sums)),
        }
        return {name: float(value) for name, value in summary.items()}

    def _divergence(self, step: int, metrics: StepMetrics) -> str:
        sums = {name: np.asarray(value) for name, value in metrics.sums.items()}
        parts = self._summarise(StepTotals(step, 1, float(metrics.weight), float(metrics.tokens), sums))
        losses = [
            f"{name.removesuffix('/loss')} {value:.4g}"
            for name, value in parts.items()
            if name.endswith("/loss")
        ]
        return (
            f"step {step}: the loss is {metrics.loss:.4g} and the gradient norm {metrics.grad_norm:.4g}"
            + (f"; losses: {', '.join(losses)}" if losses else "")
        )
