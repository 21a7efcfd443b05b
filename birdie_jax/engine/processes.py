"""Connect the processes of a run.

A run has one process for each host of a TPU slice, each node of a Slurm job, or each pod of a Kubernetes
job. They connect at the coordinator, an address where process 0 listens
(https://docs.jax.dev/en/latest/multi_process.html). Its address comes from the first of these that is
present:

1. the flags `--coordinator_address`, `--num_processes` and `--process_id`, all three;
2. `JAX_COORDINATOR_ADDRESS` and `JAX_NUM_PROCESSES`, as a Kubernetes manifest sets them, with the process's
   number in `JAX_PROCESS_ID`, or in `JOB_COMPLETION_INDEX`, which Kubernetes sets in the pods of an Indexed
   Job;
3. Slurm, in a step that `srun` started (https://slurm.schedmd.com/srun.html);
4. an attached TPU: JAX queries the machine itself, on Cloud TPU VMs and in GKE.

Otherwise the process is the only one.
"""

import contextlib
import ctypes
import faulthandler
import importlib.util
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax

from birdie_jax.engine.coordination import coordinator_listens
from birdie_jax.engine.watch import EXIT_ANOTHER_FAILED
from birdie_jax.errors import ConfigError, one_line

_FLAGS = ("--coordinator_address", "--num_processes", "--process_id")
_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID or JOB_COMPLETION_INDEX")
_SLURM_STEP = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
_LOOK_SECONDS = 0.5
# The seconds from our own end of a wait to JAX's abort, which names no cause.
_ABORT_MARGIN = 30
_FIRST_DYNAMIC_PORT, _DYNAMIC_PORTS = 61440, 4096


class ClusterSpec(NamedTuple):
    """The coordinator of a run's processes.

    Attributes:
        source: the name of the source, e.g. "Slurm".
        arguments: the arguments for `jax.distributed.initialize`; empty if JAX queries the machine.
    """

    source: str
    arguments: dict[str, Any]


def initialize_processes(
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    environment: Mapping[str, str],
    lost_seconds: int,
    *,
    connect_seconds: int = 300,
) -> ClusterSpec | None:
    """Connect to the other processes of this run; return its cluster, or None if there are no others.

    Call it before any other use of JAX's devices. Afterwards `jax.process_index()` and
    `jax.process_count()` identify this process.

    Args:
        coordinator_address: see `detect_cluster`.
        num_processes: see `detect_cluster`.
        process_id: see `detect_cluster`.
        environment: see `detect_cluster`.
        lost_seconds: how long a process may be silent. JAX itself ends the other processes after four times
            this time, which it counts from its own heartbeat. So `birdie_jax.engine.watch` can name the
            lost process first.
        connect_seconds: how long the processes wait for each other to connect; after it JAX would abort.

    Raises:
        ConfigError: only some of the flags or variables are given, or a value is invalid.
    """
    cluster = detect_cluster(
        coordinator_address, num_processes, process_id, environment, on_tpu(environment)
    )
    if cluster is not None:
        # Only CPU devices read this option; without it, they cannot reach those of another process.
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        # The service would handle SIGTERM itself; the loop must handle it, see birdie_jax/engine/stop.py.
        jax.config.update("jax_enable_preemption_service", False)
        _delay_abort()
        try:
            # Processes wait for each other in both calls, and no watch runs yet.
            with _watched(_late(connect_seconds)):
                jax.distributed.initialize(
                    **cluster.arguments,
                    heartbeat_timeout_seconds=4 * lost_seconds,
                    initialization_timeout=connect_seconds + _ABORT_MARGIN,
                )
            with _watched(lambda: "" if coordinator_listens() else "process 0 no longer takes connections"):
                jax.devices()
        except RuntimeError as error:
            if not re.search("UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED", str(error)):
                raise
            _end_lost(str(error))
    return cluster


def _late(connect_seconds: int) -> Callable[[], str]:
    end = time.monotonic() + connect_seconds
    return lambda: f"not all connect within {connect_seconds} s" if time.monotonic() > end else ""


