"""The formats of replica groups."""

import numpy as np
import pytest

from hlo_analysis.module import Instruction
from hlo_analysis.replica_groups import parse_replica_groups

MESH = {"data": 2, "fsdp": 4, "tensor": 2, "sequence": 1}
DEVICES = np.arange(16).reshape(2, 4, 2)


def collective(attributes):
    return Instruction(
        "all-reduce.1", "all-reduce", (), (), "", f"channel_id=1, {attributes}, to_apply=%add", False
    )


def along(*axes):
    """Return the groups along the given axes of three, one a row."""
    others = [axis for axis in range(3) if axis not in axes]
    return DEVICES.transpose(*others, *axes).reshape(-1, int(np.prod([DEVICES.shape[a] for a in axes])))


FORMATS = {
    "listed": (
        "replica_groups={{0,1},{2,3},{4,5},{6,7},{8,9},{10,11},{12,13},{14,15}}",
        along(2),
        "tensor",
    ),
    "iota": ("replica_groups=[4,4]<=[2,4,2]T(0,2,1)", along(1), "fsdp"),
    "iota of all": ("replica_groups=[1,16]<=[16]", along(0, 1, 2), "data*fsdp*tensor"),
    "empty": ("replica_groups={}", along(0, 1, 2), "data*fsdp*tensor"),
    "axes": ("replica_groups=mesh['axis_0'=2,'axis_1'=4,'axis_2'=2] {'axis_0'}", along(0), "data"),
    "two axes": ("replica_groups=mesh['a'=2,'b'=4,'c'=2] {'a','c'}", along(0, 2), "data*tensor"),
    "part of an axis": ("replica_groups=mesh['a'=16] {'a':(2)4}", along(1), "fsdp"),
    "axes in another order": (
        "replica_groups=mesh['a'=4,'b'=4], device_ids=([2,4,2]T(1,0,2)) {'a'}",
        along(1),
        "fsdp",
    ),
    "pieces": ("replica_groups=[8,2]<=[16]T(0)", along(2), "tensor"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_replica_groups_are_parsed(name):
    attributes, members, label = FORMATS[name]
    groups = parse_replica_groups(collective(attributes), MESH)
    assert sorted(map(sorted, groups.members.tolist())) == sorted(map(sorted, members.tolist()))
    assert (groups.label, groups.size) == (label, members.shape[1])


def test_a_part_of_an_axis_has_its_own_label():
    groups = parse_replica_groups(
        collective("replica_groups={{0,2},{4,6},{1,3},{5,7},{8,10},{12,14},{9,11},{13,15}}"), MESH
    )
    assert groups.label == "part of fsdp"


def test_source_target_pairs_are_parsed():
    groups = parse_replica_groups(collective("source_target_pairs={{0,2},{2,4},{4,6}}"), MESH)
    assert (groups.label, groups.size) == ("fsdp", 2)


def test_an_unknown_format_names_the_instruction():
    with pytest.raises(ValueError, match=r"all-reduce\.1: found replica_groups in an unknown format"):
        parse_replica_groups(collective("replica_groups=somehow"), MESH)
