"""Plans of runs on machines that are not there: the train step is compiled, and its HLO text is analysed.

chips, topology       the figures of a chip; the devices and the links between them
compilers             where the compilers for TPUs and GPUs are found
compilation           the run's own train step, compiled for a topology
state_memory          the bytes of the train state on one device
model_flops           the FLOPs that the model needs, however it is computed
links, bounds         the least time of collectives on the links; the least time of a step
planner               all of it as one `RunPlan`, with the costs that `hlo_analysis` reads from the HLO text
largest_batch         the largest batch that fits
plan_text, plan_json  a plan as text, table and JSON
"""

from birdie_jax.planning.compilers import MissingCompilerError
from birdie_jax.planning.largest_batch import LargestBatch, find_largest_batch
from birdie_jax.planning.plan_json import plan_as_json
from birdie_jax.planning.plan_text import comparison_table, plan_as_text
from birdie_jax.planning.planner import RunPlan, plan_run
from birdie_jax.planning.topology import Topology, make_topology

__all__ = [
    "LargestBatch",
    "MissingCompilerError",
    "RunPlan",
    "Topology",
    "comparison_table",
    "find_largest_batch",
    "make_topology",
    "plan_as_json",
    "plan_as_text",
    "plan_run",
]
