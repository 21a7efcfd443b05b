"""The tracker protocol, and every tracker by its name."""

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from birdie_jax.config_sections import Config
from birdie_jax.errors import ConfigError
from birdie_jax.registry import Registry


class TrackedRun(NamedTuple):
    """The description of a run for a tracker.

    Attributes:
        name: the name of its workdir.
        identity: an identity that only this run has, and keeps after a kill.
        folder: a local folder for files that the tracker writes before it sends them.
        config: the configuration, as in config.json.
    """

    name: str
    identity: str
    folder: str
    config: Mapping[str, Any]


@runtime_checkable
class Tracker(Protocol):
    """Receives a run's logs.

    All calls come from one thread, which is not the loop's. After an exception, the run continues without
    the tracker.
    """

    def start(self, run: TrackedRun) -> None:
        """Open the run, or reopen it if an earlier process of the run was stopped."""
        ...

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Log finite scalars of a step. After a kill, some steps are logged again."""
        ...

    def finish(self, *, succeeded: bool) -> None:
        """Send the rest before the process ends, with or without an error."""
        ...


class TrackerKind(NamedTuple):
    """The entry for a name in `config.train.trackers`.

    Attributes:
        make: () -> the tracker.
        module: the module that the tracker imports.
        install: the argument of `pip install` for that module.
    """

    make: Callable[[], Tracker]
    module: str
    install: str


TRACKERS: Registry[TrackerKind] = Registry("config.train.trackers")


def register_tracker(
    name: str, make: Callable[[], Tracker], *, module: str = "birdie_jax", install: str = "birdie-jax"
) -> None:
    """Register a tracker for `config.train.trackers`.

    Args:
        name: the name of the tracker.
        make: () -> the tracker.
        module: the module that the tracker imports when it starts.
        install: the argument of `pip install` for that module.

    Raises:
        ValueError: the name is taken.
    """
    TRACKERS.register(name, TrackerKind(make, module, install))


def tracker_names(config: Config) -> list[str]:
    """Return the names in `config.train.trackers`, in order.

    Raises:
        ConfigError: a name is unknown or repeated, or its library is not installed.
    """
    names = TRACKERS.names_in(config.train.trackers)
    for name in names:
        kind = TRACKERS[name]
        if importlib.util.find_spec(kind.module) is None:
            raise ConfigError(
                f"config.train.trackers: {name} needs {kind.module}, which is not installed; install it: "
                f"pip install '{kind.install}'"
            )
    return names
