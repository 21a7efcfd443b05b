"""A plan as people read it, and as JSON."""

from collections.abc import Sequence
from typing import Any

from birdie_jax.planning.largest_batch import LargestBatch
from birdie_jax.planning.planner import Plan

_GIB = 2**30


def as_text(plan: Plan, largest: LargestBatch | None) -> str:
    """Return everything that is told of one plan."""
    parts = [_head(plan), _memory(plan, largest)]
    if plan.reading is not None:
        parts += [_work(plan), _exchanges(plan)]
    if plan.bounds is not None:
        parts.append(_bounds(plan))
    if plan.reading is not None:
        parts.append(_heaviest(plan))
    parts.append(_assumed(plan))
    return "\n\n".join(parts)


def _head(plan: Plan) -> str:
    title = plan.topology.chip.title if plan.topology.chip else "CPU"
    per_device = plan.rows / plan.row_shards
    return (
        f"{plan.topology.name}: {plan.devices} x {title}, mesh {mesh_text(plan.mesh)}\n"
        f"batch: {plan.rows} rows of {plan.length} tokens, {per_device:g} rows for each device along data "
        f"and fsdp\ncompiled in {plan.compile_seconds:.0f} s"
    )


def mesh_text(mesh: dict[str, int]) -> str:
    """Return a mesh as --compare takes it: the axes of more than one device."""
    return ",".join(f"{axis}={size}" for axis, size in mesh.items() if size > 1) or "one device"


def _memory(plan: Plan, largest: LargestBatch | None) -> str:
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
        how = "compiled, and the next larger one does not fit" if largest.verified else "by a line through "
        if not largest.verified:
            how += "two compiled batches; --largest_batch=verify compiles it"
        lines.append(f"largest batch that fits: {largest.rows} rows ({how})")
    return "\n".join(lines)


def _binary(size: float | None) -> str:
    """Return bytes in the unit in which they are at least 1."""
    if size is None:
        return "not told"
    units = [unit for unit in (("GiB", 2**30), ("MiB", 2**20)) if abs(size) >= unit[1]]
    name, unit = units[0] if units else ("KiB", 2**10)
    return f"{size / unit:.2f} {name}"


def _decimal(amount: float, unit: str) -> str:
    """Return an amount with the prefix with which it is at least 1."""
    prefixes = [prefix for prefix in (("T", 1e12), ("G", 1e9), ("M", 1e6)) if amount >= prefix[1]]
    name, size = prefixes[0] if prefixes else ("k", 1e3)
    return f"{amount / size:.2f} {name}{unit}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


def _work(plan: Plan) -> str:
    flops = plan.reading.flops
    rows = {
        "matrix products and kernels": _decimal(flops.products, "FLOP"),
        "all other arithmetic": _decimal(flops.elementwise, "FLOP"),
        "asked for by the model": _decimal(plan.model_flops / plan.devices, "FLOP"),
        "moved between chip and main memory": _decimal(plan.reading.bytes_moved, "B"),
    }
    lines = [f"  {name:40} {amount:>12}" for name, amount in rows.items()]
    return "\n".join(["work of a device in a step", *lines])


def _exchanges(plan: Plan) -> str:
    if not plan.exchanges:
        return "collectives: none"
    lines = [
        "collectives of a device in a step",
        f"  {'kind':20} {'along':20} {'devices':>7} {'times':>7} {'payload':>11} {'sent':>11}",
    ]
    lines += [
        f"  {one.kind:20} {one.axes:20} {one.devices:7} {one.times:7} "
        f"{_decimal(one.payload_bytes, 'B'):>11} {_decimal(one.sent_bytes, 'B'):>11}"
        for one in plan.exchanges
    ]
    return "\n".join(lines)


def _bound_seconds(plan: Plan) -> dict[str, float]:
    """Return the seconds of a step by what sets them."""
    bounds = plan.bounds
    return {
        "matrix products": bounds.products,
        "main memory": bounds.memory,
        **dict(sorted(bounds.links.items())),
        "all of them, everything overlapped": bounds.step,
        "memory and collectives alone": bounds.without_products,
        "nothing overlapped": bounds.nothing_overlaps,
    }


def _bounds(plan: Plan) -> str:
    lines = [
        "bounds: no step is faster than each of these",
        f"  {'set by':40} {'a step':>12} {'tokens/s':>14} {'MFU':>6}",
    ]
    for name, seconds in _bound_seconds(plan).items():
        if seconds:
            lines.append(
                f"  {name:40} {_milliseconds(seconds):>12} {plan.tokens_per_second(seconds):14,.0f} "
                f"{plan.mfu(seconds):6.1%}"
            )
    return "\n".join(lines)


