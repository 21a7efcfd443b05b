"""The least time that a step can take, by what sets it: a roofline with links beside compute and memory."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from birdie_jax.planning.links import busy_seconds
from birdie_jax.planning.topology import DeviceLocation, Topology
from hlo_analysis import Collective


class StepBounds(NamedTuple):
    """Lower bounds on the seconds of a step.

    Attributes:
        compute: the seconds of matrix products and kernels at the chip's peak.
        memory: the seconds of the main memory's traffic at its bandwidth.
        links: the seconds of the collectives on each kind of link, at its bandwidth.
    """

    compute: float
    memory: float
    links: dict[str, float]

    @property
    def collectives(self) -> float:
        """The seconds of the kind of link that is busy the longest."""
        return max(self.links.values(), default=0.0)

    @property
    def memory_and_collectives(self) -> float:
        """The seconds of memory and collectives, overlapped with each other."""
        return max(self.memory, self.collectives)

    @property
    def overlapped(self) -> float:
        """The seconds of a step in which everything overlaps."""
        return max(self.compute, self.memory_and_collectives)

    @property
    def serial(self) -> float:
        """The seconds of a step in which compute, memory and collectives wait for one another."""
        return self.compute + self.memory + self.collectives

    @property
    def set_by(self) -> str:
        """The name of the largest bound: "products", "memory" or a kind of link."""
        seconds = {"products": self.compute, "memory": self.memory, **self.links}
        return max(seconds, key=lambda name: seconds[name])

    @property
    def seconds_by_cause(self) -> dict[str, float]:
        """The bounds by what sets them, in the words of a plan's text and JSON."""
        return {
            "matrix products": self.compute,
            "main memory": self.memory,
            **dict(sorted(self.links.items())),
            "all of them, everything overlapped": self.overlapped,
            "memory and collectives alone": self.memory_and_collectives,
            "nothing overlapped": self.serial,
        }


def step_bounds(
    topology: Topology,
    locations: list[DeviceLocation],
    dot_flops: float,
    traffic_bytes: float,
    collectives: Iterable[Collective],
) -> StepBounds:
    """Return the bounds of a step.

    Args:
        topology: a topology with figures of its chip.
        locations: the locations of the devices of the mesh, in the order of the mesh.
        dot_flops: the FLOPs of matrix products and kernels of one device.
        traffic_bytes: the bytes between one device and its main memory.
        collectives: the collectives of the step.

    Raises:
        ValueError: no figures are known of the topology's chip.
    """
    links: dict[str, float] = defaultdict(float)
    for collective in collectives:
        for name, seconds in busy_seconds(topology, locations, collective).items():
            links[name] += seconds * collective.executions
    chip = topology.known_chip
    return StepBounds(dot_flops / chip.peak_flops, traffic_bytes / chip.memory_bandwidth, dict(links))
