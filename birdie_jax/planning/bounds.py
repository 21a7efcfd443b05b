"""The least time that a step can take, by what sets it, and what follows for tokens a second and MFU."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from birdie_jax.planning.collectives import Collective
from birdie_jax.planning.links import busy_seconds
from birdie_jax.planning.topology import Place, Topology


class Bounds(NamedTuple):
    """Seconds of a step that nothing can undercut.

    Attributes:
        products: matrix products and kernels at the chip's peak.
        memory: main memory at its bandwidth.
        links: of collectives, each kind of link at its bandwidth.
    """

    products: float
    memory: float
    links: dict[str, float]

    @property
    def collectives(self) -> float:
        """Seconds of the links that are busy longest."""
        return max(self.links.values(), default=0.0)

    @property
    def step(self) -> float:
        """Seconds of a step in which everything overlaps."""
        return max(self.products, self.without_products)

    @property
    def without_products(self) -> float:
        """Seconds that memory and collectives take, overlapped with each other."""
        return max(self.memory, self.collectives)

    @property
    def nothing_overlaps(self) -> float:
        """Seconds of a step in which products, memory and collectives wait for one another."""
        return self.products + self.memory + self.collectives

    @property
    def set_by(self) -> str:
        """What takes longest."""
        seconds = {"products": self.products, "memory": self.memory, **self.links}
        return max(seconds, key=lambda name: seconds[name])


def make_bounds(
    topology: Topology,
    places: list[Place],
    products: float,
    bytes_moved: float,
    collectives: Iterable[Collective],
) -> Bounds:
    """Return the bounds of a step.

    Args:
        topology: with a chip of known figures.
        places: of the devices of the mesh, in its order.
        products: FLOPs of a device.
        bytes_moved: between a device and its main memory.
        collectives: of the step.
    """
    links: Counter[str] = Counter()
    for one in collectives:
        for name, seconds in busy_seconds(topology, places, one).items():
            links[name] += seconds * one.times
    chip = topology.chip
    return Bounds(products / chip.peak_flops, bytes_moved / chip.memory_bandwidth, dict(links))
