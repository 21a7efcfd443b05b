"""The starts of a run, in a JSON file that `train` writes and the report reads.

A run has one start for each time that a user or a launcher runs its command.
"""

from dataclasses import dataclass
from datetime import datetime

from birdie_jax.errors import DataError, one_line
from birdie_jax.storage import exists, parse_typed, read_bytes
from birdie_jax.storage.json_text import parse_json
from birdie_jax.storage.workdir import Workdir


def stopped_by(signal: str) -> str:
    """Return the outcome of a start that a signal stopped, such as SIGTERM."""
    return f"stopped by {signal}"


@dataclass(frozen=True)
class Program:
    """The program of a process.

    Attributes:
        command: the command line.
        environment: the environment variables that change its results or speed.
        versions: the versions of Python, of this project and of its libraries, by name.
        commit: the commit, followed by " changed" if files of the checkout differ; None if it is unknown.
        host: the name of the machine.
    """

    command: str
    environment: dict[str, str]
    versions: dict[str, str]
    commit: str | None
    host: str

    @property
    def title(self) -> str:
        """The project, JAX and Python with their versions."""
        commit = f" ({self.commit[:7]}{self.commit[40:]})" if self.commit else ""
        return (
            f"birdie-jax {self.versions['birdie-jax']}{commit}, JAX {self.versions['jax']}, "
            f"Python {self.versions['Python']}"
        )


@dataclass(frozen=True)
class Start:
    """A start of a run.

    Attributes:
        began: the time when the devices were known, in UTC, ISO 8601.
        ended: the time of its end; None if it still runs or was killed.
        outcome: the outcome, as text; None as for `ended`.
        step: the last completed step; None as for `ended`, or if it is unknown.
        program: the program of the first process.
        processes: the number of processes.
        device: the kind of the devices.
        devices: the number of devices.
        mesh: the number of devices along each mesh axis.
    """

    began: str
    ended: str | None
    outcome: str | None
    step: int | None
    program: Program
    processes: int
    device: str
    devices: int
    mesh: dict[str, int]

    @property
    def machine(self) -> str:
        """The devices, the machine and the mesh, as text."""
        sizes = ",".join(f"{axis}={size}" for axis, size in self.mesh.items() if size > 1)
        hosts = f"{self.program.host}{f' and {self.processes - 1} more' if self.processes > 1 else ''}"
        return f"{self.devices} x {self.device} on {hosts}, mesh {sizes or 'of one device'}"

    @property
    def was_preempted(self) -> bool:
        """Whether SIGTERM stopped it; launchers restart such a run."""
        return self.outcome == stopped_by("SIGTERM")

    @property
    def device_hours(self) -> float | None:
        """The device hours, summed over devices; None if the end is unknown."""
        if self.ended is None:
            return None
        seconds = (datetime.fromisoformat(self.ended) - datetime.fromisoformat(self.began)).total_seconds()
        return max(0.0, seconds) * self.devices / 3600


def read_starts(workdir: Workdir) -> list[Start]:
    """Return the starts of a run, oldest first; empty for a run without the file.

    Raises:
        DataError: the file is damaged or cannot be read; the message names the file and the field.
    """
    path = workdir.starts
    try:
        if not exists(path):
            return []
        plain = parse_json(read_bytes(path))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise DataError(f"{path}: found no JSON ({one_line(str(error))}); allowed: a list") from error
    return parse_typed(list[Start], plain, str(path), DataError)
