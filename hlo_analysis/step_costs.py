"""The costs of a compiled step on one device, from its HLO text: FLOPs, bytes, collectives."""

from typing import NamedTuple

from hlo_analysis.collectives import Collective, find_collectives
from hlo_analysis.flops import Flops, instruction_flops
from hlo_analysis.memory_traffic import activation_bytes, memory_traffic
from hlo_analysis.parser import parse_hlo
from hlo_analysis.replica_groups import MeshShape
from hlo_analysis.schedule import ExecutedInstruction, executed_instructions
from hlo_analysis.timeline import Rates, Timeline, read_timeline


class HeavyOp(NamedTuple):
    """An instruction that moves many bytes.

    Attributes:
        name: the name of the instruction in the HLO text.
        opcode: the opcode of the instruction.
        traffic_bytes: the bytes that it moves to and from main memory in one step.
        dot_flops: the FLOPs of its matrix products in one step.
        executions: the number of its executions in one step.
        op_name: the place in the JAX program that the instruction comes from.
    """

    name: str
    opcode: str
    traffic_bytes: int
    dot_flops: float
    executions: int
    op_name: str


class StepCosts(NamedTuple):
    """The costs of one step on one device.

    Attributes:
        flops: the FLOPs, separately for matrix products and all other arithmetic.
        traffic_bytes: the bytes moved between the chip and its main memory.
        collectives: the collectives, each instruction once.
        activation_bytes: the bytes kept for the backward pass.
        heavy_ops: the instructions that move the most bytes, in descending order.
        timeline: when the device works and when it waits; None without rates.
    """

    flops: Flops
    traffic_bytes: float
    collectives: list[Collective]
    activation_bytes: int
    heavy_ops: list[HeavyOp]
    timeline: Timeline | None = None


def read_step_costs(
    hlo_text: str,
    mesh_shape: MeshShape,
    *,
    slices: int = 1,
    max_heavy_ops: int = 10,
    rates: Rates | None = None,
) -> StepCosts:
    """Return the costs of a compiled step.

    Args:
        hlo_text: the text of the compiled step, as `compiled.as_text()` returns it.
        mesh_shape: the number of devices along each mesh axis.
        slices: the number of TPU slices; they are the outermost part of the first axis.
        max_heavy_ops: the maximum length of `StepCosts.heavy_ops`.
        rates: the speed of a device; if None, no timeline is computed.

    Raises:
        UnknownTripCountError: the trip count of a loop is unknown.
        ValueError: the text is not an HLO module, or replica groups have an unknown format.
    """
    module = parse_hlo(hlo_text)

    def cost(executed: ExecutedInstruction) -> tuple[float, float]:
        flops = instruction_flops(module, executed).dot
        return flops * executed.executions, float(memory_traffic(module, executed) * executed.executions)

    instructions = executed_instructions(module, cost)
    flops, traffic_bytes, ops = Flops(0.0, 0.0), 0.0, []
    for executed in instructions:
        instruction, executions = executed.instruction, executed.executions
        once = instruction_flops(module, executed)
        dot_flops, moved = once.dot * executions, memory_traffic(module, executed) * executions
        flops += Flops(dot_flops, once.elementwise * executions)
        traffic_bytes += moved
        ops.append(
            HeavyOp(instruction.name, instruction.opcode, moved, dot_flops, executions, instruction.op_name)
        )
    return StepCosts(
        flops,
        traffic_bytes,
        find_collectives(module, instructions, mesh_shape, slices),
        activation_bytes(module),
        sorted(ops, key=lambda op: -op.traffic_bytes)[:max_heavy_ops],
        rates and read_timeline(module, rates, mesh_shape, slices),
    )
