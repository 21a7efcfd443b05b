"""The complete checkpoints of a workdir, their contents, and the lost checkpoints."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from benchmarks.fault_kinds.starts import call_in_fork


def checkpoint_files(workdir: Path) -> dict[str, str]:
    """Return a digest of the files of each complete checkpoint, by the name of its folder."""
    folder = workdir / "checkpoints"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return {name: _digest_of_files(folder / name) for name in names if name.isdigit()}


def _digest_of_files(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def lost_checkpoints(before: Mapping[str, str], now: Mapping[str, str], keep: int) -> list[str]:
    """Return the newest `keep` checkpoints that were complete before and are now missing or changed."""
    newest = sorted(before.keys() | now.keys())[-keep:]
    return [name for name in newest if name in before and before[name] != now.get(name)]


def digest_of_checkpoints(workdir: Path, keep: int) -> dict[str, str]:
    """Return a digest of each array in each checkpoint, and of its description.

    For an unreadable checkpoint, return the reason instead. Ignore checkpoints older than the newest
    `keep`, which a killed start can leave half removed. A separate process reads the stored arrays, because
    tensorstore starts threads.
    """
    return json.loads(call_in_fork(lambda: json.dumps(_read_checkpoints(workdir, keep)).encode()))


def _read_checkpoints(workdir: Path, keep: int) -> dict[str, str]:
    found: dict[str, str] = {}
    folders = sorted(path for path in (workdir / "checkpoints").iterdir() if path.name.isdigit())
    for folder in folders:
        try:
            found |= _read_checkpoint(folder)
        except (ValueError, OSError, KeyError) as error:
            if folder in folders[-keep:]:
                found[f"{folder.name}/unreadable"] = str(error)
    return found


def _read_checkpoint(folder: Path) -> dict[str, str]:
    import tensorstore

    found: dict[str, str] = {}
    for item in ("state", "batches"):
        spec = {"driver": "ocdbt", "base": f"file://{folder / item}/"}
        store = tensorstore.KvStore.open(spec).result()
        for key in store.list().result():
            found[f"{folder.name}/{item}/{key.decode()}"] = hashlib.sha256(bytes(store[key])).hexdigest()
    described = json.loads((folder / "meta" / "metadata").read_bytes())["contents"]["arrays"]
    return found | {f"{folder.name}/meta": json.dumps(described, sort_keys=True)}
