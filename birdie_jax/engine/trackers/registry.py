"""The tracker protocol, and every tracker by its name."""

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from birdie_jax.config_sections import Config
from birdie_jax.errors import ConfigError
from birdie_jax.registry import Registry


class TrackedRun(NamedTuple):
    """A run as a tracker knows it.

    Attributes:
        name: the name of its workdir.
        identity: the same after a kill, and different for every other run.
        folder: a folder of this machine for what the tracker writes before it sends it.
        config: the configuration, as config.json has it.
    """

    name: str
    identity: str
    folder: str
    config: Mapping[str, Any]


@runtime_checkable
class Tracker(Protocol):
    """Receives a run's logs. All calls come from one thread, which is not the loop's.

    After an exception the tracker receives nothing more; the run continues.
    """

    def start(self, run: TrackedRun) -> None:
        """Open the run, or open it again where an earlier process of it was stopped."""
        ...

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Receive finite scalars of a step. After a kill, some steps are logged again."""
        ...

    def finish(self, *, succeeded: bool) -> None:
        """Send the rest; the process ends, with or without an error."""
        ...


class TrackerKind(NamedTuple):
    """The entry for a name in `config.train.trackers`.

    Attributes:
        make: () -> the tracker.
        module: the module that it imports.
        install: what `pip install` needs for that module.
    """

    make: Callable[[], Tracker]
    module: str
    install: str


TRACKERS: Registry[TrackerKind] = Registry("config.train.trackers")


def register_tracker(
    name: str, make: Callable[[], Tracker], *, module: str = "birdie_jax", install: str = "birdie-jax"
) -> None:
    """Make a tracker known as `config.train.trackers`.

    Args:
        name: its name.
        make: () -> the tracker.
        module: the module that it imports when it starts.
        install: what `pip install` needs for that module.

    Raises:
        ValueError: the name is taken.
    """
    TRACKERS.register(name, TrackerKind(make, module, install))


def tracker_names(config: Config) -> list[str]:
    """Return the names in `config.train.trackers`, in its order.

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
