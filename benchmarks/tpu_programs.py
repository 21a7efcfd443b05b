"""The bytes that a program compiled for a TPU moves, and the cycles of its loops.

Import this module before JAX. It makes the TPU compiler (`pip install libtpu`) write its final bundles to
a folder of this process. A bundle is one cycle. The module needs no TPU.
"""

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(tempfile.mkdtemp(prefix="tpu_programs_"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_to={FOLDER} --xla_jf_dump_llo_text=true"

import jax  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import SingleDeviceSharding  # noqa: E402

from hlo_analysis import parse_hlo  # noqa: E402
from hlo_analysis.module import total_bytes  # noqa: E402

_MOVES_NOTHING = (
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "copy-done",
    "after-all",
)


def abstract(topology: str) -> Callable[..., Any]:
    """Return a function (shape, dtype) -> an abstract array on a chip of `topology`."""
    device = topologies.get_topology_desc(topology, platform="tpu").devices[0]
    sharding = SingleDeviceSharding(device)
    return lambda shape, dtype: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def compile_with_bundles(function: Callable[..., Any], *arguments: Any) -> tuple[str, str]:
    """Return the HLO text of a program, and the bundles of its kernel with the most multiplications."""
    before = set(FOLDER.iterdir())
    text = jax.jit(function).lower(*arguments).compile().as_text() or ""
    bundles = [
        path.read_text()
        for path in set(FOLDER.iterdir()) - before
        if path.name.endswith("-final_bundles.txt")
        and not re.search("schedule-analysis|late-|-TLP-", path.name)
    ]
    for path in FOLDER.iterdir():
        path.unlink()
    return text, max(bundles, key=lambda program: program.count(" vmul"), default="")


def moved_bytes(text: str) -> int:
    """Return the bytes of operands and results of all instructions of the entry; operands count once."""
    return sum(sum(sizes) for _, sizes in _entry_instructions(text))


def kernel_bytes(text: str) -> int:
    """Return the bytes of operands and results of the kernel that moves the most."""
    return max(sum(sizes) for opcode, sizes in _entry_instructions(text) if opcode == "custom-call")


def full_copies(text: str, array_bytes: int) -> int:
    """Return the number of instructions on whole operands that are not kernels, such as copies."""
    return sum(
        opcode != "custom-call" and max(sizes) >= array_bytes for opcode, sizes in _entry_instructions(text)
    )


def _entry_instructions(text: str) -> Iterator[tuple[str, list[int]]]:
    """Yield the opcode of each instruction of the entry, and the bytes of its result and operands."""
    entry = parse_hlo(text).entry
    for instruction in entry:
        if instruction.opcode not in _MOVES_NOTHING:
            names = (instruction.name, *dict.fromkeys(instruction.operands))
            yield instruction.opcode, [total_bytes(entry.instructions[name].shapes) for name in names]


class Loop(NamedTuple):
    """An iteration of a loop.

    Attributes:
        cycles: the number of bundles.
        multiplications: the number of float32 multiplications.
        vector_operations: the number of operations that take a slot of the vector unit: arithmetic,
            conversions, moves and selections of registers, and the start of long operations such as an
            exponential. Loads, stores, operations across lanes and the results of long operations do not
            count.
    """

    cycles: int
    multiplications: int
    vector_operations: int


def innermost_loops(bundles: str) -> list[Loop]:
    """Return every loop inside the loop over the grid, without the instructions of loops inside it."""
    loops: list[list[int]] = []
    current: list[int] | None = None
    for line in bundles.splitlines():
        match = re.match(r"\s*(?:0x[0-9a-f]+|\d+)\s+(\w\w)?\s*:\s*(>*)(.*)", line)
        if match is None:
            continue
        label, depth, bundle = match.group(1), len(match.group(2)), match.group(3)
        if label == "LB":
            current = [depth, 0, 0, 0]
            if depth > 1:
                loops.append(current)
        if current is not None and depth >= current[0]:
            current[1] += 1
            current[2] += bundle.count("vmul.f32")
            current[3] += sum(map(_takes_a_slot, bundle.strip("{} ").split(";;")))
    return [Loop(*counts) for _, *counts in loops]


# The slots of a core's vector unit: the most `_takes_a_slot` operations in a bundle.
VECTOR_SLOTS = {"v4": 2, "v5e": 4, "v5p": 4, "v6e": 4}
_TAKES_NO_SLOT = (
    "vld",
    "vst",
    "vpop",
    "vset",
    "vperm.lane",
    "vrot.lane",
    "vphi",
    "vmat",
    "vxpose",
    "vsync",
)


def _takes_a_slot(instruction: str) -> bool:
    match = re.search(r"(?:=|^)\s*(v[a-z0-9.]+)", instruction)
    if match is None:
        return False
    name = match.group(1)
    return name == "vstv" or not (name.startswith(_TAKES_NO_SLOT) or "xlane" in name or "xlu" in name)
