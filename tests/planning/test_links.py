"""Times of collectives on the links of small machines, computed by hand."""

from collections.abc import Iterable

import numpy as np
import pytest

from birdie_jax.engine.chips import CHIPS
from birdie_jax.planning.bounds import busy_seconds
from birdie_jax.planning.topology import DeviceLocation, Topology
from hlo_analysis import Collective, ReplicaGroups

LINK, NETWORK = 100e9, 6.25e9
PAYLOAD = 1_000_000_000
Machine = tuple[Topology, list[DeviceLocation]]


def grid(*shape: int, slices: int = 1) -> Machine:
    """Return a v5p topology of a shape, and the locations of its devices in the order of a mesh."""
    coordinates = [tuple(map(int, location)) for location in np.ndindex(*shape)]
    locations = [DeviceLocation(part, location) for part in range(slices) for location in coordinates]
    return Topology("v5p", CHIPS["v5p"], (), shape), locations


def hosts(count: int, gpus: int) -> Machine:
    locations = [DeviceLocation(host, ()) for host in range(count) for _ in range(gpus)]
    return Topology("h200", CHIPS["h200"], (), ()), locations


def busy(
    machine: Machine, kind: str, *members: Iterable[int], axes: tuple[str, ...] = ("fsdp",)
) -> dict[str, float]:
    topology, locations = machine
    groups = ReplicaGroups(np.array([list(group) for group in members]), axes, is_product=True)
    return busy_seconds(topology, locations, Collective(kind, groups, PAYLOAD, 1, "c", ""))


def test_a_ring_is_used_both_ways_and_a_line_one_way():
    ring = busy(grid(4, 4, 4), "all-gather", range(4))
    assert ring == {"links z": pytest.approx(3 / 4 * PAYLOAD / (2 * LINK))}
    line = busy(grid(2, 2, 4), "all-gather", range(4))
    assert line == {"links z": pytest.approx(3 / 4 * PAYLOAD / LINK)}
    # Two of the four chips of a ring have a line between them.
    part = busy(grid(4, 4, 4), "all-gather", range(2))
    assert part == {"links z": pytest.approx(1 / 2 * PAYLOAD / LINK)}


def test_a_group_uses_all_its_dimensions_at_once():
    found = busy(grid(4, 4, 4), "all-reduce", range(64))
    expected = 2 * 63 / 64 * PAYLOAD / (6 * LINK)
    assert found == dict.fromkeys(("links x", "links y", "links z"), pytest.approx(expected))
    plane = busy(grid(4, 4, 4), "reduce-scatter", range(16))
    assert plane == dict.fromkeys(("links y", "links z"), pytest.approx(15 / 16 * PAYLOAD / (4 * LINK)))


def test_rings_of_v5e_are_dimensions_of_sixteen():
    shape = (8, 16)
    locations = [DeviceLocation(0, tuple(map(int, location))) for location in np.ndindex(*shape)]
    machine = Topology("v5e", CHIPS["v5e"], (), shape), locations
    assert busy(machine, "all-gather", range(16)) == {"links y": pytest.approx(15 / 16 * PAYLOAD / 100e9)}
    column = busy(machine, "all-gather", range(0, 128, 16))
    assert column == {"links x": pytest.approx(7 / 8 * PAYLOAD / 50e9)}


def test_an_all_to_all_loads_links_by_distance():
    # On a ring of 4 a part crosses 1 link on average, in either direction: 4 parts of a quarter, 2 ways.
    assert busy(grid(4, 4, 4), "all-to-all", range(4)) == {"links z": pytest.approx(PAYLOAD / 2 / LINK)}
    assert busy(grid(2, 2, 1), "all-to-all", range(2)) == {"links y": pytest.approx(PAYLOAD / 2 / LINK)}


def test_a_permutation_uses_one_link():
    assert busy(grid(4, 4, 4), "collective-permute", range(2)) == {"links z": pytest.approx(PAYLOAD / LINK)}


def test_a_permutation_uses_the_links_of_every_pair():
    # A transposed mesh: the first and the last device keep their parts.
    pairs = [(device, device % 4 * 4 + device // 4) for device in range(16)]
    expected = dict.fromkeys(("links y", "links z"), pytest.approx(PAYLOAD / LINK))
    assert busy(grid(1, 4, 4), "collective-permute", *pairs) == expected
    assert busy(hosts(1, 4), "collective-permute", (0, 0), (1, 2)) == {
        "NVLink": pytest.approx(PAYLOAD / 450e9)
    }


def test_between_slices_each_chip_carries_its_share():
    machine = grid(4, 4, 4, slices=2)
    found = busy(machine, "all-reduce", range(128), axes=("data",))
    assert found["network"] == pytest.approx(2 * 1 / 2 * PAYLOAD / 64 / NETWORK)
    assert found["links x"] == pytest.approx(2 * 63 / 64 * PAYLOAD / (6 * LINK))
    alone = busy(machine, "all-reduce", (0, 64), axes=("data",))
    assert alone == {"network": pytest.approx(PAYLOAD / NETWORK)}


def test_hosts_of_gpus():
    inside = busy(hosts(2, 8), "all-gather", range(8))
    assert inside == {"NVLink": pytest.approx(7 / 8 * PAYLOAD / 450e9)}
    across = busy(hosts(2, 8), "all-gather", range(16))
    assert across == {
        "NVLink": pytest.approx(7 / 8 * PAYLOAD / 450e9),
        "network": pytest.approx(1 / 2 * PAYLOAD / 8 / 50e9),
    }
