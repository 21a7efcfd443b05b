"""What the train steps tell, read one step late so that the device never waits, and summed up."""

import math
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType

import jax
import numpy as np
from absl import logging
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from birdie_jax.engine.metrics_file import STEP_LINE_KEY, STEP_SCALARS
from birdie_jax.engine.state import StepMetrics, StepTotals
from birdie_jax.errors import ConfigError, TrainingDiverged


class Progress:
    """Shows step, loss, accuracy, tokens/s and time left."""

    def __init__(self, num_steps: int, first_step: int, parameters: int, *, shown: bool = True):
        """Prepare to show steps first_step .. num_steps of a model of `parameters`, or nothing."""
        self._num_steps = num_steps
        self._console = Console(file=sys.stdout, quiet=not shown)
        start = "starts" if first_step == 0 else f"goes on from step {first_step}"
        self._say(f"{parameters:,} parameters; training {start}, to step {num_steps}")
        self._bar = Bar(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not (shown and self._console.is_terminal),
        )
        self._task = self._bar.add_task("train", total=num_steps, completed=first_step, figures="")

    def show(self, step: int, summary: Mapping[str, float]) -> None:
        """Show the figures of the steps up to `step`."""
        loss = f"loss {summary['loss']:.3f}  " if "loss" in summary else ""
        accuracy = f"accuracy {summary['accuracy']:.1%}  " if "accuracy" in summary else ""
        figures = f"{loss}{accuracy}{summary['tokens_per_second']:,.0f} tokens/s"
        self._bar.update(self._task, completed=step, figures=figures)
        if not self._console.is_terminal:
            left = summary["step_seconds"] * (self._num_steps - step)
            self._say(f"step {step}/{self._num_steps}  {figures}  {_clock(left)} left")

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)
        self._console.file.flush()

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()
        logging.flush()


def _way_past(step: int, metrics: StepMetrics) -> str:
    """Return how to leave out the batches of bad steps that end at `step`."""
    number = int(metrics.bad_in_a_row)
    if number == 0:
        return ""
    steps = f"{number} bad steps in a row" if number > 1 else "a bad step"
    return f"; {steps}, whose batches config.train.skip_batches={step - number + 1}:{step} leaves out"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


Summarise = Callable[[StepTotals], dict[str, float]]


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
        self._num_skipped = 0
        self._clear()

    def _clear(self) -> None:
        self._since = time.monotonic()
        self._paused = 0.0
        self._waited = 0.0
        self._steps = 0
        self._skipped = 0
        self._loss = 0.0
        self._grad_norm = 0.0
        self._weight = 0.0
        self._tokens = 0.0
        self._taken_tokens = 0.0
        self._sums: dict[str, np.ndarray] = {}

    def add(self, step: int, metrics: StepMetrics, host_wait: float) -> dict[str, float] | None:
        """Take what step `step` tells, still on the device; read the step before it.

        Returns:
            A summary when the step before it completes one, else None.

        Raises:
            TrainingDiverged: the step before it ends the run, or changed the parameters by a loss or
                gradient that is not finite.
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
        finite = math.isfinite(metrics.loss) and math.isfinite(metrics.grad_norm)
        if metrics.ends_run or not (finite or metrics.skipped):
            raise TrainingDiverged(self._in_words(step, metrics) + _way_past(step, metrics))
        self._steps += 1
        self._waited += host_wait
        self._tokens += float(metrics.tokens)
        self._num_skipped = int(metrics.num_skipped)
        if metrics.skipped:
            self._skipped += 1
            logging.warning("%s; skipped: it changes nothing", self._in_words(step, metrics))
        else:
            self._loss += float(metrics.loss)
            self._grad_norm += float(metrics.grad_norm)
            self._weight += float(metrics.weight)
            self._taken_tokens += float(metrics.tokens)
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
        taken = self._steps - self._skipped
        means: dict[str, float] = {}
        measured: dict[str, float] = {}
        if taken:
            means = {"loss": self._loss / taken, "grad_norm": self._grad_norm / taken}
            totals = StepTotals(step, taken, self._weight, self._taken_tokens, self._sums)
            measured = self._summarise(totals)
        for name in measured:
            if name in STEP_SCALARS and name != "loss":
                raise ConfigError(
                    f"step: found the scalar {name!r} among its sums or what summarise returns, which the "
                    "loop itself logs; allowed: another name"
                )
        summary = {
            "step": step,
            **means,
            "tokens_per_second": self._tokens / elapsed,
            "tokens_seen": float(self.tokens_seen),
            "skipped_steps": self._num_skipped,
            "host_wait_seconds": self._waited / self._steps,
            STEP_LINE_KEY: elapsed / self._steps,
            "elapsed_seconds": time.monotonic() - self._began,
            **measured,
        }
        return {name: float(value) for name, value in summary.items()}

    def _in_words(self, step: int, metrics: StepMetrics) -> str:
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
