"""Lower bounds on the time of a step: a roofline with compute, memory and links."""

from collections import defaultdict
from functools import partial
from typing import NamedTuple

import numpy as np

from birdie_jax.planning.topology import DeviceLocation, Topology
from hlo_analysis import Collective, Rates, StepCosts

# A group of devices in several domains (slices or hosts) works in two steps: within a domain over its
# links, then between domains over the network. Each device carries its share. With m devices in each of s
# domains and a payload as in `hlo_analysis.collectives`, a device sends
#
#     all-gather, reduce-scatter    (m - 1) / m * payload within, (s - 1) / s * payload / m between
#     all-reduce                    twice that
#     all-to-all                    (m - 1) / (m s) * payload within, (s - 1) / s * payload between
#     collective-permute            payload, between if the devices of a pair are in two domains
#
# Links within a domain:
# - a grid dimension that closes to a ring and that the group covers has twice the bandwidth of a link,
#   because it is used both ways; any other dimension has once. A group over several dimensions uses all at
#   once ("How to Scale Your Model", https://jax-ml.github.io/scaling-book/sharding/).
# - an all-to-all over a dimension of k chips loads each of its links with k/8 of the payload on a ring, and
#   k/4 on a line; a permutation uses one link.
# - behind the switch of a host, every device sends with the whole bandwidth of its links.
#
# Collectives over different dimensions or networks can run at the same time. Those over the same one
# cannot.

NETWORK = "network"
SWITCH = "NVLink"
_GRID_LINKS = ("links x", "links y", "links z")
_PERMUTATIONS = ("collective-permute", "collective-broadcast")


class _GridDimension(NamedTuple):
    """A dimension of the grid of links that a group uses."""

    number: int
    extent: int
    is_ring: bool


class _Route(NamedTuple):
    """The connections between the devices of a group.

    Attributes:
        domain_devices: the number of a group's devices in one domain.
        domains: the number of domains of a group.
        dimensions: the dimensions of the grid along which the devices of some group in a domain differ.
    """

    domain_devices: int
    domains: int
    dimensions: tuple[_GridDimension, ...]


def busy_seconds(
    topology: Topology, locations: list[DeviceLocation], collective: Collective
) -> dict[str, float]:
    """Return the minimum seconds that one execution of a collective occupies each kind of link.

    Args:
        topology: the topology of the collective, with figures of its chip.
        locations: the locations of the devices of the mesh, in the order of the mesh.
        collective: the collective.

    Raises:
        ValueError: the figures of the topology's chip are unknown.
    """
    chip = topology.known_chip
    # The pairs of a permutation may use different links, and a device may keep its own part.
    members = (
        collective.groups.members if collective.kind in _PERMUTATIONS else collective.groups.members[:1]
    )
    route = _route(topology, [[locations[device] for device in group] for group in members])
    within, between = _sent_bytes(locations, collective, route)
    busy = {}
    if between:
        busy[NETWORK] = between / chip.network_bandwidth
    if within and not topology.shape:
        busy[SWITCH] = within / chip.link_bandwidth
    elif within:
        seconds = _busiest_link_bytes(collective, route, within) / chip.link_bandwidth
        busy |= {_GRID_LINKS[dimension.number]: seconds for dimension in route.dimensions}
    return busy


def _route(topology: Topology, groups: list[list[DeviceLocation]]) -> _Route:
    domains = sorted({location.domain for location in groups[0]})
    inside = [_in_first_domain(group) for group in groups]
    dimensions = []
    for number, extent in enumerate(topology.shape):
        covered = max(len({coordinates[number] for coordinates in group}) for group in inside)
        if covered > 1:
            is_ring = covered == extent and topology.is_ring(number)
            dimensions.append(_GridDimension(number, covered, is_ring))
    return _Route(len(inside[0]), len(domains), tuple(dimensions))


def _in_first_domain(group: list[DeviceLocation]) -> list[tuple[int, ...]]:
    first = min(location.domain for location in group)
    return [location.coordinates for location in group if location.domain == first]


