"""What a person sees while training runs: a bar on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Mapping
from types import TracebackType

from absl import logging
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


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
        accuracy = f"accuracy {summary['accuracy']:.1%}  " if "accuracy" in summary else ""
        figures = f"loss {summary['loss']:.3f}  {accuracy}{summary['tokens_per_second']:,.0f} tokens/s"
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


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
