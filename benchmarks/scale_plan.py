"""Plans of the 1.4B model at scale, as tables: `python -m benchmarks.scale_plan --results=scale.jsonl`.

The script requires the compilers of `launch/compilers.sh` and no device. It makes each plan in a separate
process and writes it as one line of --results. If you restart the command, it makes the missing plans.
--tables prints the tables of --results.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

CONFIG = "configs/birdie_1_4b.py"
MILLION = 1 << 20


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of a table.

    Attributes:
        table: the title of the table.
        topology: the topology, as --topology takes it.
        mesh: the mesh, as --compare takes it.
        rows: the number of rows of the global batch.
        length: the number of tokens of a row.
        overrides: further flags of the command.
    """

    table: str
    topology: str
    mesh: str
    rows: int
    length: int = 2048
    overrides: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The text that identifies the case in --results."""
        return json.dumps(dataclasses.asdict(self))


def cases() -> list[Case]:
    """Return the rows of all tables."""
    return [
        *(Case("2048 tokens", *row) for row in AT_2048),
        *(Case("long rows", *row) for row in LONG),
        *(Case("from 16 to 1024 chips", *row) for row in SCALING),
    ]


AT_2048 = (
    ("v5p:4x4x4", "data=4,fsdp=16", 1024),
    ("v5e:16x16", "data=16,fsdp=16", 512),
    ("v4:4x4x4", "data=4,fsdp=16", 512),
    ("h200:2x8", "data=2,fsdp=8", 256),
    ("v6e:16x16", "data=16,fsdp=16", 1024),
    ("v5p:4x4x4", "data=64", 1024),
    ("v5p:4x4x4", "fsdp=64", 1024),
    ("v5p:4x4x4", "fsdp=16,tensor=4", 1024),
)
LONG = (
    ("v5p:4x4x4", "data=4,fsdp=16", 128, 16_384),
    ("v5p:4x4x4", "fsdp=4,sequence=16", 4, MILLION),
    ("v5p:4x4x4", "sequence=64", 1, MILLION),
)
SCALING = tuple(
    (topology, mesh.format(chips=chips, rest=chips // 16), 16 * chips)
    for mesh in ("data={rest},fsdp=16", "data={chips}")
    for topology, chips in (
        ("v5p:2x2x4", 16),
        ("v5p:4x4x4", 64),
        ("v5p:4x8x8", 256),
        ("v5p:8x8x16", 1024),
    )
)


def plan(case: Case, folder: Path) -> dict:
    """Run the plan command for a case, and return its JSON."""
    output = folder / "plan.json"
    output.unlink(missing_ok=True)
    axes = dict.fromkeys(("data", "fsdp", "tensor", "sequence"), "1")
    axes |= dict(part.split("=") for part in case.mesh.split(","))
    command = [
        *(sys.executable, "-m", "birdie_jax.plan", f"--config={CONFIG}", f"--topology={case.topology}"),
        *(f"--config.mesh.{axis}={size}" for axis, size in axes.items()),
        f"--config.batching.rows={case.rows}",
        f"--config.batching.length={case.length}",
        f"--config.data.record_tokens={max(case.length, 32_768)}",
        "--config.train.accumulation_steps=1",
        "--largest_batch=skip",
        f"--json={output}",
        *case.overrides,
    ]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    return {**json.loads(output.read_text()), "wall_seconds": time.monotonic() - begin}


def print_tables(results: dict[str, dict]) -> None:
    """Print the tables of the finished plans."""
    columns = "topology mesh rows length fits GiB TFLOP HBM-GB sent-GB products-ms memory-ms links-ms"
    for table in dict.fromkeys(case.table for case in cases()):
        print(f"\n{table}:\n")
        print("| " + " | ".join(columns.split()) + " | tokens/s | MFU | MFU without products | compile s |")
        print("|---" * (len(columns.split()) + 4) + "|")
        for case in cases():
            if case.table == table and case.key in results:
                print(row(case, results[case.key]))
    print("\nBytes that a device sends in a step, by kind and axes (payload in brackets), GB:\n")
    for case in cases():
        found = results.get(case.key, {})
        sums: dict[str, list[float]] = {}
        for one in found.get("collectives", []):
            total = sums.setdefault(f"{one['kind']} along {one['axes']}", [0.0, 0.0])
            total[0] += one["sent_bytes"] / 1e9
            total[1] += one["payload_bytes"] / 1e9
        if sums:
            text = "; ".join(f"{name} {sent:.4f} ({payload:.4f})" for name, (sent, payload) in sums.items())
            print(f"- {case.topology} {case.mesh} {case.rows}x{case.length}: {text}")


def row(case: Case, found: dict) -> str:
    """Return a row of a table."""
    start = f"| {case.topology} | {case.mesh} | {case.rows} | {case.length} "
    if "error" in found:
        return f"{start}| {found['error']} |"
    gibibytes = found["bytes_per_device"]["total"] / 2**30
    fits = "yes" if found["fits"] else "no"
    if found["bounds"] is None:
        return f"{start}| {fits} | {gibibytes:.2f} |"
    bounds = found["bounds"]
    links = max(bounds["link_seconds"].values(), default=0.0)
    return (
        f"{start}| {fits} | {gibibytes:.2f} | {found['product_flops_per_step'] / 1e12:.1f} "
        f"| {found['hbm_bytes_per_step'] / 1e9:.1f} | {found['collective_bytes_per_step'] / 1e9:.2f} "
        f"| {bounds['products_seconds'] * 1e3:.0f} | {bounds['memory_seconds'] * 1e3:.0f} "
        f"| {links * 1e3:.0f} "
        f"| {found['tokens_per_second_bound']:,.0f} | {found['mfu_bound']:.1%} "
        f"| {found['mfu_bound_memory_and_collectives']:.1%} | {found['compile_seconds']:.0f} |"
    )


def main() -> None:
    """Compute the missing plans, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("scale_plan.jsonl"))
    parser.add_argument("--only", default="", help="make the plans of this table alone")
    parser.add_argument("--tables", action="store_true", help="print the tables, and make no plan")
    arguments = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    results = {}
    if arguments.results.exists():
        for line in arguments.results.read_text().splitlines():
            record = json.loads(line)
            results[record["key"]] = record["plan"]
    for case in cases():
        if arguments.tables or case.key in results or not case.table.startswith(arguments.only):
            continue
        results[case.key] = plan(case, arguments.results.resolve().parent)
        with arguments.results.open("a") as file:
            file.write(json.dumps({"key": case.key, "plan": results[case.key]}) + "\n")
        print(row(case, results[case.key]), flush=True)
    print_tables(results)


if __name__ == "__main__":
    main()
