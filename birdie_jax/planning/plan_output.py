"""A plan as text and as JSON, and several plans as a table."""

from collections.abc import Sequence
from typing import Any

from birdie_jax.engine.chips import Chip
from birdie_jax.planning.bounds import StepBounds
from birdie_jax.planning.decoding import DecodePlan
from birdie_jax.planning.fastest_step import Candidate
from birdie_jax.planning.largest_batch import LargestBatch
from birdie_jax.planning.planner import CollectiveTotal, RunPlan
from birdie_jax.planning.topology import Topology
from hlo_analysis import HeavyOp, StepCosts

_GIB = 2**30
# The number of characters to show of a place in the JAX program; its end has layer and operation.
_SHOWN_PLACE = 80
# For the step of birdie_1_4b on two cores (docs/measurements/scale.md); other sizes take about as long.
_MINUTES_OF_PROGRAM = {"tpu": 1.2, "gpu": 0.5, "cpu": 0.3}


def compiling_text(topology: Topology, programs: int, more: int) -> str:
    """Return the line that reports the number of programs to compile and the approximate time.

    Args:
        topology: the target of the compilation.
        programs: the number of steps to compile.
        more: the maximum number of further steps.
    """
    total = programs + more
    about = total * _MINUTES_OF_PROGRAM[topology.devices[0].platform]
    steps = "the step" if total == 1 else f"{'up to ' if more > 1 else ''}{total} steps"
    minutes = f"{about:.0f} minutes" if about >= 1.5 else "a minute"
    return f"compiling {steps} for {topology.name}, which takes about {minutes} on two cores"


def plan_as_text(plan: RunPlan, largest: LargestBatch | None, price: float | None = None) -> str:
    """Return a plan as text.

    Args:
        plan: the plan.
        largest: the largest batch that fits, after a search.
        price: the price of a device hour, in any currency.
    """
    parts = [_head(plan), _memory(plan, largest)]
    if plan.costs is not None:
        parts += [_work(plan, plan.costs), _collectives(plan.collectives)]
    if plan.bounds is not None:
        parts += [_bounds(plan, plan.bounds), _hours(plan, price)]
    if plan.costs is not None:
        parts.append(_heavy_ops(plan.costs.heavy_ops))
    parts.append(_assumed_figures(plan.topology.chip))
    return "\n\n".join(parts)


def _head(plan: RunPlan) -> str:
    title = plan.topology.chip.title if plan.topology.chip else "CPU"
    per_device = plan.rows / plan.row_shards
    return (
        f"{plan.topology.name}: {plan.devices} x {title}, mesh {mesh_text(plan.mesh_shape)}\n"
        f"batch: {plan.rows} rows of {plan.length} tokens, {per_device:g} rows for each device along data "
        f"and fsdp\ncompiled in {plan.compile_seconds:.0f} s"
    )


def mesh_text(mesh_shape: dict[str, int]) -> str:
    """Return a mesh in the form of --compare: the axes with more than one device."""
    return ",".join(f"{axis}={size}" for axis, size in mesh_shape.items() if size > 1) or "one device"


def _memory(plan: RunPlan, largest: LargestBatch | None) -> str:
    need = plan.bytes_per_device
    rows = {
        "parameters": need.parameters,
        "optimizer": need.optimizer,
        "bandit and step": need.other_state,
        "activations kept for the backward pass": need.activations,
        "other temporaries, gradients included": need.temporaries,
        "batch, code and the rest": need.batch,
        "total": need.total,
        "available": need.available,
    }
    lines = [f"fits: {'yes' if plan.fits else 'NO'}", "memory of a device"]
    lines += [f"  {name:40} {_binary(size):>11}" for name, size in rows.items()]
    if largest is not None:
        how = "compiled, and the next larger one does not fit"
        if not largest.verified:
            how = "extrapolated from two compiled batches; --largest_batch=verify compiles it"
        lines.append(f"largest batch that fits: {largest.rows} rows ({how})")
    return "\n".join(lines)


def _binary(size: int | float | None) -> str:
    """Return bytes in the largest binary unit with a value of at least 1."""
    if size is None:
        return "unknown"
    units = [unit for unit in (("GiB", 2**30), ("MiB", 2**20)) if abs(size) >= unit[1]]
    name, unit = units[0] if units else ("KiB", 2**10)
    return f"{size / unit:.2f} {name}"


def _decimal(amount: int | float, unit: str) -> str:
    """Return an amount with the largest decimal prefix with a value of at least 1."""
    prefixes = [prefix for prefix in (("T", 1e12), ("G", 1e9), ("M", 1e6)) if amount >= prefix[1]]
    name, size = prefixes[0] if prefixes else ("k", 1e3)
    return f"{amount / size:.2f} {name}{unit}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


def _work(plan: RunPlan, costs: StepCosts) -> str:
    rows = {
        "matrix products and kernels": _decimal(costs.flops.dot, "FLOP"),
        "all other arithmetic": _decimal(costs.flops.elementwise, "FLOP"),
        "required by the model": _decimal(plan.model_flops / plan.devices, "FLOP"),
        "moved between chip and main memory": _decimal(costs.traffic_bytes, "B"),
    }
    lines = [f"  {name:40} {amount:>12}" for name, amount in rows.items()]
    return "\n".join(["work of a device in a step", *lines])


