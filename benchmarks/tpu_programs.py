"""What can be read from a program compiled for a TPU: the bytes it moves, and the cycles of its loops.

Import this before JAX: it tells the TPU compiler, `pip install libtpu`, to write its final bundles (one is
one cycle) to a folder of this process. No TPU is needed.
"""

import atexit
import os
import re
import shutil
import tempfile
from pathlib import Path

FOLDER = Path(tempfile.mkdtemp(prefix="tpu_programs_"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_to={FOLDER} --xla_jf_dump_llo_text=true"

import jax  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import SingleDeviceSharding  # noqa: E402

_ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4}
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy-done", "after-all"}
_INSTRUCTION = re.compile(r"(?:ROOT )?%(\S+) = (.+?) ([a-z][a-z0-9-]*)\((.*)")


def abstract(topology: str):
    """Return a function (shape, dtype) -> an array that is on a chip of `topology`."""
    device = topologies.get_topology_desc(topology, platform="tpu").devices[0]
    sharding = SingleDeviceSharding(device)
    return lambda shape, dtype: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def compile_with_bundles(function, *arguments) -> tuple[str, str]:
    """Return the compiled text, and the bundles of the kernel in it that multiplies most."""
    before = set(FOLDER.iterdir())
    text = jax.jit(function).lower(*arguments).compile().as_text()
    bundles = [
        path.read_text()
        for path in set(FOLDER.iterdir()) - before
        if path.name.endswith("-final_bundles.txt")
        and not re.search("schedule-analysis|late-|-TLP-", path.name)
    ]
    for path in FOLDER.iterdir():
        path.unlink()
    return text, max(bundles, key=lambda program: program.count(" vmul"), default="")


def type_bytes(text: str) -> int:
    """Return the bytes of an HLO type, or of all in a tuple of them."""
    total = 0
    for name, sizes in re.findall(r"\b([a-z]+[0-9]*)\[([0-9,]*)\]", text):
        if name in _ITEM_BYTES:
            count = 1
            for size in filter(None, sizes.split(",")):
                count *= int(size)
            total += count * _ITEM_BYTES[name]
    return total


def moved_bytes(text: str) -> int:
    """Add up operands and results of every instruction of the entry computation; an operand counts once."""
    return sum(sum(sizes) for _, sizes in _entry_instructions(text))


def full_copies(text: str, array_bytes: int) -> int:
    """Count copies, transposes, fusions and the like of whole operands: all but kernels."""
    return sum(
        kind != "custom-call" and max(sizes) >= array_bytes for kind, sizes in _entry_instructions(text)
    )


def _entry_instructions(text):
    entry = text[text.index("ENTRY ") :]
    types, found = {}, []
    for line in entry.splitlines()[1:]:
        match = _INSTRUCTION.match(line.strip())
        if match is None:
            continue
        name, result, kind, rest = match.groups()
        types[name] = type_bytes(result)
        if kind not in _FREE:
            operands = set(re.findall(r"%([\w.-]+)", rest.split("), ")[0]))
            found.append((kind, [types[name], *(types.get(operand, 0) for operand in operands)]))
    return found


def innermost_loops(bundles: str) -> list[tuple[int, int]]:
    """Return (cycles of a turn, products in it) of every loop within the loop over the grid."""
    loops, current = [], None
    for line in bundles.splitlines():
        match = re.match(r"\s*(?:0x[0-9a-f]+|\d+)\s+(\w\w)?\s*:\s*(>*)", line)
        if match is None:
            continue
        label, depth = match.group(1), len(match.group(2))
        if label == "LB":
            current = [depth, 0, 0]
            if depth > 1:
                loops.append(current)
        if current is not None and depth >= current[0]:
            current[1] += 1
            current[2] += line.count("vmul.f32")
    return [(cycles, products) for _, cycles, products in loops]
