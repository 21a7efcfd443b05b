"""Manage the TPU slices of a run, which are one queued resource of Google Cloud.

Sources:
https://cloud.google.com/sdk/gcloud/reference/compute/tpus/queued-resources/create
https://cloud.google.com/sdk/gcloud/reference/compute/tpus/queued-resources/ssh
https://cloud.google.com/sdk/gcloud/reference/compute/tpus/queued-resources/scp
https://cloud.google.com/tpu/docs/queued-resources (the states)
"""

import argparse
import os
import shlex
import time
from collections.abc import Sequence

from .commands import (
    IS_CHECKOUT,
    REPOSITORY,
    WRONG_COMMAND,
    Commands,
    LaunchError,
    UsageError,
    format_remote,
    read_variables,
)
from .storage import flag_of, uses_buckets

TERMINATED = frozenset({"SUSPENDING", "SUSPENDED", "FAILED", "PREEMPTED"})
_PENDING = frozenset({"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "DELETING"})
_QUEUED_RESOURCES = ("gcloud", "compute", "tpus", "queued-resources")
_ALL_WORKERS = ("--node=all", "--worker=all", "--batch-size=all")
# These flags close a connection to a preempted worker after two minutes.
_KEEP_ALIVE = ("--ssh-flag=-oServerAliveInterval=30", "--ssh-flag=-oServerAliveCountMax=4")
_DESCRIBE_ATTEMPTS = 5
# The largest number of files that a message names.
_MAX_FILES = 5


class PreemptionError(Exception):
    """Raised if the slices were preempted; `args[0]` is the state of their queued resource, or None."""


class Slices:
    """The slices of one run, and the commands that create, use and delete them.

    Args:
        options: the options of `launch.tpu_pod`.
        run: the runner of the commands.
        command: the command of the run, or empty if it is unknown.

    Attributes:
        command: the command of the run.
        extras: the extras of the package for the workers, separated by commas.
        commit: the commit that `pack` has packed.
    """

    def __init__(self, options: argparse.Namespace, run: Commands, command: Sequence[str] = ()):
        self.options, self.run, self.command = options, run, command
        self.extras = "tpu,gcs" if not command or uses_buckets(command) else "tpu"
        self.location = [f"--zone={options.zone}"]
        if options.project:
            self.location.append(f"--project={options.project}")
        self.folder = f"birdie/{options.name}"
        self.archive = f"build/launch/{options.name}.tar.gz"
        self.commit = ""

    def state(self, *, assumed: str | None) -> str | None:
        """Return the state of the queued resource, or None if there is none.

        Raises:
            LaunchError: gcloud did not return the state in several attempts.
        """
        command = [
            *_QUEUED_RESOURCES,
            "describe",
            self.options.name,
            *self.location,
            "--format=value(state.state)",
        ]
        for attempt in range(_DESCRIBE_ATTEMPTS):
            if attempt:
                self.pause()
            status, answer, error = self.run.capture(command, assumed=(0 if assumed else 1, assumed or ""))
            if status == 0 and answer:
                return answer
            if "NOT_FOUND" in error or (self.run.dry_run and status):
                return None
        raise LaunchError(f"--name={self.options.name}: cannot read its state: {error or 'empty answer'}")

    def create(self) -> None:
        """Request the slices, and wait until they are active.

        Raises:
            LaunchError: the service refused the request.
            PreemptionError: the slices were preempted before or after they became active.
        """
        options = self.options
        nodes = [f"--node-id={options.name}"]
        if options.slices > 1:
            nodes = [f"--node-count={options.slices}", f"--node-prefix={options.name}"]
        command = [*_QUEUED_RESOURCES, "create", options.name, *self.location, *nodes]
        command += [f"--accelerator-type={options.accelerator_type}"]
        command += [f"--runtime-version={options.runtime_version}"]
        for option in ("network", "subnetwork", "service_account", "scopes", "valid_until_duration"):
            if getattr(options, option):
                command.append(f"--{option.replace('_', '-')}={getattr(options, option)}")
        command += [f"--{option}" for option in ("spot", "reserved") if getattr(options, option)]
        command += ["--internal-ips"] if options.internal_ips else []
        self.run.run([*command, "--quiet"])
        self.wait()

    def wait(self) -> None:
        """Wait until the slices are active.

        Raises:
            PreemptionError: the slices were preempted before they became active.
        """
        before = None
        while (state := self.state(assumed="ACTIVE")) != "ACTIVE":
            if state is None or state in TERMINATED:
                raise PreemptionError(state)
            if state not in _PENDING:
                raise LaunchError(f"--name={self.options.name}: unknown state {state!r}")
            if state != before:
                print(f"launch.tpu_pod: {self.options.name} is {state}", flush=True)
            before = state
            self.pause()

    def pack(self) -> None:
        """Pack the checked-out commit once; after a preemption, the same archive is sent again.

        Raises:
            UsageError: there is no checkout, it has new or changed files, or the command's configuration is
                not in the commit.
        """
        if not IS_CHECKOUT:
            raise UsageError("found an installed wheel; allowed: a checkout, whose commit is sent")
        self._check_commit()
        _, self.commit, _ = self.run.capture(["git", "rev-parse", "HEAD"], assumed=(0, "HEAD"))
        if not self.run.dry_run:
            (REPOSITORY / self.archive).parent.mkdir(parents=True, exist_ok=True)
        self.run.run(["git", "archive", "--format=tar.gz", f"--output={self.archive}", "HEAD"])

    def _check_commit(self) -> None:
        """Check that the commit has all files of the checkout, and the command's configuration."""
        status, found, _ = self.run.capture(
            ["git", "status", "--porcelain", "--untracked-files=all"], assumed=(0, "")
        )
        if status:
            raise LaunchError(f"git status: failed with exit status {status}")
        files = [line.split(maxsplit=1)[1] for line in found.splitlines()]
        if files:
            more = f" and {len(files) - _MAX_FILES} more" if len(files) > _MAX_FILES else ""
            raise UsageError(
                f"not committed, and so not sent: {', '.join(files[:_MAX_FILES])}{more}; commit them, or "
                "let git ignore them"
            )
        # The configuration may be outside the checkout, or git may ignore it.
        config = (flag_of(self.command, "config") or "").partition(":")[0]
        if config.endswith(".py"):
            known = ["git", "ls-files", "--error-unmatch", "--", config]
            if self.run.capture(known, assumed=(0, ""))[0]:
                raise UsageError(f"--config: found {config}; allowed: a file of the commit that is sent")

    def push(self) -> None:
        """Send the archive and the environment to every worker, and install the program there."""
        options = self.options
        self._send(self.archive, f"{options.name}.tar.gz")
        unpack = [["mkdir", "-p", f"{self.folder}/.launch"]]
        unpack += [["tar", "--extract", f"--file={options.name}.tar.gz", f"--directory={self.folder}"]]
        self.on_workers(*unpack)
        self.prepare()
        self.on_workers(self._worker("install", self.extras))

    def prepare(self) -> None:
        """Send the environment to every worker, and mount the file system, if the options name them."""
        if self.options.pass_env:
            self._send_environment()
        if self.options.nfs:
            self.on_workers(self._worker("mount", self.options.nfs))

    def on_workers(self, *arguments: Sequence[str]) -> None:
        """Run commands on every worker.

        Raises:
            LaunchError: a command failed on some worker.
        """
        self.run.run(self._ssh(*arguments))

    def status_on_workers(self, *action: str) -> int:
        """Run an action of tpu_worker.sh on every worker; return 0 if it succeeded on all."""
        return self.run.status(self._ssh(self._worker(*action)))

    def command_is_wrong(self) -> bool:
        """Return whether the command ended on some worker with the status of a wrong command."""
        _, answers, _ = self.run.capture(self._ssh(self._worker("status")), assumed=(0, ""))
        return f"status {WRONG_COMMAND}" in answers.splitlines()

    def stop(self) -> None:
        """Stop the command on every worker, with time to save."""
        self.on_workers(self._worker("stop", str(self.options.stop_seconds)))

    def delete(self) -> None:
        """Delete the slices and the request for them."""
        self.run.run(
            [*_QUEUED_RESOURCES, "delete", self.options.name, *self.location, "--force", "--quiet"]
        )

    def pause(self) -> None:
        """Wait until the next poll."""
        if not self.run.dry_run:
            time.sleep(self.options.poll_seconds)

    def _send_environment(self) -> None:
        path = f"build/launch/{self.options.name}.environment"
        values = read_variables(self.options.pass_env, os.environ)
        lines = "".join(f"{one}={shlex.quote(value)}\n" for one, value in values.items())
        destination = f"{self.folder}/.launch/environment"
        if self.run.dry_run:
            self._send(path, destination)
            return
        (REPOSITORY / path).unlink(missing_ok=True)
        try:
            with open(REPOSITORY / path, "x", encoding="utf-8", opener=_open_private) as file:
                file.write(lines)
            self._send(path, destination)
        finally:
            (REPOSITORY / path).unlink(missing_ok=True)

    def _send(self, path: str, destination: str) -> None:
        command = [*_QUEUED_RESOURCES, "scp", path, f"{self.options.name}:{destination}"]
        self.run.run([*command, *_ALL_WORKERS, *self.location, *self._connection(), "--quiet"])

    def _ssh(self, *arguments: Sequence[str]) -> list[str]:
        command = [*_QUEUED_RESOURCES, "ssh", self.options.name, f"--command={format_remote(*arguments)}"]
        return [*command, *_ALL_WORKERS, *self.location, *_KEEP_ALIVE, *self._connection(), "--quiet"]

    def _connection(self) -> list[str]:
        return ["--internal-ip"] if self.options.internal_ips else []

    def _worker(self, *action: str) -> list[str]:
        return ["bash", f"{self.folder}/launch/tpu_worker.sh", *action]


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
