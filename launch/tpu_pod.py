r"""Run on one or several TPU slices of Google Cloud, through preemptions, to the end.

    python -m launch.tpu_pod train --name=birdie --zone=us-east5-a --accelerator_type=v5p-128 \
        --runtime_version=v2-alpha-tpuv5 --spot --nfs=10.0.0.2:/share -- \
        python -m birdie_jax.train --config=configs/birdie_1_4b.py --workdir=/mnt/birdie/birdie

`train` asks for the slices as a queued resource, waits until they are there, sends them the code and
constraints.txt, installs, starts the command on all workers, and follows their logs. When the slices are
taken away, it deletes what is left, asks for them again, and starts the same command, which goes on from
its checkpoint. When the command fails, it is started again where it is. Both together happen `--restarts`
times at most. In the end the slices are deleted, unless `--keep`.

Ctrl-C ends the following alone: the run goes on, and `train` or `run` with the same arguments follows it
again. `create`, `push`, `run`, `stop` and `delete` are the parts of `train`.

What is sent is the commit that is checked out. Values of `--pass_env` go in a file that only its owner can
read, never on a command line.
"""

import argparse
import re
import signal
import sys
from collections.abc import Sequence

from launch.commands import (
    Commands,
    LaunchError,
    exit_with,
    name,
    need,
    not_negative,
    parse,
    positive,
    variable,
)
from launch.tpu_slices import GONE, PreemptionError, Slices

_SERVER = re.compile(r"[A-Za-z0-9.-]+:/[A-Za-z0-9._/-]*")
_ACTIONS = ("train", "create", "push", "run", "stop", "delete")


class RunError(Exception):
    """The command, or what prepares for it, ended badly; `args[0]` says how."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was asked; return the exit status."""
    options, command = parse(make_parser(), arguments)
    slices = Slices(options, Commands(options.dry_run))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        if options.action in ("train", "run"):
            need(command)
        if options.action in ("train", "create"):
            _need_options(options, "accelerator_type", "runtime_version")
        _do(options.action, slices, command)
    except PreemptionError as preempted:
        exit_with("tpu_pod", LaunchError(_taken_away(preempted)))
    except (LaunchError, RunError) as error:
        exit_with("tpu_pod", error)
    except KeyboardInterrupt:
        again = "the same command goes on; `stop` saves and stops, `delete` deletes the slices"
        print(f"launch.tpu_pod: left alone, what was started goes on; {again}", flush=True)
        return 130
    return 0


def _do(action: str, slices: Slices, command: Sequence[str]) -> None:
    if action == "train":
        slices.pack()
        train(slices, command)
    elif action == "create":
        slices.create()
    elif action == "push":
        slices.pack()
        slices.push()
    elif action == "run":
        run(slices, command)
    elif action == "stop":
        slices.stop()
    elif action == "delete":
        slices.delete()


def train(slices: Slices, command: Sequence[str]) -> None:
    """Create what is not there, run, and start again what was interrupted, to the command's end.

    Raises:
        LaunchError: the command did not end well, in spite of all restarts.
    """
    restarts = 0
    while True:
        try:
            _make_ready(slices)
            run(slices, command)
            break
        except PreemptionError as preempted:
            reason = _taken_away(preempted)
        except RunError as failed:
            reason = str(failed)
        restarts += 1
        if restarts > slices.options.restarts:
            raise LaunchError(f"{reason}; giving up after --restarts={slices.options.restarts}")
        print(f"launch.tpu_pod: {reason}; restart {restarts} of {slices.options.restarts}", flush=True)
    if not slices.options.keep:
        slices.delete()


def run(slices: Slices, command: Sequence[str]) -> None:
    """Start the command on every worker, unless it is running there, and follow it to its end.

    Raises:
        RunError: it ended badly on some worker, and has been ended on all.
        PreemptionError: the slices were taken away.
    """
    status = slices.status_on_workers("start", *command)
    lines = "+1"
    while status == 0:
        status = slices.status_on_workers("follow", lines)
        if status == 0:
            return
        if (state := slices.state(assumed="ACTIVE")) != "ACTIVE":
            raise PreemptionError(state)
        if slices.status_on_workers("running"):
            break
        # Only the connection was lost.
        slices.pause()
        lines, status = "10", 0
    if (state := slices.state(assumed="ACTIVE")) != "ACTIVE":
        raise PreemptionError(state)
    slices.status_on_workers("stop", str(slices.options.stop_seconds))
    raise RunError(f"the command failed with exit status {status}")


def _make_ready(slices: Slices) -> None:
    """See to it that the slices are there with everything installed.

    Raises:
        PreemptionError: they were taken away meanwhile.
        RunError: they are there, but something could not be sent or installed.
    """
    while (state := slices.state(assumed=None)) == "SUSPENDING":
        slices.pause()
    if state in GONE:
        slices.delete()
        state = None
    # What is installed and perhaps running already is not touched.
    if state == "ACTIVE" and slices.status_on_workers("installed") == 0:
        return
    if state is None:
        slices.create()
    else:
        slices.wait()
    try:
        slices.push()
    except LaunchError as error:
        if (state := slices.state(assumed="ACTIVE")) != "ACTIVE":
            raise PreemptionError(state) from error
        raise RunError(str(error)) from error


def _taken_away(preempted: PreemptionError) -> str:
    return f"the slices were taken away ({preempted.args[0] or 'NOT_FOUND'})"


def _need_options(options: argparse.Namespace, *names: str) -> None:
    for one in names:
        if not getattr(options, one):
            raise LaunchError(f"--{one}: not given; {options.action} needs it")


def _server(text: str) -> str:
    if not _SERVER.fullmatch(text):
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: SERVER:/FOLDER")
    return text


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the launcher's own options."""
    parser = argparse.ArgumentParser(
        prog="python -m launch.tpu_pod",
        usage="%(prog)s ACTION [options] -- COMMAND",
        description="Run on TPU slices of Google Cloud.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("action", choices=_ACTIONS, help="train does everything; the others are its parts")
    add("--name", type=name, required=True, help="of the run and its slices")
    add("--zone", required=True, help="of Google Cloud")
    add("--project", help="of Google Cloud; default: gcloud's own")
    add("--accelerator_type", help="kind and size of a slice, e.g. v5p-128")
    add("--runtime_version", help="of the TPU VMs, e.g. v2-alpha-tpuv5")
    add("--slices", type=positive, default=1, help="how many; default 1")
    capacity = parser.add_mutually_exclusive_group()
    capacity.add_argument("--spot", action="store_true", help="cheap slices that can be taken away")
    capacity.add_argument("--reserved", action="store_true", help="slices of a reservation")
    add("--valid_until_duration", help="give up waiting after so long, e.g. 6h")
    add("--network", help="for the workers")
    add("--subnetwork", help="for the workers")
    add("--service_account", help="for the workers")
    add("--internal_ips", action="store_true", help="no outer addresses; connect from the same network")
    add("--nfs", type=_server, help="SERVER:/FOLDER, mounted at /mnt/birdie on every worker")
    add("--pass_env", type=variable, action="append", default=[], help="NAME of a variable for the command")
    add("--restarts", type=not_negative, default=20, help="at most so many; default 20")
    add("--stop_seconds", type=not_negative, default=300, help="for saving before the end; default 300")
    add("--poll_seconds", type=not_negative, default=30, help="between two looks at the state; default 30")
    add("--keep", action="store_true", help="leave the slices there when the command has ended")
    add("--dry_run", action="store_true", help="print the commands, run nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
