"""Compute the costs of a compiled XLA program from its HLO text.

The package needs only the text and numpy. It compiles and runs nothing, and needs no device, JAX or model.

In:
    the text of a compiled program, as JAX's `compiled.as_text()` returns it (or the compiler's own dump,
    `*.after_codegen.txt`), for CPUs, NVIDIA GPUs and TPUs; and the shape of the device mesh, as the number
    of devices along each named axis.
Out:
    `StepCosts`: for one device and one call of the program, the FLOPs, the bytes moved to and from main
    memory, the collectives with their mesh axes and bytes, the activations kept for the backward pass, the
    ops that move the most bytes and, if you give rates, a timeline. Every iteration of a loop counts;
    XLA's own `cost_analysis()` counts the body of a loop once.

    costs = read_step_costs(compiled.as_text(), {"data": 2, "fsdp": 4})

Files, lowest level first:
    module           the parsed program: array shapes, instructions, computations, module
    parser           HLO text -> module; out-of-memory messages of compilers
    trip_counts      the trip counts of loops
    schedule         the executed instructions, and how often each is executed
    replica_groups   the devices of the mesh that take part in a collective, and their axes
    flops, memory_traffic, collectives
                     the costs of instructions
    timeline         when a device works, and when it waits for a collective
    step_costs       all costs of one program

The speeds of chips and links are in `birdie_jax.planning`.
"""

from hlo_analysis.collectives import Collective
from hlo_analysis.parser import OutOfMemory, parse_hlo, parse_out_of_memory
from hlo_analysis.replica_groups import MeshShape, ReplicaGroups
from hlo_analysis.step_costs import HeavyOp, StepCosts, read_step_costs
from hlo_analysis.timeline import Rates, Timeline, Transfer, read_timeline
from hlo_analysis.trip_counts import UnknownTripCountError

__all__ = [
    "Collective",
    "HeavyOp",
    "MeshShape",
    "OutOfMemory",
    "Rates",
    "ReplicaGroups",
    "StepCosts",
    "Timeline",
    "Transfer",
    "UnknownTripCountError",
    "parse_hlo",
    "parse_out_of_memory",
    "read_step_costs",
    "read_timeline",
]
