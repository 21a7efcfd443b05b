"""What a prepared folder holds, and the command that prepares it."""

import sys
from pathlib import Path

from birdie_jax.storage import list_files, read_bytes


def contents(folder: str | Path) -> dict[str, bytes]:
    """Return the contents of every file of a folder, on a disk or in a bucket, by its name."""
    return {name: read_bytes(f"{folder}/{name}") for name in list_files(folder)}


def command(corpus: Path, output: str | Path, settings: dict[str, object]) -> list[str]:
    """Return the command that prepares `corpus` with the settings of `birdie_jax.text.prepare`."""
    names = {"tokenizer_model": "tokenizer"}
    flags = [f"--{names.get(name, name)}={value}" for name, value in settings.items()]
    verb = [sys.executable, "-m", "birdie_jax.prepare_data", f"--input={corpus}", f"--output={output}"]
    return [*verb, *flags]
