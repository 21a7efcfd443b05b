r"""Run on one or several TPU slices of Google Cloud, through preemptions, to the end.

    python -m launch.tpu_pod train --name=birdie --zone=us-east5-a --accelerator_type=v5p-128 \
        --runtime_version=v2-alpha-tpuv5 --spot \
        --service_account=birdie@PROJECT.iam.gserviceaccount.com -- \
        python -m birdie_jax.train --config=configs/birdie_1_4b.py --workdir=gs://BUCKET/birdie

`train` requests the slices as a queued resource, waits until they are active, sends the code and
constraints.txt, installs, starts the command on all workers, and follows their logs. If the slices are
preempted, it deletes the rest, requests them again, and starts the same command, which resumes from its
checkpoint. If the command fails, the launcher restarts it on the same slices. It does not restart a command
that ends with 2, because the command or its configuration is wrong. There are at most `--restarts` restarts
of both kinds together. When the command succeeds, or the launcher gives up, it deletes the slices, unless
`--keep` is given.

The log of each worker and start is copied to `WORKDIR/logs`, every five minutes and when the command ends.

Ctrl-C only stops following the logs. The run continues, and `train` or `run` with the same arguments
follows it again. `train` sends another commit to existing slices only while no command runs there.
`create`, `push`, `run`, `stop` and `delete` are the parts of `train`.

The workers share no disk. The workdir is in a bucket that `--service_account` can access, or below
/mnt/birdie, where `--nfs` mounts a file system on all of them.

The launcher sends the checked-out commit. It fails with an error if there are files that are neither in the
commit nor ignored by git. Values of `--pass_env` are written to a file that only its owner can read, never
on a command line.
"""

import argparse
import re
import signal
import sys
from collections.abc import Sequence

from .commands import (
    WRONG_COMMAND,
    Commands,
    LaunchError,
    Parser,
    UsageError,
    check_configuration,
    exit_with_error,
    parse_arguments,
    parse_name,
    parse_non_negative,
    parse_positive,
    parse_text,
    parse_variable,
    program,
    require_command,
)
from .storage import check_storage, uses_mount, workdir_of
from .tpu_slices import TERMINATED, PreemptionError, Slices

_SERVER = re.compile(r"[A-Za-z0-9.-]+:/[A-Za-z0-9._/-]*")
# The scope allows everything; the roles of the service account limit its rights.
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_ACTIONS = ("train", "create", "push", "run", "stop", "delete")


class RunError(Exception):
    """Raised if the command or its installation fails; `args[0]` describes the failure."""


class GaveUpError(LaunchError):
    """Raised if the run is not restarted; the message gives the reason."""


