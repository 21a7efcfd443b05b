"""From device arrays to metrics.jsonl and TensorBoard, one step late, so that the device never waits."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from tensorboardX import SummaryWriter

from birdie_jax.training.step import ArmSums, StepMetrics


class TrainingDiverged(RuntimeError):  # noqa: N818 - the run's outcome, not a fault of the program
    """The loss is NaN or infinite; the message names the step, the arms' losses and the last checkpoint."""


class MetricsFile:
    """`metrics.jsonl` and TensorBoard events of a workdir, continued from a step on.

    What a killed run wrote beyond the step it resumes from is taken back: those steps are run again, and
    the finished file reads like that of a run that was never stopped.

    Attributes:
        path: of the JSON lines.
        kept: newest value of every scalar up to the step that the file was continued from.
    """

    def __init__(
        self, workdir: Path, first_step: int, validates_again: bool = False, *, writes: bool = True
    ):
        """Open both for appending after step `first_step`; at step 0 they begin anew.

        Args:
            workdir: folder of the run.
            first_step: the step that the run continues from.
            validates_again: whether validation at `first_step` comes after its checkpoint and so once more.
            writes: False in a process that only measures, and leaves both to another.
        """
        self.path = workdir / "metrics.jsonl"
        kept = _lines_up_to(self.path, first_step, validates_again) if first_step else []
        self.kept: dict[str, float] = {}
        for line in kept:
            self.kept.update(json.loads(line))
        self._file = self._events = None
        if not writes:
            return
        temporary = self.path.with_suffix(".jsonl.partial")
        temporary.write_bytes(b"".join(kept))
        temporary.replace(self.path)
        self._file = self.path.open("a", encoding="utf-8")
        self._events = SummaryWriter(str(workdir / "tensorboard"), purge_step=first_step + 1)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Append one object of `step` and `scalars`; a value that is not finite is left out."""
        if self._file is None or self._events is None:
            return
        finite = {name: value for name, value in scalars.items() if math.isfinite(value)}
        self._file.write(json.dumps({"step": step, **finite}) + "\n")
        self._file.flush()
        for name, value in finite.items():
            self._events.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close both."""
        for file in (self._file, self._events):
            if file is not None:
                file.close()


def _lines_up_to(path: Path, step: int, validates_again: bool) -> list[bytes]:
    if not path.exists():
        return []
    kept = []
    with open(path, "rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                # A killed process leaves half a line at the end.
                break
            is_validation = any(name.endswith("/validation_loss") for name in record)
            if record["step"] > step or (record["step"] == step and is_validation and validates_again):
                break
            kept.append(line)
    return kept


class StepLog:
    """Collects what the steps tell, one step late, and sums it up every `log_every_steps`."""

    def __init__(self, arm_names: Sequence[str], log_every_steps: int, row_tokens: int, tokens_seen: int):
        """Start a log.

        Args:
            arm_names: in the order of the arms.
            log_every_steps: steps that one summary covers.
            row_tokens: positions of the global batch, rows * length.
            tokens_seen: context and target tokens seen before the first step of this log.
        """
        self._names = arm_names
        self._every = log_every_steps
        self._row_tokens = row_tokens
        self.tokens_seen = tokens_seen
        self._began = time.monotonic()
        self._pending: tuple[int, StepMetrics, float] | None = None
        self._clear()

    def _clear(self) -> None:
        self._since = time.monotonic()
        self._paused = 0.0
        self._waited = 0.0
        self._steps = 0
        self._grad_norm = 0.0
        self._sample_tokens = 0.0
        self._sums: list[np.ndarray] = [np.zeros(len(self._names)) for _ in ArmSums._fields]

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
        self._grad_norm += float(metrics.grad_norm)
        self._sample_tokens += float(metrics.sample_tokens)
        self._sums = [total + part for total, part in zip(self._sums, metrics.arms, strict=True)]
        if step % self._every:
            return None
        summary = self._summary(step)
        self._clear()
        return summary

    def exclude(self, seconds: float) -> None:
        """Leave out of the throughput `seconds` that were spent on validation or saving."""
        self._paused += seconds

    def _summary(self, step: int) -> dict[str, float]:
        elapsed = max(time.monotonic() - self._since - self._paused, 1e-9)
        self.tokens_seen += int(self._sample_tokens)
        loss, correct, tokens = self._sums
        total = max(tokens.sum(), 1.0)
        summary = {
            "step": step,
            "loss": loss.sum() / total,
            "accuracy": correct.sum() / total,
            "grad_norm": self._grad_norm / self._steps,
            "tokens_per_second": self._sample_tokens / elapsed,
            "tokens_seen": float(self.tokens_seen),
            "padding_share": 1.0 - self._sample_tokens / (self._steps * self._row_tokens),
            "host_wait_seconds": self._waited / self._steps,
            "step_seconds": elapsed / self._steps,
            "elapsed_seconds": time.monotonic() - self._began,
        }
        for number, name in enumerate(self._names):
            summary[f"arm/{name}/tokens"] = tokens[number]
            if tokens[number]:
                summary[f"arm/{name}/loss"] = loss[number] / tokens[number]
                summary[f"arm/{name}/accuracy"] = correct[number] / tokens[number]
        return {name: float(value) for name, value in summary.items()}

    def _divergence(self, step: int, metrics: StepMetrics) -> str:
        sums = metrics.arms
        arms = ", ".join(
            f"{name} {sums.loss[number] / sums.tokens[number]:.4g}"
            for number, name in enumerate(self._names)
            if sums.tokens[number]
        )
        return (
            f"step {step}: the loss is {metrics.loss:.4g} and the gradient norm {metrics.grad_norm:.4g}; "
            f"losses of the arms: {arms}"
        )
