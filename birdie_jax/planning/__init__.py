"""Plans runs on machines that you do not have: compiles the train step and analyses its HLO text.

topology         the figures of a chip; the compilers, the devices and the links between them
compilation      the run's own train step, compiled for a topology
model_flops      the model's FLOPs, without recomputation; the bytes of the train state
bounds           the minimum time of collectives and of a step
planner          the whole plan, `RunPlan`, with the costs that `hlo_analysis` reads from the HLO text
largest_batch    the largest batch that fits
remat_choice     the choice of `model.remat` if the configuration leaves it open
decoding         the plan of a decoding step on one device
fastest_step     the comparison of meshes, values of `model.remat` and parts of a batch
plan_output      a plan as text, table and JSON
pruned_flops     the FLOPs of a pruned prefill
simba_flops      the FLOPs of Simba's published tables
"""

from birdie_jax.planning.decoding import plan_decoding
from birdie_jax.planning.fastest_step import Candidate, frontier, search_steps
from birdie_jax.planning.largest_batch import LargestBatch, find_largest_batch
from birdie_jax.planning.plan_output import (
    comparison_table,
    compiling_text,
    decode_row,
    decode_table,
    plan_as_json,
    plan_as_text,
    search_table,
)
from birdie_jax.planning.planner import RunPlan, plan_run
from birdie_jax.planning.remat_choice import plan_chosen
from birdie_jax.planning.topology import Topology, attached_topology, make_topology

__all__ = [
    "Candidate",
    "LargestBatch",
    "RunPlan",
    "Topology",
    "attached_topology",
    "comparison_table",
    "compiling_text",
    "decode_row",
    "decode_table",
    "find_largest_batch",
    "frontier",
    "make_topology",
    "plan_as_json",
    "plan_as_text",
    "plan_chosen",
    "plan_decoding",
    "plan_run",
    "search_steps",
    "search_table",
]
