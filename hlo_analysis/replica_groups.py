"""Replica groups: the devices of a mesh that take part in a collective, and their mesh axes.

Devices are numbered in the order of the mesh; the last axis varies fastest.
"""

import re
from math import prod
from typing import NamedTuple

import numpy as np

from hlo_analysis.module import Instruction

_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,\s]*\},?\s*)*)\}")
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((?:\[([\d,]+)\])?(?:T\(([\d,]+)\)|([\d,]+))?\))? "
    r"\{([^{}]*)\}"
)
_AXIS = re.compile(r"'?([^',=:]+)'?(?::\((\d+)\)(\d+))?(?:,|$)")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?\s*)*)\}")

MeshShape = dict[str, int]


class ReplicaGroups(NamedTuple):
    """The groups of devices that exchange data in a collective.

    Attributes:
        members: the device numbers, one row for each group.
        axes: the mesh axes along which the devices of a group differ, in the order of the mesh.
        is_product: whether each group holds every device along `axes`.
    """

    members: np.ndarray
    axes: tuple[str, ...]
    is_product: bool

    @property
    def size(self) -> int:
        """The number of devices in a group."""
        return self.members.shape[1]

    @property
    def label(self) -> str:
        """The axes as text: "data*fsdp", "part of fsdp" if the groups are not whole axes, or "none"."""
        if not self.axes:
            return "none"
        return ("" if self.is_product else "part of ") + "*".join(self.axes)


def parse_replica_groups(instruction: Instruction, mesh_shape: MeshShape) -> ReplicaGroups:
    """Return the groups of a collective.

    Args:
        instruction: the collective.
        mesh_shape: the number of devices along each mesh axis.

    Raises:
        ValueError: the groups have an unknown format.
    """
    pairs = _PAIRS.search(instruction.attributes)
    if pairs is not None:
        members = np.array(re.findall(r"\d+", pairs.group(1)), int).reshape(-1, 2)
    else:
        members = _members(instruction, prod(mesh_shape.values()))
    return _groups_on_mesh(members, mesh_shape, are_pairs=pairs is not None)


def slice_groups(mesh_shape: MeshShape, slices: int) -> ReplicaGroups:
    """Return the groups of devices at the same position of every slice.

    The slices are the outermost part of the mesh.
    """
    members = np.arange(prod(mesh_shape.values())).reshape(slices, -1).T
    return ReplicaGroups(members, tuple(mesh_shape)[:1], is_product=True)


def _members(instruction: Instruction, count: int) -> np.ndarray:
    iota = _IOTA.search(instruction.attributes)
    if iota is not None:
        shape, extents, order = iota.groups()
        numbers = np.arange(prod(_integers(extents))).reshape(_integers(extents))
        return (numbers.transpose(_integers(order)) if order else numbers).reshape(_integers(shape))
    mesh = _MESH.search(instruction.attributes)
    if mesh is not None:
        return _members_along_axes(*mesh.groups())
    listed = _LISTED.search(instruction.attributes)
    if listed is None:
        raise ValueError(f"{instruction.name}: found replica_groups in an unknown format")
    rows = [[int(n) for n in re.findall(r"\d+", row)] for row in re.findall(r"\{[^{}]*\}", listed.group(1))]
    return np.array(rows) if any(rows) else np.arange(count)[None]


def _members_along_axes(
    axes: str, extents: str | None, order: str | None, listed: str | None, grouped: str
) -> np.ndarray:
    """Return the groups along axes of a mesh that the HLO text defines.

    Args:
        axes: the axes of that mesh, such as `'a'=2,'b'=4`; they can differ from the axes of the run.
        extents: the extents that number the devices, if they differ from those of the axes.
        order: the order of `extents` in the mesh.
        listed: the list of devices in the mesh, instead of `extents` and `order`.
        grouped: the axes of a group, such as `'a','b':(2)2`. `'b':(2)2` divides b into extents 2, 2 and
            the rest, and takes the second.
    """
    sizes = {name.strip("'"): int(size) for name, size in (axis.split("=") for axis in axes.split(","))}
    wanted = {name: (before, size) for name, before, size in _AXIS.findall(grouped)}
    numbers = np.arange(prod(sizes.values()))
    if listed:
        numbers = np.array(_integers(listed))
    elif extents:
        numbers = numbers.reshape(_integers(extents))
        numbers = numbers.transpose(_integers(order)) if order else numbers
    divided: list[int] = []
    position = {}
    for name, size in sizes.items():
        before, part = wanted.get(name, ("", ""))
        pieces = [int(before), int(part), size // (int(before) * int(part))] if before else [size]
        position[name] = len(divided) + (1 if before else 0)
        divided += pieces
    last = [position[name] for name in wanted]
    first = [number for number in range(len(divided)) if number not in last]
    group_size = prod(divided[number] for number in last)
    return numbers.reshape(divided).transpose(first + last).reshape(-1, group_size)


def _integers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _groups_on_mesh(members: np.ndarray, mesh_shape: MeshShape, *, are_pairs: bool) -> ReplicaGroups:
    coordinates = np.stack(np.unravel_index(members, list(mesh_shape.values())), axis=-1)
    differs = np.any(coordinates != coordinates[:, :1], axis=(0, 1))
    axes = tuple(name for name, differing in zip(mesh_shape, differs, strict=True) if differing)
    product = prod(mesh_shape[name] for name in axes)
    return ReplicaGroups(members, axes, are_pairs or members.shape[1] == product)