def _collectives(totals: Sequence[CollectiveTotal]) -> str:
    if not totals:
        return "collectives: none"
    lines = [
        "collectives of a device in a step",
        f"  {'kind':20} {'along':20} {'devices':>7} {'times':>7} {'payload':>11} {'sent':>11} "
        f"{'on links':>10} {'exposed':>10}  behind",
    ]
    lines += [
        f"  {total.kind:20} {total.axes:20} {total.devices:7} {total.executions:7} "
        f"{_decimal(total.payload_bytes, 'B'):>11} {_decimal(total.sent_bytes, 'B'):>11} "
        f"{_milliseconds(total.seconds):>10} {_milliseconds(total.exposed_seconds):>10}  "
        f"{total.behind[-_SHOWN_PLACE:]}".rstrip()
        for total in totals
    ]
    return "\n".join(lines)


def _bounds(plan: RunPlan, bounds: StepBounds) -> str:
    lines = [
        "bounds: no step is faster than each of these",
        f"  {'set by':40} {'a step':>12} {'tokens/s':>14} {'MFU':>6}",
    ]
    for cause, seconds in bounds.seconds_by_cause.items():
        if seconds:
            lines.append(
                f"  {cause:40} {_milliseconds(seconds):>12} {plan.tokens_per_second(seconds):14,.0f} "
                f"{plan.mfu(seconds):6.1%}"
            )
    return "\n".join(lines)


def _hours(plan: RunPlan, price: float | None) -> str:
    hours = plan.hours()
    if plan.num_steps is None or hours is None:
        return "hours: unknown, because the number of steps depends on the data"
    tokens = _decimal(plan.num_steps * plan.rows * plan.length, "").rstrip()
    lines = [f"hours of {plan.num_steps:,} steps, {tokens} tokens"]
    head = f"  {'':40} {'hours':>12} {'device hours':>14}"
    lines.append(head if price is None else f"{head} {'price':>14}")
    for name, value in hours.items():
        device_hours = value * plan.devices
        line = f"  {name:40} {value:12,.2f} {device_hours:14,.1f}"
        lines.append(line if price is None else f"{line} {device_hours * price:14,.2f}")
    return "\n".join(lines)


def _heavy_ops(ops: Sequence[HeavyOp]) -> str:
    lines = [
        "instructions that move the most bytes",
        f"  {'bytes':>10} {'products':>12} {'times':>6}  instruction",
    ]
    lines += [
        f"  {_decimal(op.traffic_bytes, 'B'):>10} {_decimal(op.dot_flops, 'FLOP'):>12} {op.executions:6}  "
        f"{op.name} ({op.opcode}) {op.op_name[-_SHOWN_PLACE:]}"
        for op in ops
    ]
    return "\n".join(lines)


def _assumed_figures(chip: Chip | None) -> str:
    if chip is None:
        return "no figures are assumed for a CPU, so there are no bounds"
    between = "between slices" if chip.grid_dimensions else "between hosts"
    links = "each link" if chip.grid_dimensions else "NVLink"
    return "\n".join(
        [
            f"assumed for a {chip.title}: {chip.peak_flops / 1e12:g} TFLOP/s (bfloat16), "
            f"{chip.memory_bytes / _GIB:.2f} GiB, {chip.memory_bandwidth / 1e9:g} GB/s, one way "
            f"{chip.link_bandwidth / 1e9:g} GB/s {links} and {chip.network_bandwidth / 1e9:g} GB/s "
            f"{between}",
            *(f"  {source}" for source in chip.sources),
        ]
    )


def comparison_table(plans: Sequence[RunPlan]) -> str:
    """Return a table that compares the plans of several meshes."""
    columns = ["mesh", "rows", "fits", "GiB", "TFLOP", "HBM GB", "sent GB"]
    columns += ["products ms", "memory ms", "links ms", "set by", "tokens/s", "MFU", "MFU in order"]
    columns += ["hours", "compile s"]
    return _as_table([columns, *map(_table_row, plans)])


def search_row(one: Candidate) -> dict[str, Any]:
    """Return the row of a step in a search, by column names; None: does not fit, or unknown."""
    plan, bounds = one.plan, one.plan.bounds if one.plan.fits else None
    return {
        "mesh": mesh_text(plan.mesh_shape),
        "remat": one.remat,
        "parts": one.accumulation_steps,
        "GiB": round(plan.bytes_per_device.total / _GIB, 2),
        "fits": plan.fits,
        "bound ms": None if bounds is None else round(1e3 * bounds.program_order, 2),
        "set by": None if bounds is None else bounds.set_by,
        "MFU": None if bounds is None else round(plan.mfu(bounds.program_order), 4),
        "MFU, everything overlapped": None if bounds is None else round(plan.mfu(bounds.overlapped), 4),
    }


