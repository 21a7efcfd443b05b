"""A plan as JSON. The keys are a public interface (docs/plan.md), and do not follow the names of fields."""

from typing import Any

from birdie_jax.planning.chips import Chip
from birdie_jax.planning.largest_batch import LargestBatch
from birdie_jax.planning.planner import CollectiveTotal, RunPlan
from hlo_analysis import HeavyOp


def plan_as_json(plan: RunPlan, largest: LargestBatch | None = None) -> dict[str, Any]:
    """Return a plan as plain dictionaries; what is not known of a refused program is None.

    FLOPs and bytes are those of one device in one step, tokens and `model_flops_per_step` of all devices.
    """
    costs, chip = plan.costs, plan.topology.chip
    result = {
        "topology": plan.topology.name,
        "devices": plan.devices,
        "mesh": plan.mesh_shape,
        "rows": plan.rows,
        "length": plan.length,
        "fits": plan.fits,
        "bytes_per_device": plan.bytes_per_device._asdict(),
        "flops_per_step": costs and sum(costs.flops),
        "product_flops_per_step": costs and costs.flops.dot,
        "model_flops_per_step": plan.model_flops,
        "hbm_bytes_per_step": costs and costs.traffic_bytes,
        "collective_bytes_per_step": costs and sum(total.sent_bytes for total in plan.collectives),
        "collectives": [_collective(total) for total in plan.collectives],
        "heaviest_instructions": [_heavy_op(op) for op in costs.heavy_ops] if costs else [],
        "compile_seconds": plan.compile_seconds,
        "largest_batch": largest and largest._asdict(),
        "chip": chip and _chip(chip),
        "bounds": None,
        "tokens_per_second_bound": None,
        "mfu_bound": None,
    }
    return result | _bounds(plan)


def _collective(total: CollectiveTotal) -> dict[str, Any]:
    return {
        "kind": total.kind,
        "axes": total.axes,
        "devices": total.devices,
        "times": total.executions,
        "payload_bytes": total.payload_bytes,
        "sent_bytes": total.sent_bytes,
    }


def _heavy_op(op: HeavyOp) -> dict[str, Any]:
    return {
        "name": op.name,
        "opcode": op.opcode,
        "bytes": op.traffic_bytes,
        "flops": op.dot_flops,
        "times": op.executions,
        "source": op.op_name,
    }


def _chip(chip: Chip) -> dict[str, Any]:
    return {
        "title": chip.title,
        "peak_flops": chip.peak_flops,
        "memory_bytes": chip.memory_bytes,
        "memory_bandwidth": chip.memory_bandwidth,
        "link_bandwidth": chip.link_bandwidth,
        "network_bandwidth": chip.network_bandwidth,
        "dimensions": chip.grid_dimensions,
        "full_ring": chip.min_ring_extent,
        "most": chip.max_devices,
        "sources": chip.sources,
    }


def _bounds(plan: RunPlan) -> dict[str, Any]:
    bounds = plan.bounds
    if bounds is None:
        return {}
    return {
        "bounds": {
            "products_seconds": bounds.compute,
            "memory_seconds": bounds.memory,
            "link_seconds": bounds.links,
            "step_seconds": bounds.overlapped,
            "nothing_overlaps_seconds": bounds.serial,
            "set_by": bounds.set_by,
        },
        "bound_by": {
            cause: {
                "step_seconds": seconds,
                "tokens_per_second": plan.tokens_per_second(seconds),
                "mfu": plan.mfu(seconds),
            }
            for cause, seconds in bounds.seconds_by_cause.items()
            if seconds
        },
        "tokens_per_second_bound": plan.tokens_per_second(bounds.overlapped),
        "mfu_bound": plan.mfu(bounds.overlapped),
        "mfu_bound_memory_and_collectives": plan.mfu(bounds.memory_and_collectives),
    }
