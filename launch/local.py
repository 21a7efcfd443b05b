r"""Start a run as several processes on this machine, and restart it when one of them fails.

    python -m launch.local --processes=2 --fake_devices=8 -- \
        python -m birdie_jax.train --config=configs/tiny.py --workdir=runs/tiny

Every process runs the command with `--coordinator_address`, `--num_processes` and `--process_id` appended.
The launcher prints their output, each line after the number of its process.

- A process that fails ends the job: the others get SIGTERM, and those that still run `--grace_seconds`
  later are killed. Then the job is restarted, at most `--restarts` times, and resumes from its checkpoint.
  If a process ends with 2, the command itself is wrong, and the job is not restarted.
- SIGTERM and Ctrl-C are forwarded to every process once. The run saves and ends, within `--stop_seconds`.
  A second one kills the processes. SIGHUP is forwarded as SIGTERM; so is the end of the reader of the
  launcher's output.
- The exit status is 0 if every process ended with 0, 128 + the signal if one was forwarded, 2 if a process
  ended with 2, and otherwise that of the process that failed first (128 + the signal that killed it).
"""

import argparse
import io
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence

from .commands import (
    WRONG_COMMAND,
    LaunchError,
    Parser,
    UsageError,
    exit_with_error,
    format_command,
    parse_arguments,
    parse_non_negative,
    parse_port,
    parse_positive,
    program,
    require_command,
)
from .process_group import GroupResult, run_group

_RESTART_PAUSE_SECONDS = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the processes, wait until they have ended, and return the exit status."""
    options, command = parse_arguments(make_parser(), arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # An error would end the thread that reads a process's output, and the process would wait forever.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        require_command(command)
        variables = _device_variables(options)
    except LaunchError as error:
        exit_with_error("local", error)
    starts = 0
    while True:
        commands = [
            ["env", "PYTHONUNBUFFERED=1", *own, *command, *flags]
            for own, flags in zip(
                variables, _process_flags(options.processes, options.port or _free_port()), strict=True
            )
        ]
        for one in commands:
            print(format_command(one), flush=True)
        if options.dry_run:
            return 0
        result = run_group(commands, options.grace_seconds, options.stop_seconds)
        starts += 1
        _report(result)
        if result.status == 0 or result.forwarded is not None:
            break
        if WRONG_COMMAND in result.statuses:
            print("launch.local: not started again: the command or its configuration is wrong", flush=True)
            return WRONG_COMMAND
        if starts > options.restarts:
            print(f"launch.local: giving up after {options.restarts} restarts", flush=True)
            break
        print(f"launch.local: starting again, restart {starts} of {options.restarts}", flush=True)
        time.sleep(_RESTART_PAUSE_SECONDS)
    return result.status


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the launcher's own options."""
    parser = Parser(
        prog=program("local"),
        usage="%(prog)s [options] -- COMMAND",
        description="Start a run as several processes on this machine.",
        allow_abbrev=False,
    )
    parser.add_argument("--processes", type=parse_positive, required=True, help="number of processes")
    devices = parser.add_mutually_exclusive_group()
    devices.add_argument("--fake_devices", type=parse_positive, help="devices on the CPU, in equal shares")
    devices.add_argument(
        "--gpus", type=parse_positive, help="GPUs, the first of CUDA_VISIBLE_DEVICES, in equal shares"
    )
    parser.add_argument(
        "--restarts", type=parse_non_negative, default=3, help="maximum of restarts; default 3"
    )
    parser.add_argument(
        "--grace_seconds", type=parse_non_negative, default=60, help="after a failure; default 60"
    )
    parser.add_argument(
        "--stop_seconds", type=parse_non_negative, default=300, help="after a signal; default 300"
    )
    parser.add_argument("--port", type=parse_port, help="port of the coordinator; default: a free one")
    parser.add_argument("--dry_run", action="store_true", help="print the commands, run nothing")
    return parser


def _device_variables(options: argparse.Namespace) -> list[list[str]]:
    """Return the environment variables of each process that select its devices, as NAME=VALUE."""
    for option in ("fake_devices", "gpus"):
        devices = getattr(options, option)
        if devices is not None and devices % options.processes:
            raise UsageError(
                f"--{option}: found {devices}; allowed: a multiple of --processes={options.processes}"
            )
    gpus = _visible_gpus(options.gpus or 0, os.environ)
    shares = []
    for process in range(options.processes):
        if options.fake_devices:
            count = options.fake_devices // options.processes
            flags = os.environ.get("XLA_FLAGS", "")
            flags = f"{flags} --xla_force_host_platform_device_count={count}".strip()
            shares.append(["JAX_PLATFORMS=cpu", f"XLA_FLAGS={flags}"])
        elif options.gpus:
            count = options.gpus // options.processes
            own = gpus[process * count : (process + 1) * count]
            shares.append([f"CUDA_VISIBLE_DEVICES={','.join(own)}"])
        else:
            shares.append([])
    return shares


def _visible_gpus(count: int, environment: Mapping[str, str]) -> list[str]:
    """Return the first `count` GPUs that CUDA_VISIBLE_DEVICES allows; of all, if it is not set.

    Raises:
        UsageError: it allows fewer.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(gpu) for gpu in range(count)]
    allowed = [gpu.strip() for gpu in visible.split(",") if gpu.strip()]
    if count > len(allowed):
        raise UsageError(
            f"--gpus: found {count}; allowed: at most {len(allowed)}, as CUDA_VISIBLE_DEVICES is "
            f"{visible!r}"
        )
    return allowed[:count]


def _process_flags(processes: int, port: int) -> list[list[str]]:
    return [
        [
            f"--coordinator_address=127.0.0.1:{port}",
            f"--num_processes={processes}",
            f"--process_id={process}",
        ]
        for process in range(processes)
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _report(result: GroupResult) -> None:
    if result.first_failed is not None:
        status = result.first_status
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
        print(f"launch.local: process {result.first_failed} {how}", flush=True)
    if result.killed:
        killed = ", ".join(map(str, result.killed))
        print(f"launch.local: did not end in time, killed: process {killed}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