def _heaviest(plan: Plan) -> str:
    lines = [
        "instructions that move most",
        f"  {'bytes':>10} {'products':>12} {'times':>6}  instruction",
    ]
    lines += [
        f"  {_decimal(one.bytes, 'B'):>10} {_decimal(one.flops, 'FLOP'):>12} {one.times:6}  "
        f"{one.name} ({one.opcode}) {one.source[-80:]}"
        for one in plan.reading.heaviest
    ]
    return "\n".join(lines)


def _assumed(plan: Plan) -> str:
    chip = plan.topology.chip
    if chip is None:
        return "no figures are assumed of a CPU, and so no bounds are told"
    between = "between hosts" if not chip.dimensions else "between slices"
    links = "each link" if chip.dimensions else "NVLink"
    return "\n".join(
        [
            f"assumed of a {chip.title}: {chip.peak_flops / 1e12:g} TFLOP/s (bfloat16), "
            f"{chip.memory_bytes / _GIB:.2f} GiB, {chip.memory_bandwidth / 1e9:g} GB/s, one way "
            f"{chip.link_bandwidth / 1e9:g} GB/s {links} and {chip.network_bandwidth / 1e9:g} GB/s "
            f"{between}",
            *(f"  {source}" for source in chip.sources),
        ]
    )


def compared(plans: Sequence[Plan]) -> str:
    """Return a table of several meshes side by side."""
    columns = ["mesh", "rows", "fits", "GiB", "TFLOP", "HBM GB", "sent GB"]
    columns += ["products ms", "memory ms", "links ms", "set by", "tokens/s", "MFU", "compile s"]
    table = [columns]
    for plan in plans:
        row = [mesh_text(plan.mesh), str(plan.rows), "yes" if plan.fits else "NO"]
        row.append(f"{plan.bytes_per_device.total / _GIB:.2f}")
        if plan.reading is None:
            row += ["-"] * 3
        else:
            sent = sum(one.sent_bytes for one in plan.exchanges)
            row += [f"{plan.reading.flops.products / 1e12:.2f}"]
            row += [f"{plan.reading.bytes_moved / 1e9:.2f}", f"{sent / 1e9:.3f}"]
        bounds = plan.bounds
        if bounds is None:
            row += ["-"] * 6
        else:
            seconds = (bounds.products, bounds.memory, bounds.collectives)
            row += [f"{1e3 * part:.2f}" for part in seconds] + [bounds.set_by]
            row += [f"{plan.tokens_per_second(bounds.step):,.0f}", f"{plan.mfu(bounds.step):.1%}"]
        table.append([*row, f"{plan.compile_seconds:.0f}"])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in table
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def as_json(plan: Plan, largest: LargestBatch | None = None) -> dict[str, Any]:
    """Return a plan as plain dicts; what is not known of a refused program is None.

    FLOPs and bytes are those of one device in one step, tokens and `model_flops_per_step` of all devices.
    """
    reading, bounds, chip = plan.reading, plan.bounds, plan.topology.chip
    result = {
        "topology": plan.topology.name,
        "devices": plan.devices,
        "mesh": plan.mesh,
        "rows": plan.rows,
        "length": plan.length,
        "fits": plan.fits,
        "bytes_per_device": plan.bytes_per_device._asdict(),
        "flops_per_step": reading and reading.flops.products + reading.flops.elementwise,
        "product_flops_per_step": reading and reading.flops.products,
        "model_flops_per_step": plan.model_flops,
        "hbm_bytes_per_step": reading and reading.bytes_moved,
        "collective_bytes_per_step": reading and sum(one.sent_bytes for one in plan.exchanges),
        "collectives": [one._asdict() for one in plan.exchanges],
        "heaviest_instructions": [one._asdict() for one in reading.heaviest] if reading else [],
        "compile_seconds": plan.compile_seconds,
        "largest_batch": largest and largest._asdict(),
        "chip": chip and chip._asdict(),
        "bounds": None,
        "tokens_per_second_bound": None,
        "mfu_bound": None,
    }
    if bounds is not None:
        result |= {
            "bounds": {
                "products_seconds": bounds.products,
                "memory_seconds": bounds.memory,
                "link_seconds": bounds.links,
                "step_seconds": bounds.step,
                "nothing_overlaps_seconds": bounds.nothing_overlaps,
                "set_by": bounds.set_by,
            },
            "bound_by": {
                name: {
                    "step_seconds": seconds,
                    "tokens_per_second": plan.tokens_per_second(seconds),
                    "mfu": plan.mfu(seconds),
                }
                for name, seconds in _bound_seconds(plan).items()
                if seconds
            },
            "tokens_per_second_bound": plan.tokens_per_second(bounds.step),
            "mfu_bound": plan.mfu(bounds.step),
            "mfu_bound_memory_and_collectives": plan.mfu(bounds.without_products),
        }
    return result
