"""How long collectives take at least on the links of a topology.

A group that lies in several domains (slices, or hosts) works in two steps: within a domain over its links,
and between domains over the network, of which each device carries its share. With m devices in each of s
domains and `payload` bytes as in `collectives`, a device sends

    all-gather, reduce-scatter    (m - 1) / m * payload within, (s - 1) / s * payload / m between
    all-reduce                    twice that
    all-to-all                    (m - 1) / (m s) * payload within, (s - 1) / s * payload between
    collective-permute            payload, between where a pair lies in two domains

Links within a domain:
- a grid dimension that closes to a ring and lies in the group from end to end is used both ways, any other
  one way: two or one times the bandwidth of a link. A group over several dimensions uses all of them at
  once ("How to Scale Your Model", https://jax-ml.github.io/scaling-book/sharding/).
- an all-to-all over a dimension of k chips loads each of its links with k/8 of the payload on a ring, and
  k/4 on a line; a permutation goes over one link.
- behind the switch of a host every device sends with the whole bandwidth of its links.

Collectives over different dimensions or networks can run at the same time, over the same ones they cannot.
"""

from typing import NamedTuple

import numpy as np

from birdie_jax.planning.collectives import Collective
from birdie_jax.planning.topology import Place, Topology

NETWORK = "network"
SWITCH = "NVLink"
_DIMENSIONS = ("links x", "links y", "links z")


class Route(NamedTuple):
    """What the devices of one group have between them.

    Attributes:
        within: devices of the group in a domain.
        domains: that it lies in.
        dimensions: of the grid, each with its extent in the group and whether it is used as a ring.
    """

    within: int
    domains: int
    dimensions: tuple[tuple[int, int, bool], ...]


def busy_seconds(topology: Topology, places: list[Place], collective: Collective) -> dict[str, float]:
    """Return how long one execution of a collective keeps each kind of link busy, at least.

    Args:
        topology: that it runs on.
        places: of the devices of the mesh, in its order.
        collective: what runs.
    """
    route = _route(topology, [places[device] for device in collective.groups.members[0]])
    within, between = _sent(topology, places, collective, route)
    busy = {}
    if between:
        busy[NETWORK] = between / topology.chip.network_bandwidth
    if within and not route.dimensions:
        busy[SWITCH] = within / topology.chip.link_bandwidth
    elif within:
        seconds = _on_grid(collective, route, within) / topology.chip.link_bandwidth
        busy |= {_DIMENSIONS[dimension]: seconds for dimension, _, _ in route.dimensions}
    return busy


def _route(topology: Topology, group: list[Place]) -> Route:
    domains = sorted({place.domain for place in group})
    inside = [place.coordinates for place in group if place.domain == domains[0]]
    dimensions = []
    for dimension, extent in enumerate(topology.shape):
        covered = len({coordinates[dimension] for coordinates in inside})
        if covered > 1:
            ring = covered == extent and topology.is_ring(dimension)
            dimensions.append((dimension, covered, ring))
    return Route(len(inside), len(domains), tuple(dimensions))


def _sent(
    topology: Topology, places: list[Place], collective: Collective, route: Route
) -> tuple[float, float]:
    """Return the bytes that a device sends within its domain, and between domains."""
    m, s, payload = route.within, route.domains, collective.payload
    if collective.kind in ("collective-permute", "collective-broadcast"):
        domains = np.array([place.domain for place in places])[collective.groups.members]
        crosses = bool(np.any(domains != domains[:, :1]))
        return (0.0, float(payload)) if crosses else (float(payload), 0.0)
    if collective.kind.endswith("all-to-all"):
        return (m - 1) / (m * s) * payload, (s - 1) / s * payload
    twice = 2 if collective.kind == "all-reduce" else 1
    return twice * (m - 1) / m * payload, twice * (s - 1) / s * payload / m


def _on_grid(collective: Collective, route: Route, within: float) -> float:
    """Return the bytes that the busiest link carries one way."""
    if collective.kind in ("collective-permute", "collective-broadcast"):
        return within
    if collective.kind.endswith("all-to-all"):
        loads = (extent / (8 if ring else 4) for _, extent, ring in route.dimensions)
        return max(loads) * collective.payload / route.domains
    return within / sum(2 if ring else 1 for _, _, ring in route.dimensions)
