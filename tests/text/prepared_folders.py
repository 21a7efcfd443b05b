"""Test helpers: sources of every format, prepared folders, rows of shards."""

import gzip
import json
import lzma
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow
import pyarrow.parquet
import zstandard

from birdie_jax.batching.row_stream import RowSettings, RowStream
from birdie_jax.objectives import Arm, make_objective
from birdie_jax.storage import list_files, read_bytes
from tests.gcs_server import BUCKET, run_gcs_server
from tests.whole_runs import REPOSITORY

COMPRESS = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
}


def json_lines(*texts: str) -> bytes:
    return "".join(json.dumps({"text": text, "meta": {"n": 1}}) + "\n" for text in texts).encode()


def read_manifest(folder: Path) -> dict:
    """Return a manifest without its checksum, for a test to edit."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["checksum"]
    return manifest


def parquet(texts: Sequence[str], row_group_size: int = 64) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), sink, row_group_size=row_group_size)
    return sink.getvalue().to_pybytes()


def contents(folder: str | Path) -> dict[str, bytes]:
    """Return the contents of every file of a folder, on a disk or in a bucket, by name."""
    return {name: read_bytes(f"{folder}/{name}") for name in list_files(folder)}


def is_running(process: int | str) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def command(corpus: Path, output: str | Path, settings: dict[str, object]) -> list[str]:
    """Return the command that prepares `corpus` with the settings of `birdie_jax.text.prepare`."""
    names = {"tokenizer_model": "tokenizer"}
    flags = [f"--{names.get(name, name)}={value}" for name, value in settings.items()]
    verb = [sys.executable, "-m", "birdie_jax.prepare_data", f"--input={corpus}", f"--output={output}"]
    return [*verb, *flags]


def rows(text, state=None, count: int = 6, mixture: Sequence[float] = (0.5, 0.5)):
    """Return the arm and tokens of each sample of some rows, and the stream's state after them."""
    arms = tuple(Arm(name, make_objective(name), name) for name in ("causal_lm", "prefix_lm"))
    settings = RowSettings(seed=3, rows=2, length=128, spacing=1, lookahead=4)
    stream = RowStream(text, arms, settings, 1, state)
    made = []
    for _ in range(count):
        stream.set_mixture(np.array(mixture))
        made += [(one.arm, one.context.tolist(), one.target.tolist()) for one in stream.next_row()]
    return made, stream.state()


_WITH_SHORT_LIMITS = """
import sys
from birdie_jax.errors import DataError
from tests.short_retries import prepare
prepare()
def wait():
    print("ready", flush=True)
    sys.stdin.readline()
try:
{}
except DataError as error:
    print(error, flush=True)
"""


def message_after_outage(
    folder: Path, script: str, *arguments: object, files: Mapping[str, bytes] | None = None
) -> str:
    """Run a script whose server stops during its call of `wait`; return the line that it prints.

    Args:
        folder: the folder of the server's log.
        script: Python statements; a DataError is printed.
        arguments: `sys.argv[1:]`.
        files: the contents of the bucket, by name.
    """
    with run_gcs_server(folder) as server:
        for name, data in (files or {}).items():
            path = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(name, safe='')}"
            assert server.request("POST", path, data)[0] == 200
        program = _WITH_SHORT_LIMITS.format(textwrap.indent(script, "    "))
        process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            cwd=REPOSITORY,
            env=os.environ | server.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    message = process.communicate("\n", timeout=150)[0]
    assert (process.returncode, message.count("\n")) == (0, 1), message
    return message