@contextlib.contextmanager
def _watched(find_sign: Callable[[], str]) -> Iterator[None]:
    """While entered, end this process if `find_sign` returns a sign that another one is lost; "": none."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            if (sign := find_sign()) and not over.is_set():
                _end_lost(sign)

    threading.Thread(target=look, name="watch others", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _end_lost(sign: str) -> NoReturn:
    """End this process, which cannot reach the others; an orderly end would wait for them."""
    print(
        "birdie_jax.train: another process is lost, or does not start, before the run begins; the same "
        f"command may succeed: {one_line(sign)[:500]}",
        file=sys.stderr,
        flush=True,
    )
    os._exit(EXIT_ANOTHER_FAILED)


def _delay_abort() -> None:
    """Delay an abort of this process by six seconds, so `birdie_jax.engine.watch` can report the cause.

    When process 0 is gone, and with it JAX's coordination service, JAX's client aborts its process at once.
    No option of JAX prevents this, not even `jax_enable_recoverability`. The handler for SIGABRT is the C
    library's `sleep`, which gets the number of the signal, 6, and runs no Python. faulthandler prints the
    stacks and then calls the handler.
    """
    library = ctypes.CDLL(None)
    library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    library.signal.restype = ctypes.c_void_p
    faulthandler.disable()
    library.signal(signal.SIGABRT, ctypes.cast(library.sleep, ctypes.c_void_p))
    faulthandler.enable()


def detect_cluster(
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    environment: Mapping[str, str],
    tpu: bool,
) -> ClusterSpec | None:
    """Return the cluster of the processes of this run, or None if this is the only one.

    Args:
        coordinator_address: the flag of that name, `host:port`, or None if it is not given.
        num_processes: the flag of that name.
        process_id: the flag of that name.
        environment: the environment variables.
        tpu: whether a TPU is attached.

    Raises:
        ConfigError: as `initialize_processes`.
    """
    flags = (coordinator_address, num_processes, process_id)
    if any(flag is not None for flag in flags):
        return _explicit("flags", _FLAGS, flags)
    if "JAX_COORDINATOR_ADDRESS" in environment or "JAX_NUM_PROCESSES" in environment:
        number = environment.get("JAX_PROCESS_ID", environment.get("JOB_COMPLETION_INDEX"))
        values = (environment.get("JAX_COORDINATOR_ADDRESS"), environment.get("JAX_NUM_PROCESSES"), number)
        return _explicit("environment", _VARIABLES, values)
    if all(name in environment for name in _SLURM_STEP):
        return _slurm(environment)
    if tpu:
        return ClusterSpec("TPU", {})
    return None


def on_tpu(environment: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Return whether JAX will use a TPU: devices and libtpu are present, and not excluded."""
    platforms = environment.get("JAX_PLATFORMS", "")
    if platforms and "tpu" not in platforms.split(","):
        return False
    attached = [*devices.glob("accel[0-9]*"), *devices.glob("vfio/[0-9]*")]
    return bool(attached) and importlib.util.find_spec("libtpu") is not None


def first_host(nodelist: str) -> str:
    """Return the first of a Slurm list of hosts: `node[001,007-015],login2` gives `node001`."""
    return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", nodelist).split(",")[0]


def _explicit(source: str, names: tuple[str, ...], values: tuple[Any, ...]) -> ClusterSpec:
    missing = [name for name, value in zip(names, values, strict=True) if value is None]
    if missing:
        given = [f"{name}={value}" for name, value in zip(names, values, strict=True) if value is not None]
        raise ConfigError(
            f"{', '.join(missing)}: not given; found {', '.join(given)};"
            f" allowed: all of {', '.join(names)}, or none of them"
        )
    address, count, number = values
    if not re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^\s:\[\]]+):[0-9]{1,5}", str(address)):
        raise ConfigError(f"{names[0]}: found {address!r}; allowed: host:port")
    count, number = _integer(names[1], count), _integer(names[2], number)
    if count < 1:
        raise ConfigError(f"{names[1]}: found {count}; allowed: 1 or more")
    if not 0 <= number < count:
        raise ConfigError(
            f"{names[2]}: found {number}; allowed: 0 to {count - 1}, as {names[1]} is {count}"
        )
    return ClusterSpec(source, _arguments(address, count, number, None))


def _slurm(environment: Mapping[str, str]) -> ClusterSpec | None:
    # In the interactive step of salloc, SLURM_NTASKS is that of the job.
    tasks = next(name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if name in environment)
    job, count, number, local = (
        _integer(name, environment[name])
        for name in ("SLURM_JOB_ID", tasks, "SLURM_PROCID", "SLURM_LOCALID")
    )
    if count == 1:
        return None
    nodes = _integer("SLURM_STEP_NUM_NODES", environment.get("SLURM_STEP_NUM_NODES", "1"))
    # Jobs that share a host have different numbers, and so almost always different ports.
    port = _FIRST_DYNAMIC_PORT + job % _DYNAMIC_PORTS
    address = f"{first_host(environment['SLURM_STEP_NODELIST'])}:{port}"
    # A task that is alone on its node uses all GPUs of the node; tasks that share a node use one each.
    return ClusterSpec("Slurm", _arguments(address, count, number, None if nodes == count else [local]))


def _arguments(address: str, count: int, number: int, devices: list[int] | None) -> dict[str, Any]:
    return {
        "coordinator_address": address,
        "num_processes": count,
        "process_id": number,
        "local_device_ids": devices,
        # These arguments are complete; JAX's own detection could contradict them.
        "cluster_detection_method": "deactivate",
    }


def _integer(name: str, value: Any) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise ConfigError(f"{name}: found {value!r}; allowed: an integer") from error
