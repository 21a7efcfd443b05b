"""What a compiled XLA program costs, read from its HLO text alone.

Nothing is compiled or run here, and no device, JAX or model is needed: only the text and numpy.

In:
    the text of a compiled program, as `compiled.as_text()` of JAX returns it (or the compiler's own dump,
    `*.after_codegen.txt`), for CPUs, NVIDIA GPUs and TPUs; and the shape of the device mesh, as the number
    of devices along each named axis.
Out:
    `StepCosts`: for one device and one call of the program the FLOPs, the bytes moved to and from main
    memory, the collectives with their mesh axes and bytes, the activations that are kept for the backward
    pass, the ops that move the most bytes and, at given rates, the time in the order of the program. Loops
    count as often as they run; XLA's own `cost_analysis()` counts the body of a loop once.

    costs = read_step_costs(compiled.as_text(), {"data": 2, "fsdp": 4})

Files, from the bottom to the top:
    module           the parsed program: array shapes, instructions, computations, module
    parser           HLO text -> module; a compiler's refusal of a program for its memory
    trip_counts      how often a loop runs
    schedule         which instructions are executed, and how often
    replica_groups   which devices of the mesh take part in a collective, and along which axes
    flops, memory_traffic, collectives
                     what instructions cost
    timeline         when a device works, and when it waits for a collective
    step_costs       all of it for one program

The figures of chips and links belong to `birdie_jax.planning`.
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
