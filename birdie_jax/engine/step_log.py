"""Read the metrics of train steps one step late, so the device never waits, and add them up."""

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

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
        """Prepare to show steps first_step .. num_steps of a model of `parameters`, if `shown`."""
        self._num_steps = num_steps
        self._console = Console(file=sys.stdout, quiet=not shown)
        start = "starts" if first_step == 0 else f"resumes from step {first_step}"
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
        mfu = f"  MFU {summary['mfu']:.1%}" if "mfu" in summary else ""
        figures = f"{loss}{accuracy}{summary['tokens_per_second']:,.0f} tokens/s{mfu}"
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


class BadStepsInARow(TrainingDiverged):
    """Too many bad steps in a row, or one that changed the parameters.

    Attributes:
        first: the first of these steps.
        last: the last one.
    """

    def __init__(self, message: str, first: int, last: int):
        """Keep the message and the steps."""
        super().__init__(message)
        self.first = first
        self.last = last

    def advice(self, done: int) -> str:
        """Return the advice how to leave out those of the steps that follow step `done`."""
        number = self.last - self.first + 1
        steps = f"{number} bad steps in a row" if number > 1 else "a bad step"
        left_out = f"{max(self.first, done + 1)}:{self.last}"
        return f"; {steps}: when the run resumes, add {left_out} to config.train.skip_batches"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


Summarise = Callable[[StepTotals], dict[str, float]]


@dataclass
class OpenWindow:
    """The sums of the steps since the last summary, as in a checkpoint.

    Attributes:
        tokens_seen: the tokens of all steps up to the last summary.
        steps: the number of steps since the last summary.
        skipped: the number of these steps that changed nothing.
        tokens: the sum of `StepMetrics.tokens`. The following sums exclude skipped steps.
        loss: the sum of the mean losses.
        grad_norm: the sum of the norms.
        weight: the sum of `StepMetrics.weight`.
        sums: the sums of `StepMetrics.sums`, in float64.
    """

    tokens_seen: int = 0
    steps: int = 0
    skipped: int = 0
    tokens: float = 0.0
    loss: float = 0.0
    grad_norm: float = 0.0
    weight: float = 0.0
    sums: dict[str, Any] = field(default_factory=dict)

    def add(self, metrics: StepMetrics) -> None:
        """Add a step, on the host; if its sums have other names or shapes, start a new window."""
        shapes = {name: np.shape(value) for name, value in self.sums.items()}
        if shapes and shapes != {name: np.shape(value) for name, value in metrics.sums.items()}:
            vars(self).update(vars(OpenWindow(self.tokens_seen + int(self.tokens))))
        self.steps += 1
        self.tokens += float(metrics.tokens)
        if metrics.skipped:
            self.skipped += 1
            return
        self.loss += float(metrics.loss)
        self.grad_norm += float(metrics.grad_norm)
        self.weight += float(metrics.weight)
        for name, value in metrics.sums.items():
            # float64 adds up many steps without visible rounding.
            self.sums[name] = np.asarray(self.sums.get(name, 0.0)) + np.asarray(value, np.float64)

    def to_json(self) -> dict[str, Any]:
        """Return the window as JSON."""
        sums = {name: np.asarray(value).tolist() for name, value in self.sums.items()}
        return vars(self) | {"sums": sums}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "OpenWindow":
        """Return the window of a result of `to_json`; ignore fields of later versions."""
        return cls(**{name: value for name, value in found.items() if name in cls.__dataclass_fields__})


