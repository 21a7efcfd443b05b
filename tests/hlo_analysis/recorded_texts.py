"""The paths and machines of the recorded HLO texts, which `record.py` writes."""

import gzip
import json
from pathlib import Path

from hlo_analysis import MeshShape

RECORDED = Path(__file__).with_name("recorded")
# The versions of JAX whose texts are recorded; 0.11 writes replica groups as axes of a mesh.
VERSIONS = ("jax_0_10", "jax_0_11")
XLA_COUNTS = "xla.json"
AXES = ("data", "fsdp", "tensor", "sequence")
# The mesh of each machine. The CPU is last because it starts JAX, which then accepts no other compiler.
MESHES = {
    "h200:2x2": (2, 2, 1, 1),
    "v5p:2x2x1": (2, 2, 1, 1),
    "v5e:2x2": (1, 4, 1, 1),
    "v5e:2x2,slices=2": (2, 4, 1, 1),
    "cpu:8": (2, 1, 2, 2),
}


def file_of(version: str, machine: str, program: str) -> Path:
    """Return the file of a program's text for a version of JAX and a machine."""
    folder = machine.translate(str.maketrans(":,=", "___"))
    return RECORDED / version / folder / f"{program}.hlo.txt.gz"


def read_text(version: str, machine: str, program: str) -> str:
    """Return a recorded text."""
    return gzip.decompress(file_of(version, machine, program).read_bytes()).decode()


def mesh_shape(machine: str) -> MeshShape:
    """Return the number of devices along each axis of a machine's mesh."""
    return dict(zip(AXES, MESHES[machine], strict=True))


def xla_counts(version: str, machine: str, program: str) -> dict[str, float]:
    """Return the "flops" and "bytes_accessed" of XLA's cost analysis for a recorded program."""
    counts = json.loads((RECORDED / version / XLA_COUNTS).read_text())
    return counts[machine]["programs"][program]