def decode_row(plan: DecodePlan, topology: Topology) -> dict[str, Any]:
    """Return the row of a decoding step, by column names; None: it does not fit."""
    fits = plan.needed_bytes <= topology.known_chip.memory_bytes
    set_by = "products" if plan.compute_seconds > plan.memory_seconds else "memory"
    return {
        "rows": plan.rows,
        "state MB a row": round(plan.state_bytes / plan.rows / 1e6, 3),
        "least GB": round(plan.least_bytes / 1e9, 3),
        "moved GB": round(plan.moved_bytes / 1e9, 3) if fits else None,
        "times": round(plan.moved_bytes / plan.least_bytes, 2) if fits else None,
        "GiB": round(plan.needed_bytes / _GIB, 2) if fits else None,
        "fits": fits,
        "bound ms": round(1e3 * plan.seconds, 3) if fits else None,
        "set by": set_by if fits else None,
        "tokens/s": round(plan.rows / plan.seconds) if fits else None,
    }


def decode_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table of decoding steps, with a line for each number of rows."""
    return _as_table([list(rows[0]), *[[_cell(*item) for item in row.items()] for row in rows]])


def search_table(candidates: Sequence[Candidate]) -> str:
    """Return a table of the steps of a search."""
    rows = [search_row(one) for one in candidates]
    cells = [[_cell(name, value) for name, value in row.items()] for row in rows]
    return _as_table([list(rows[0]), *cells]) if rows else ""


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.1%}" if column.startswith("MFU") else str(value)


def _as_table(table: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in table
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def _table_row(plan: RunPlan) -> list[str]:
    costs, bounds = plan.costs, plan.bounds
    row = [mesh_text(plan.mesh_shape), str(plan.rows), "yes" if plan.fits else "NO"]
    row.append(f"{plan.bytes_per_device.total / _GIB:.2f}")
    if costs is None:
        row += ["-"] * 3
    else:
        sent = sum(total.sent_bytes for total in plan.collectives)
        row.append(f"{costs.flops.dot / 1e12:.2f}")
        row += [f"{costs.traffic_bytes / 1e9:.2f}", f"{sent / 1e9:.3f}"]
    if bounds is None:
        row += ["-"] * 8
    else:
        row += [f"{1e3 * part:.2f}" for part in (bounds.compute, bounds.memory, bounds.collectives)]
        row.append(bounds.set_by)
        row += [
            f"{plan.tokens_per_second(bounds.overlapped):,.0f}",
            f"{plan.mfu(bounds.overlapped):.1%}",
            f"{plan.mfu(bounds.program_order):.1%}",
        ]
        hours = plan.hours()
        row.append("-" if hours is None else f"{hours['at the bound']:,.2f}")
    return [*row, f"{plan.compile_seconds:.0f}"]


def plan_as_json(
    plan: RunPlan, largest: LargestBatch | None = None, price: float | None = None
) -> dict[str, Any]:
    """Return a plan as plain dictionaries; unknown values of a refused program are None.

    The keys are a public interface (docs/plan.md) and are independent of the names of fields.

    FLOPs and bytes are per device and step; tokens and `model_flops_per_step` are for all devices.
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
        "collectives": [_collective_as_json(total) for total in plan.collectives],
        "heaviest_instructions": [_heavy_op_as_json(op) for op in costs.heavy_ops] if costs else [],
        "compile_seconds": plan.compile_seconds,
        "largest_batch": largest and largest._asdict(),
        "chip": chip and _chip_as_json(chip),
        "bounds": None,
        "tokens_per_second_bound": None,
        "mfu_bound": None,
        "num_steps": plan.num_steps,
        "hours": None,
        "price": None,
    }
    if hours := plan.hours():
        bound, half = hours.values()
        result["hours"] = {"bound": bound, "half_speed": half}
        if price is not None:
            result["price"] = {
                name: value * plan.devices * price for name, value in result["hours"].items()
            }
    return result | _bounds_as_json(plan)


def _collective_as_json(total: CollectiveTotal) -> dict[str, Any]:
    return {
        "kind": total.kind,
        "axes": total.axes,
        "devices": total.devices,
        "times": total.executions,
        "payload_bytes": total.payload_bytes,
        "sent_bytes": total.sent_bytes,
        "link_seconds": total.seconds,
        "exposed_seconds": total.exposed_seconds,
        "behind": total.behind,
    }


def _heavy_op_as_json(op: HeavyOp) -> dict[str, Any]:
    return {
        "name": op.name,
        "opcode": op.opcode,
        "bytes": op.traffic_bytes,
        "flops": op.dot_flops,
        "times": op.executions,
        "source": op.op_name,
    }


def _chip_as_json(chip: Chip) -> dict[str, Any]:
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


def _bounds_as_json(plan: RunPlan) -> dict[str, Any]:
    bounds = plan.bounds
    if bounds is None:
        return {}
    return {
        "bounds": {
            "products_seconds": bounds.compute,
            "memory_seconds": bounds.memory,
            "link_seconds": bounds.links,
            "step_seconds": bounds.overlapped,
            "program_order_seconds": bounds.program_order,
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