class StepLog:
    """Collects the metrics of the steps and sums them up every `log_every_steps`.

    Attributes:
        window: the steps since the last summary.
        host_seconds: the seconds per step, in the last summary, in which this process did not wait for its
            devices; 0 before the first summary.
    """

    def __init__(
        self,
        summarise: Summarise,
        log_every_steps: int,
        window: OpenWindow | None = None,
        mfu_of: Callable[[float], float] | None = None,
    ):
        """Start a log.

        Args:
            summarise: `Step.summarise`, see `protocols.py`.
            log_every_steps: the number of steps that one summary covers.
            window: the sums before the first step of this log; None: there are none.
            mfu_of: tokens per second -> the share of the devices' peak; None: unknown.
        """
        self._summarise = summarise
        self._every = log_every_steps
        self._mfu_of = mfu_of
        self._began = time.monotonic()
        self._pending: tuple[int, StepMetrics, float] | None = None
        self._num_skipped = 0
        self.window = window or OpenWindow()
        self.host_seconds = 0.0
        self._start_timing()

    def _start_timing(self) -> None:
        self._since = time.monotonic()
        self._paused = 0.0
        self._waited = 0.0
        self._waited_for_device = 0.0
        self._timed_steps = 0
        self._timed_tokens = 0.0

    def add(self, step: int, metrics: StepMetrics, host_wait: float) -> dict[str, float] | None:
        """Keep the metrics of `step`, which are still on the device, and read those of the step before it.

        Returns:
            A summary if the step before it completes one, else None.

        Raises:
            TrainingDiverged: the step before it ends the run, or changed the parameters with a loss or
                gradient that is not finite.
        """
        summary = self.flush()
        self._pending = (step, metrics, host_wait)
        return summary

    def flush(self) -> dict[str, float] | None:
        """Read the metrics of the pending step; see `add`."""
        if self._pending is None:
            return None
        step, on_device, host_wait = self._pending
        self._pending = None
        begin = time.monotonic()
        metrics = jax.device_get(on_device)
        self._waited_for_device += time.monotonic() - begin
        finite = math.isfinite(metrics.loss) and math.isfinite(metrics.grad_norm)
        if metrics.ends_run or not (finite or metrics.skipped):
            message, number = self._in_words(step, metrics), int(metrics.bad_in_a_row)
            raise BadStepsInARow(message, step - number + 1, step) if number else TrainingDiverged(message)
        self._timed_steps += 1
        self._timed_tokens += float(metrics.tokens)
        self._waited += host_wait
        self._num_skipped = int(metrics.num_skipped)
        self.window.add(metrics)
        if metrics.skipped:
            logging.warning("%s; skipped: it changes nothing", self._in_words(step, metrics))
        if step % self._every:
            return None
        summary = self._summary(step)
        self.window = OpenWindow(self.window.tokens_seen + int(self.window.tokens))
        self.host_seconds = max(summary[STEP_LINE_KEY] - self._waited_for_device / self._timed_steps, 0.0)
        self._start_timing()
        return summary

    def exclude(self, seconds: float) -> None:
        """Exclude the `seconds` that hooks took from the throughput."""
        self._paused += seconds

    def _summary(self, step: int) -> dict[str, float]:
        elapsed = max(time.monotonic() - self._since - self._paused, 1e-9)
        window, taken = self.window, self.window.steps - self.window.skipped
        means: dict[str, float] = {}
        measured: dict[str, float] = {}
        if taken:
            means = {"loss": window.loss / taken, "grad_norm": window.grad_norm / taken}
            sums = {name: np.asarray(value) for name, value in window.sums.items()}
            measured = self._summarise(
                StepTotals(step, window.steps, taken, window.weight, window.tokens, sums)
            )
        for name in measured:
            if name in STEP_SCALARS and name != "loss":
                raise ConfigError(
                    f"step: found the scalar {name!r} among its sums or the result of summarise, which the "
                    "loop itself logs; allowed: another name"
                )
        summary = {
            "step": step,
            **means,
            "tokens_per_second": self._timed_tokens / elapsed,
            **({} if self._mfu_of is None else {"mfu": self._mfu_of(self._timed_tokens / elapsed)}),
            "tokens_seen": float(window.tokens_seen + int(window.tokens)),
            "skipped_steps": self._num_skipped,
            "host_wait_seconds": self._waited / self._timed_steps,
            STEP_LINE_KEY: elapsed / self._timed_steps,
            "elapsed_seconds": time.monotonic() - self._began,
            **measured,
        }
        return {name: float(value) for name, value in summary.items()}

    def _in_words(self, step: int, metrics: StepMetrics) -> str:
        sums = {name: np.asarray(value) for name, value in metrics.sums.items()}
        try:
            parts = self._summarise(
                StepTotals(step, 1, 1, float(metrics.weight), float(metrics.tokens), sums)
            )
        except (ArithmeticError, ValueError):
            # A user's `summarise` may fail with such values.
            parts = {}
        losses = [
            f"{name.removesuffix('/loss')} {value:.4g}"
            for name, value in parts.items()
            if name.endswith("/loss")
        ]
        return (
            f"step {step}: the loss is {metrics.loss:.4g} and the gradient norm {metrics.grad_norm:.4g}"
            + (f"; losses: {', '.join(losses)}" if losses else "")
        )
