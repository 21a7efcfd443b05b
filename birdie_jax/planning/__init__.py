"""Plans of runs on machines that are not there: the train step is compiled, and its text is read.

topology -> the devices; compilation -> the run's own program for them; program_text, execution -> what it
executes and how often; products, traffic, collectives, memory -> what that costs; links, bounds -> how long
it takes at least; planner -> all of it as a `Plan`; report -> as text, table and JSON.
"""

from birdie_jax.planning.compilers import MissingCompiler
from birdie_jax.planning.largest_batch import LargestBatch, largest_batch
from birdie_jax.planning.planner import Plan, make_plan
from birdie_jax.planning.report import as_json, as_text, compared
from birdie_jax.planning.topology import Topology, make_topology
from birdie_jax.planning.trip_counts import UnknownTripCount

__all__ = [
    "LargestBatch",
    "MissingCompiler",
    "Plan",
    "Topology",
    "UnknownTripCount",
    "as_json",
    "as_text",
    "compared",
    "largest_batch",
    "make_plan",
    "make_topology",
]
