"""The choice of the scan's implementation, if the configuration of a run on accelerators leaves it open.

The first process checks all implementations on one of its devices. The run's `scan.json` keeps the choice,
because another implementation rounds differently. This machine's cache keeps the measurement, by device,
versions and sizes.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
from absl import logging

import pallas_kernels
from birdie_jax.config import Config
from birdie_jax.device_check.scans import CheckedScan, check_scans, scan_candidates
from birdie_jax.engine.coordination import Processes
from birdie_jax.errors import ConfigError
from birdie_jax.resolve import ResolvedRun
from birdie_jax.saved_config import read_json
from birdie_jax.storage import exists, make_path, write_json
from birdie_jax.storage.cache_folder import cache_folder
from birdie_jax.storage.workdir import Workdir

_FIELD = "config.model.scan_implementation"
Check = Callable[..., Sequence[CheckedScan]]


def keep_scan(
    runs: Sequence[ResolvedRun], workdir: Workdir, processes: Processes, check: Check = check_scans
) -> tuple[ResolvedRun, ...]:
    """Return runs of one model with a chosen implementation of its scan.

    With a single implementation, as on a CPU, the function checks nothing.

    Args:
        runs: the run of each stage, or the run of pre-training.
        workdir: the folder of the run; the choice is in its `scan.json`.
        processes: all processes of the run, which use the choice of the first.
        check: the function that checks implementations.

    Raises:
        ConfigError: no implementation is correct on this device.
    """
    config, platform = runs[0].config, runs[0].mesh.devices.flat[0].platform
    candidates = scan_candidates(config.model, platform)
    if config.model.scan_implementation or len(candidates) < 2:
        return tuple(runs)

    def choose() -> str:
        record = {}
        if exists(workdir.scan):
            record = read_json(workdir.scan, "the choice of a scan")
        # A run may resume on devices of another kind.
        if record.get("implementation") not in candidates:
            record = choose_scan(_cached(config, runs[0].mesh.shape, candidates, check))
            if "implementation" in record:
                workdir.write(workdir.scan, record)
        return json.dumps(record)

    record = json.loads(processes.broadcast_from_first("scan", choose))
    if problem := record.get("problem"):
        raise ConfigError(problem)
    chosen, why = record["implementation"], record.get("why", "")
    explanation = f"model.scan_implementation = {chosen} ({why})"
    return tuple(run.with_model(scan_implementation=chosen).explained(explanation) for run in runs)


def choose_scan(checked: Sequence[CheckedScan]) -> dict[str, str]:
    """Return the fastest correct implementation, and the reason.

    If none is correct, the record has a `problem` instead.
    """
    why = "; ".join(map(_described, checked))
    right = [one for one in checked if not one.problem]
    if not right:
        return {"problem": f"{_FIELD}: no implementation is right on this device ({why}); allowed: the "
                           "name of one of them, which disables the check"}  # fmt: skip
    fastest = min(right, key=lambda one: float("inf") if one.seconds is None else one.seconds)
    return {"implementation": fastest.implementation, "why": why}


def _described(one: CheckedScan) -> str:
    if one.problem:
        return f"{one.implementation} is refused: {one.problem}"
    if one.seconds is None:
        return f"{one.implementation} does not fit the device"
    return f"{one.implementation} {one.seconds * 1e3:.3g} ms"


def _cached(
    config: Config, mesh_shape: Mapping[str, int], candidates: tuple[str, ...], check: Check
) -> list[CheckedScan]:
    """Return the checks of implementations on this kind of device; the machine's cache keeps them."""
    rows, length = rows_of_device(config, mesh_shape), config.batching.length // mesh_shape["sequence"]
    key = {
        "device": jax.local_devices()[0].device_kind,
        "jax": jax.__version__,
        "runtime": jax.local_devices()[0].client.platform_version,
        "kernels": _kernels_digest(),
        "model": repr(config.model),
        "shape": [rows, length],
        "candidates": candidates,
    }
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    try:
        path = make_path(cache_folder() / "device_check" / f"{digest}.json")
    except ConfigError:
        path = None
    if path is not None and exists(path):
        # Replace a damaged file.
        with contextlib.suppress(ConfigError, KeyError, TypeError):
            return [CheckedScan(**one) for one in read_json(path, "checked scans")["checked"]]
    checked = list(check(config.model, candidates, rows, length))
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, key | {"checked": [one._asdict() for one in checked]})
        except OSError as error:
            logging.warning("%s: cannot save the check of the scan: %s", path, error)
    return checked


def rows_of_device(config: Config, mesh_shape: Mapping[str, int]) -> int:
    """Return the number of rows that a device computes at a time."""
    parts = mesh_shape["data"] * mesh_shape["fsdp"] * config.train.accumulation_steps
    return max(1, config.batching.rows // parts)


def _kernels_digest() -> str:
    """Return a hash of the kernels' source."""
    digest = hashlib.sha256()
    for file in sorted(Path(pallas_kernels.__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
