"""Which devices of a mesh exchange data in a collective, and along which axes of the mesh they lie.

A program's devices are numbered as they come in the mesh, the last axis first.
"""

import re
from typing import NamedTuple

import numpy as np

from birdie_jax.planning.program_text import Instruction

_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,\s]*\},?\s*)*)\}")
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((?:\[([\d,]+)\])?(?:T\(([\d,]+)\)|([\d,]+))?\))? "
    r"\{([^{}]*)\}"
)
_AXIS = re.compile(r"'?([^',=:]+)'?(?::\((\d+)\)(\d+))?(?:,|$)")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?\s*)*)\}")

MeshShape = dict[str, int]


class Groups(NamedTuple):
    """Who exchanges data with whom.

    Attributes:
        members: numbers of the devices, one row a group.
        axes: of the mesh along which the devices of a group lie, in its order, without those of one device;
            "" for groups that are no whole product of axes stands before them as "part of".
        is_product: whether each group holds every device along `axes`.
    """

    members: np.ndarray
    axes: tuple[str, ...]
    is_product: bool

    @property
    def size(self) -> int:
        """Devices of a group."""
        return self.members.shape[1]

    @property
    def label(self) -> str:
        """The axes as people write them."""
        if not self.axes:
            return "none"
        return ("" if self.is_product else "part of ") + "*".join(self.axes)


def groups_of(instruction: Instruction, mesh: MeshShape) -> Groups:
    """Return the groups of a collective.

    Args:
        instruction: the collective.
        mesh: devices along each axis.

    Raises:
        ValueError: its groups are written in a way that is not known.
    """
    count = int(np.prod(list(mesh.values())))
    pairs = _PAIRS.search(instruction.attributes)
    if pairs is not None:
        members = np.array(re.findall(r"\d+", pairs.group(1)), int).reshape(-1, 2)
    else:
        members = _members(instruction, count)
    return _on_mesh(members, mesh, pairs=pairs is not None)


def across_slices(mesh: MeshShape, slices: int) -> Groups:
    """Return the groups of devices at the same place of every slice; slices are outermost in the mesh."""
    count = int(np.prod(list(mesh.values())))
    return Groups(np.arange(count).reshape(slices, -1).T, tuple(mesh)[:1], is_product=True)


def _members(instruction: Instruction, count: int) -> np.ndarray:
    iota = _IOTA.search(instruction.attributes)
    if iota is not None:
        shape, of, order = ([int(n) for n in part.split(",")] if part else None for part in iota.groups())
        numbers = np.arange(np.prod(of)).reshape(of)
        return (numbers.transpose(order) if order else numbers).reshape(shape)
    mesh = _MESH.search(instruction.attributes)
    if mesh is not None:
        return _along_axes(*mesh.groups())
    listed = _LISTED.search(instruction.attributes)
    if listed is None:
        raise ValueError(f"{instruction.name}: its replica_groups are not understood")
    rows = [[int(n) for n in re.findall(r"\d+", row)] for row in re.findall(r"\{[^{}]*\}", listed.group(1))]
    return np.array(rows) if any(rows) else np.arange(count)[None]


def _along_axes(
    axes: str, reshaped: str | None, order: str | None, listed: str | None, grouped: str
) -> np.ndarray:
    """Return the groups along some axes of a mesh that the program itself has written down.

    Args:
        axes: such as `'a'=2,'b'=4`, which need not be those of the run.
        reshaped: extents by which the devices are numbered, if not by those of the axes.
        order: of the extents `reshaped` in the mesh.
        listed: the devices of the mesh one by one, in place of these two.
        grouped: axes such as `'a','b':(2)2`; of the latter the extents 2, 2 and the rest the second.
    """
    sizes = {name.strip("'"): int(size) for name, size in (axis.split("=") for axis in axes.split(","))}
    wanted = {name: (pre, size) for name, pre, size in _AXIS.findall(grouped)}
    numbers = np.arange(int(np.prod(list(sizes.values()))))
    if listed:
        numbers = np.array(_integers(listed))
    elif reshaped:
        numbers = numbers.reshape(_integers(reshaped))
        numbers = numbers.transpose(_integers(order)) if order else numbers
    extents: list[int] = []
    place = {}
    for name, size in sizes.items():
        pre, part = wanted.get(name, ("", ""))
        pieces = [int(pre), int(part), size // (int(pre) * int(part))] if pre else [size]
        place[name] = len(extents) + (1 if pre else 0)
        extents += pieces
    last = [place[name] for name in wanted]
    first = [number for number in range(len(extents)) if number not in last]
    together = int(np.prod([extents[number] for number in last]))
    return numbers.reshape(extents).transpose(first + last).reshape(-1, together)


def _integers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _on_mesh(members: np.ndarray, mesh: MeshShape, *, pairs: bool) -> Groups:
    names, sizes = list(mesh), list(mesh.values())
    places = np.stack(np.unravel_index(members, sizes), axis=-1)
    varies = np.any(places != places[:, :1], axis=(0, 1))
    axes = tuple(name for name, moved in zip(names, varies, strict=True) if moved)
    along = int(np.prod([mesh[name] for name in axes]))
    return Groups(members, axes, pairs or members.shape[1] == along)
