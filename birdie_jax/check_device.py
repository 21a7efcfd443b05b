"""Check the attached devices: python -m birdie_jax.check_device --config=configs/birdie_1_4b.py.

Compares every implementation of the model's scan with float32. Then measures products, copies, collectives,
the store for checkpoints, the host's batches and a few train steps, and compares each with the expected
figure of such devices. A table shows the low figures and what to try. Reads and writes no file of a run.
"""

from birdie_jax.host_memory import keep_freed_memory

if __name__ == "__main__":
    # Call this before the imports below start threads.
    keep_freed_memory()

# isort: split
import os
import sys
from typing import Any

import jax
from absl import flags, logging
from ml_collections import config_flags

from birdie_jax import __version__
from birdie_jax.command_line import define_path, start
from birdie_jax.compiled_programs import cache_compiled_programs
from birdie_jax.config import Config, parse_config
from birdie_jax.config_flag import define_config
from birdie_jax.device_check import rates
from birdie_jax.device_check.choice import choose_scan, rows_of_device
from birdie_jax.device_check.scans import check_scans, scan_candidates
from birdie_jax.device_check.steps import take_steps
from birdie_jax.device_check.table import as_json, as_text
from birdie_jax.engine.coordination import Processes
from birdie_jax.engine.processes import initialize_processes
from birdie_jax.errors import ConfigError
from birdie_jax.models.registry import mixer_config
from birdie_jax.planning import attached_topology, plan_chosen
from birdie_jax.resolve import resolve_run
from birdie_jax.start_recorder import find_commit
from birdie_jax.storage import make_path, write_json
from birdie_jax.storage.outputs import Input, Output, check_outputs
from birdie_jax.vocabulary import padded_vocab_size

_CONFIG = define_config("The configuration; the command checks its model, batch and mesh.")
_JSON = define_path("json", "File to write the table to, as JSON.")
_STORE = define_path("store", "Folder or URL for checkpoints; measures its speed with one file.")
_STEPS = flags.DEFINE_integer(
    "steps", 5, "Train steps to take; 0: compile and take no step.", lower_bound=0
)
_COORDINATOR_ADDRESS = flags.DEFINE_string(
    "coordinator_address", None, "Address of the coordinator: host:port, on process 0's host."
)
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "Number of processes of this command.")
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "Index of this process: 0 to num_processes - 1.")


def run(config: Config, processes: Processes) -> dict[str, Any]:
    """Check and measure, print the table, and return it as plain values."""
    if config.finetune.stages:
        raise ConfigError(
            f"config.finetune.stages: found {len(config.finetune.stages)} stages; allowed: none; name a "
            "pre-training configuration"
        )
    resolved = resolve_run(config, padded_vocab_size(config.data.vocab_size))
    topology = attached_topology(tuple(resolved.mesh.devices.flat))
    device = jax.local_devices()[0]
    candidates = scan_candidates(config.model, device.platform)
    rows, mesh = rows_of_device(resolved.config, resolved.mesh.shape), resolved.mesh.shape
    _log(f"compiling and checking the scan: {', '.join(candidates) or 'the model has none'}")
    length = config.batching.length // mesh["sequence"]
    scans = check_scans(config.model, candidates, rows, length) if candidates else []
    fastest = choose_scan(scans).get("implementation", "") if candidates else ""
    # Times differ between processes, but all must compile the same program.
    fastest = processes.broadcast_from_first("scan", lambda: fastest)
    chosen = config.model.scan_implementation or fastest
    if candidates and chosen:
        resolved = resolved.with_model(scan_implementation=chosen)
    _log("measuring products, copies and collectives")
    copied = rates.copy(topology)
    measured = [rates.products(topology), copied]
    if candidates and mixer_config(config.model).has_linear_scan:
        measured.append(rates.linear_scan(resolved, chosen, copied.found, candidates))
    measured += rates.collectives(topology, resolved)
    if _STORE.value:
        measured += rates.store(_STORE.value, processes.index)
    needed = None
    if _STEPS.value:
        _log("compiling the train step")
        resolved, plan = plan_chosen(resolved, topology)
        steps = take_steps(resolved, plan, _STEPS.value)
        measured += steps.measured
        needed = steps.positions_per_second / processes.count
    _log("making batches")
    measured.append(rates.host_pipeline(resolved, needed))
    circumstances = {
        "birdie_jax": f"{__version__} {find_commit() or ''}".strip(),
        "jax": jax.__version__,
        "devices": f"{jax.device_count()} x {device.device_kind} in {processes.count} processes",
        "runtime": device.client.platform_version.splitlines()[0],
        "mesh": ", ".join(f"{axis}={size}" for axis, size in mesh.items() if size > 1) or "one device",
        "model": f"{config.model.name}, {config.batching.rows} rows of {config.batching.length}",
        "scan": chosen or "none",
        "remat": resolved.config.model.remat,
    }
    if processes.first:
        print(as_text(circumstances, scans, measured))
    return as_json(circumstances, scans, measured)


def _log(line: str) -> None:
    """Print a line of progress to standard error."""
    print(f"check_device: {line}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> None:
    """Parse flags, check, print and write."""
    del arguments
    logging.set_verbosity(logging.WARNING)
    config = parse_config(_CONFIG.value)
    if _JSON.value is not None:
        file = config_flags.get_config_filename(flags.FLAGS["config"]).partition(":")[0]
        check_outputs([Output("--json", _JSON.value)], [Input("--config", file)])
    cache_compiled_programs()
    initialize_processes(
        _COORDINATOR_ADDRESS.value,
        _NUM_PROCESSES.value,
        _PROCESS_ID.value,
        os.environ,
        config.train.lost_seconds,
    )
    processes = Processes()
    found = run(config, processes)
    if processes.first and _JSON.value is not None:
        path = make_path(_JSON.value)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, found)
    if any(one["problem"] for one in found["scans"]):
        sys.exit(1)


if __name__ == "__main__":
    flags.mark_flag_as_required("config")
    start("check_device", main)