class WrongCommandError(GaveUpError):
    """Raised if the command or its configuration is wrong; a restart would fail again."""

    status = WRONG_COMMAND


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the action; return the exit status."""
    options, command = parse_arguments(make_parser(), arguments)
    commands = Commands(options.dry_run)
    slices = Slices(options, commands, command)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        if options.action in ("train", "run"):
            require_command(command)
            # `push` may have mounted the folder that `run` uses.
            shared = bool(options.nfs) or (options.action == "run" and uses_mount(command))
            check_storage(command, "--nfs=SERVER:/FOLDER", shared=shared)
        if options.action in ("train", "create"):
            _require_options(options, "accelerator_type", "runtime_version")
        if options.action == "train":
            check_configuration(commands, "tpu_pod", command)
        _run_action(options.action, slices, command)
    except PreemptionError as preempted:
        exit_with_error("tpu_pod", LaunchError(_describe_preemption(preempted)))
    except (UsageError, GaveUpError) as error:
        exit_with_error("tpu_pod", error)
    except (LaunchError, RunError) as error:
        left = f"{error}; existing slices stay, and are billed: `delete` deletes them"
        exit_with_error("tpu_pod", LaunchError(left) if options.action == "train" else error)
    except KeyboardInterrupt:
        again = "the same command follows it; `stop` saves and stops, `delete` deletes the slices"
        print(f"launch.tpu_pod: interrupted; the run continues; {again}", flush=True)
        return 130
    return 0


def _run_action(action: str, slices: Slices, command: Sequence[str]) -> None:
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
    """Create the slices if there are none, run the command until it succeeds, and delete the slices.

    Raises:
        GaveUpError: the command failed, and no restart is left or would help; the slices are deleted.
    """
    try:
        _train(slices, command)
    except GaveUpError:
        if not slices.options.keep:
            slices.delete()
        raise
    if not slices.options.keep:
        slices.delete()


def _train(slices: Slices, command: Sequence[str]) -> None:
    restarts = 0
    while True:
        try:
            _prepare_slices(slices)
            run(slices, command)
            break
        except PreemptionError as preempted:
            reason = _describe_preemption(preempted)
        except RunError as failed:
            reason = str(failed)
        restarts += 1
        if restarts > slices.options.restarts:
            raise GaveUpError(f"{reason}; giving up after --restarts={slices.options.restarts}")
        print(f"launch.tpu_pod: {reason}; restart {restarts} of {slices.options.restarts}", flush=True)


def run(slices: Slices, command: Sequence[str]) -> None:
    """Start the command on every worker where it is not running, and follow its log until it ends.

    Raises:
        RunError: the command failed on some worker, and was stopped on all.
        WrongCommandError: a worker reports that the command or its configuration is wrong.
        PreemptionError: the slices were preempted.
    """
    workdir = workdir_of(command)
    # In a bucket, `//` would name another folder.
    logs = f"{workdir.rstrip('/')}/logs" if workdir else ""
    status = slices.status_on_workers("start", logs, *command)
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
    if slices.command_is_wrong():
        raise WrongCommandError(
            f"the command ended with exit status {WRONG_COMMAND}: it or its configuration is wrong"
        )
    raise RunError(f"the command failed with exit status {status}")


def _prepare_slices(slices: Slices) -> None:
    """Create the slices or wait for them, and install the commit unless it is there or a command runs.

    Raises:
        PreemptionError: the slices were preempted meanwhile.
        RunError: the slices are active, but a file could not be sent or installed.
    """
    while (state := slices.state(assumed=None)) == "SUSPENDING":
        slices.pause()
    if state in TERMINATED:
        slices.delete()
        state = None
    wanted = ("installed", slices.extras, slices.commit)
    installed = state == "ACTIVE" and slices.status_on_workers(*wanted) == 0
    if state is None:
        slices.create()
    elif not installed:
        slices.wait()
    try:
        if installed:
            slices.prepare()
        else:
            slices.push()
    except LaunchError as error:
        if (state := slices.state(assumed="ACTIVE")) != "ACTIVE":
            raise PreemptionError(state) from error
        raise RunError(str(error)) from error


def _describe_preemption(preempted: PreemptionError) -> str:
    return f"the slices were preempted ({preempted.args[0] or 'NOT_FOUND'})"


def _require_options(options: argparse.Namespace, *names: str) -> None:
    for one in names:
        if not getattr(options, one):
            raise UsageError(f"--{one}: not given; {options.action} needs it")


def _parse_server(text: str) -> str:
    if not _SERVER.fullmatch(text):
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: SERVER:/FOLDER")
    return text


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the launcher's own options."""
    parser = Parser(
        prog=program("tpu_pod"),
        usage="%(prog)s ACTION [options] -- COMMAND",
        description="Run on TPU slices of Google Cloud.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("action", choices=_ACTIONS, help="train does everything; the others are its parts")
    add("--name", type=parse_name, required=True, help="name of the run and of its slices")
    add("--zone", type=parse_text, required=True, help="zone of Google Cloud")
    add("--project", type=parse_text, help="project of Google Cloud; default: that of gcloud")
    add("--accelerator_type", type=parse_text, help="type of a slice, e.g. v5p-128")
    add("--runtime_version", type=parse_text, help="software of the TPU VMs, e.g. v2-alpha-tpuv5")
    add("--slices", type=parse_positive, default=1, help="number of slices; default 1")
    capacity = parser.add_mutually_exclusive_group()
    capacity.add_argument("--spot", action="store_true", help="cheap slices that can be preempted")
    capacity.add_argument("--reserved", action="store_true", help="slices of a reservation")
    add("--valid_until_duration", type=parse_text, help="longest time in the queue, e.g. 6h")
    add("--network", type=parse_text, help="network of the workers")
    add("--subnetwork", type=parse_text, help="subnetwork of the workers")
    add(
        "--service_account",
        type=parse_text,
        help="service account of the workers, with rights to the bucket",
    )
    add(
        "--scopes", type=parse_text, default=_SCOPE, help=f"scopes of the service account; default {_SCOPE}"
    )
    add("--internal_ips", action="store_true", help="no external addresses; connect from the same network")
    add("--nfs", type=_parse_server, help="SERVER:/FOLDER, mounted at /mnt/birdie on every worker")
    add(
        "--pass_env",
        type=parse_variable,
        action="append",
        default=[],
        help="NAME of an environment variable",
    )
    add("--restarts", type=parse_non_negative, default=20, help="maximum of restarts; default 20")
    add(
        "--stop_seconds",
        type=parse_non_negative,
        default=300,
        help="time for saving before SIGKILL; default 300",
    )
    add(
        "--poll_seconds",
        type=parse_non_negative,
        default=30,
        help="time between two polls of the state; default 30",
    )
    add("--keep", action="store_true", help="do not delete the slices at the end")
    add("--dry_run", action="store_true", help="print the commands, run nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
