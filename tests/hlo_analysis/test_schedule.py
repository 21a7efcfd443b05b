"""The executed instructions of handwritten programs."""

from hlo_analysis import read_step_costs
from hlo_analysis.module import ArrayShape
from hlo_analysis.parser import parse_hlo
from hlo_analysis.schedule import ExecutedInstruction, executed_instructions
from tests.hlo_analysis.handwritten import LOOPS


def executed_by_name(text: str) -> dict[str, ExecutedInstruction]:
    found = executed_instructions(parse_hlo(text), lambda one: (float(one.executions),))
    return {
        one.instruction.name: one
        for one in found
        if one.instruction.opcode not in ("parameter", "constant")
    }


def test_loops_multiply_the_executions_of_their_instructions():
    found = executed_by_name(LOOPS)
    assert found["twice"].executions == 3 * 5
    assert found["fused"].executions == 3 * 5
    assert found["twice"].instruction.op_name == "jit(f)/while (inner)/add"


def test_a_conditional_counts_its_costliest_branch():
    found = executed_by_name(LOOPS)
    assert "a" not in found
    assert found["b.1"].executions == found["b.2"].executions == 1


def test_step_costs_contain_the_branch_that_moves_the_most_bytes():
    ops = {op.name: op for op in read_step_costs(LOOPS, {}).heavy_ops}
    assert "a" not in ops
    assert ops["b.1"].traffic_bytes == ops["b.2"].traffic_bytes == 2 * 16


def test_asynchronous_instructions_count_once_with_the_shape_of_their_done():
    found = executed_by_name(LOOPS)
    assert found["copied"].executions == 1
    assert not {"begun", "going", "ended", "done"} & set(found)
    assert found["fetched"].shapes == (ArrayShape("f32", (4,), in_main_memory=False),)
