"""The proxies of a search. Each proxy is one training in its own process."""

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from birdie_jax.child_process import run_child
from birdie_jax.errors import BirdieError
from birdie_jax.metric_names import arm_metric
from birdie_jax.mixture_search.config_files import BaseConfig
from birdie_jax.mixture_search.folder import SearchFolder
from birdie_jax.objectives import Mixture
from birdie_jax.saved_config import read_json
from birdie_jax.storage import exists
from birdie_jax.storage.metric_lines import parse_line, read_metric_lines
from birdie_jax.storage.workdir import Workdir

# Maps the arguments of `train` and the file for its output to an exit status.
Runner = Callable[[Sequence[str], Path], int]


class ProxyError(BirdieError):
    """Proxies failed; the message names them and their logs."""

    status = 1


def run_training(arguments: Sequence[str], log: Path) -> int:
    """Train in a child process that ends with this process, and return its exit status."""
    command = [sys.executable, "-m", "birdie_jax.train", *arguments]
    with log.open("a") as output:
        print(f"\n{shlex.join(command)}", file=output, flush=True)
        return run_child(command, output)


def last_line(log: Path) -> str:
    """Return the last nonempty line of a log."""
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line for line in reversed(lines) if line.strip()), "")


def read_losses(workdir: Workdir, mixture: Mixture) -> Mapping[str, float] | None:
    """Return the final validation loss of every class, or None if the run is unfinished.

    The loss of a class is the mean over its arms.

    Args:
        workdir: the workdir of the run.
        mixture: the arms of the run.

    Raises:
        ConfigError: the summary of the run is damaged.
        ProxyError: the run ended without these losses.
    """
    if not exists(workdir.summary):
        return None
    if not read_json(workdir.summary, "the summary of a run").get("completed"):
        return None
    last: dict[str, float] = {}
    # A resumed run repeats steps. The later lines count.
    for line in read_metric_lines(workdir):
        last |= parse_line(line) or {}
    losses: dict[str, list[float]] = {}
    for name, group in zip(mixture.names, mixture.groups, strict=True):
        loss = last.get(arm_metric(name, "validation_loss"), np.nan)
        if not np.isfinite(loss):
            raise ProxyError(
                f"{workdir.metrics}: found no validation loss of arm {name!r}, and the run has ended; "
                "remove the workdir, and the same command trains it again"
            )
        losses.setdefault(group, []).append(loss)
    return {group: float(np.mean(values)) for group, values in losses.items()}


def train_proxies(
    folder: SearchFolder,
    base: BaseConfig,
    schedules: Mapping[int, str],
    mixture: Mixture,
    *,
    imports: Sequence[str] = (),
    runner: Runner = run_training,
) -> tuple[int, list[int]]:
    """Train all unfinished proxies. If a proxy fails, report it and continue with the next.

    Args:
        folder: the folder of the search.
        base: the configuration of all proxies.
        schedules: `bandit.stages` of each proxy, by its number.
        mixture: the arms.
        imports: the modules for `train` to import.
        runner: runs a training.

    Returns:
        The number of trained proxies, and the numbers of the failed proxies.

    Raises:
        ConfigError: proxies read different texts.
    """
    trained, failed = 0, []
    for place, (number, stages) in enumerate(schedules.items(), start=1):
        if read_losses(folder.workdir(number), mixture) is not None:
            continue
        folder.check_texts()
        trained += 1
        log = folder.log(number)
        base.write(folder.config(number), f"Proxy {number} of a search of a mixture.", stages)
        _report(f"proxy {number}, {place} of {len(schedules)}: {stages}")
        begin = time.monotonic()
        arguments = [f"--config={folder.config(number)}", f"--workdir={folder.workdir(number)}"]
        status = runner([*arguments, *(f"--import={name}" for name in imports)], log)
        losses = None if status else read_losses(folder.workdir(number), mixture)
        if losses is None:
            failed.append(number)
            _report(f"proxy {number}: failed with status {status}: {log}: {last_line(log)}")
        else:
            mean = np.mean(list(losses.values()))
            _report(f"proxy {number}: mean loss {mean:.4f}, {time.monotonic() - begin:.0f} s")
    return trained, failed


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