def _sent_bytes(
    locations: list[DeviceLocation], collective: Collective, route: _Route
) -> tuple[float, float]:
    """Return the bytes that a device sends within its domain, and between domains."""
    m, s, payload = route.domain_devices, route.domains, collective.payload_bytes
    if collective.kind in _PERMUTATIONS:
        domains = np.array([location.domain for location in locations])[collective.groups.members]
        crosses = bool(np.any(domains != domains[:, :1]))
        return (0.0, float(payload)) if crosses else (float(payload), 0.0)
    if collective.kind.endswith("all-to-all"):
        return (m - 1) / (m * s) * payload, (s - 1) / s * payload
    factor = 2 if collective.kind == "all-reduce" else 1
    return factor * (m - 1) / m * payload, factor * (s - 1) / s * payload / m


def _busiest_link_bytes(collective: Collective, route: _Route, within: float) -> float:
    """Return the bytes that the busiest link of the grid carries one way."""
    if collective.kind in _PERMUTATIONS:
        return within
    if collective.kind.endswith("all-to-all"):
        loads = (dimension.extent / (8 if dimension.is_ring else 4) for dimension in route.dimensions)
        return max(loads) * collective.payload_bytes / route.domains
    return within / sum(2 if dimension.is_ring else 1 for dimension in route.dimensions)


class StepBounds(NamedTuple):
    """Lower bounds on the seconds of a step.

    Attributes:
        compute: the seconds of matrix products and kernels at the chip's peak.
        memory: the seconds of the main memory's traffic at its bandwidth.
        links: the seconds of the collectives on each kind of link, at its bandwidth.
        instructions: the seconds of the compiled program's instructions in order, including waits.
    """

    compute: float
    memory: float
    links: dict[str, float]
    instructions: float = 0.0

    @property
    def collectives(self) -> float:
        """The seconds of the busiest kind of link."""
        return max(self.links.values(), default=0.0)

    @property
    def memory_and_collectives(self) -> float:
        """The seconds of memory and collectives, overlapped with each other."""
        return max(self.memory, self.collectives)

    @property
    def overlapped(self) -> float:
        """The seconds of a step if everything overlaps."""
        return max(self.compute, self.memory_and_collectives)

    @property
    def program_order(self) -> float:
        """The seconds of a step in the order of the compiled program, including exposed collectives."""
        return max(self.overlapped, self.instructions)

    @property
    def serial(self) -> float:
        """The seconds of a step if compute, memory and collectives run one after another."""
        return self.compute + self.memory + self.collectives

    @property
    def set_by(self) -> str:
        """The name of the largest bound: "products", "memory" or a kind of link."""
        seconds = {"products": self.compute, "memory": self.memory, **self.links}
        return max(seconds, key=lambda name: seconds[name])

    @property
    def seconds_by_cause(self) -> dict[str, float]:
        """The bounds by their causes, with the names of a plan's text and JSON."""
        return {
            "matrix products": self.compute,
            "main memory": self.memory,
            **dict(sorted(self.links.items())),
            "all of them, everything overlapped": self.overlapped,
            "memory and collectives alone": self.memory_and_collectives,
            "in the order of the program": self.program_order,
        }


def step_bounds(
    topology: Topology,
    locations: list[DeviceLocation],
    costs: StepCosts,
) -> StepBounds:
    """Return the bounds of a step.

    Args:
        topology: a topology with figures of its chip.
        locations: the locations of the devices of the mesh, in the order of the mesh.
        costs: the costs of one device in the step.

    Raises:
        ValueError: the figures of the topology's chip are unknown.
    """
    links: dict[str, float] = defaultdict(float)
    for collective in costs.collectives:
        for name, seconds in busy_seconds(topology, locations, collective).items():
            links[name] += seconds * collective.executions
    chip = topology.known_chip
    return StepBounds(
        costs.flops.dot / chip.peak_flops,
        costs.traffic_bytes / chip.memory_bandwidth,
        dict(links),
        costs.timeline.seconds if costs.timeline is not None else 0.0,
    )


def rates_of(topology: Topology, locations: list[DeviceLocation]) -> Rates:
    """Return the speeds of a device of a topology.

    Args:
        topology: a topology with figures of its chip.
        locations: the locations of the devices of the mesh, in the order of the mesh.

    Raises:
        ValueError: the figures of the topology's chip are unknown.
    """
    chip = topology.known_chip
    return Rates(chip.peak_flops, chip.memory_bandwidth, partial(busy_seconds, topology, locations))
