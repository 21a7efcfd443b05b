"""The lease on a workdir, which allows only one trainer at a time.

The first process of a run holds the lease, the file `lease.json`. The file names the holder and its start
time, and contains a count that increases every few seconds while the holder lives. A second trainer is
refused. A killed holder leaves the file behind. On the same machine, a new trainer takes the lease at once
if the holder's process is gone. On another machine, it waits until the count has not changed for the expiry
time of the file.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from absl import logging

from birdie_jax.engine.bad_steps import check_skip_batches
from birdie_jax.engine.lease_file import LeaseFile, Version, lease_file
from birdie_jax.engine.run_end import movable_fields
from birdie_jax.errors import ConfigError, DataError, LeaseLost, WorkdirInUse
from birdie_jax.storage.json_text import parse_json
from birdie_jax.storage.metric_lines import has_begun
from birdie_jax.storage.workdir import Workdir

_POLL_SECONDS = 0.5


class Lease:
    """A context in which this process is the only trainer of a workdir."""

    def __init__(self, workdir: Workdir):
        """Prepare a lease on an existing workdir."""
        self._path = workdir.lease
        self._workdir = workdir
        self._record: dict[str, Any] = {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "since": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            # Process numbers are comparable between processes with the same value.
            "machine": _machine(),
            "started": _start_time(os.getpid()),
            "token": secrets.token_hex(8),
            "renewals": 0,
        }
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._lost: str | None = None

    def __enter__(self) -> "Lease":
        """Take the lease.

        Raises:
            WorkdirInUse: another trainer holds it; the message names the host, the process and the start
                time.
            ConfigError: the file cannot be read or written.
        """
        try:
            self._file = lease_file(self._path)
            version = None
            while version is None:
                version = self._file.create(self._contents()) or self._take_over(self._file)
        except OSError as error:
            raise ConfigError(
                f"{self._path}: cannot determine which process holds the lease: {error}"
            ) from error
        self._version = version
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        try:
            self._file.give_up(self._version)
        except OSError as failure:
            logging.warning("%s: cannot be given up: %s", self._path, failure)

    def check(self) -> None:
        """Raise `LeaseLost` if another trainer has taken the lease, or the workdir is gone."""
        if self._lost is not None:
            raise LeaseLost(self._lost)

    def _take_over(self, file: LeaseFile) -> Version | None:
        """Replace a holder that is gone; return the new version, or None to try again from the start."""
        found = file.read()
        if found is None:
            return None
        holder = _parse(found)
        if holder.get("token") == self._record["token"]:
            # This trainer is the holder; the answer to its write was lost.
            return found
        if "released" in holder:
            return file.replace(found, self._contents())
        if _same_machine(holder):
            if _is_alive(holder):
                raise WorkdirInUse(self._refusal(holder))
        else:
            logging.warning(
                "%s: has a lease of %s; waiting %.0f seconds for a sign of life",
                self._workdir,
                _in_words(holder),
                file.expiry_seconds,
            )
            deadline = time.monotonic() + file.expiry_seconds
            while time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                now = file.read()
                if now is None:
                    return None
                if now != found:
                    if "released" in _parse(now):
                        return None
                    raise WorkdirInUse(self._refusal(_parse(now)))
        taken = file.replace(found, self._contents())
        if taken is not None:
            logging.warning(
                "%s: its trainer, %s, is gone; this trainer takes its place",
                self._workdir,
                _in_words(holder),
            )
        return taken

    def _refusal(self, holder: dict[str, Any]) -> str:
        return (
            f"{self._workdir}: is in use: {_in_words(holder)} has trained here since "
            f"{holder.get('since')}; allowed: another workdir, or wait until that process ends"
        )

    def _contents(self) -> bytes:
        return (json.dumps(self._record, indent=2) + "\n").encode()

    def _renew(self) -> None:
        while not self._over.wait(self._file.renewal_seconds):
            self._record["renewals"] += 1
            try:
                version = self._file.replace(self._version, self._contents()) or self._own_version()
            except FileNotFoundError:
                version, self._lost = None, f"{self._workdir}: no longer exists"
            except OSError as error:
                # A full disk must not end a run that may still save; the next renewal may succeed.
                logging.warning("%s: cannot be renewed: %s", self._path, error)
                continue
            if version is None:
                return
            self._version = version

    def _own_version(self) -> Version | None:
        """Return the current version if this trainer wrote it, for example after a lost answer."""
        found = self._file.read()
        if found is None:
            self._lost = f"{self._workdir}: no longer exists"
            return None
        holder = _parse(found)
        if holder.get("token") == self._record["token"]:
            return found
        self._lost = f"{self._workdir}: was taken by another trainer, {_in_words(holder)}"
        return None


@contextlib.contextmanager
def claimed(workdir: Workdir, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[Lease]:
    """Hold the lease on a workdir for a run of a configuration.

    A run that fails before its first step leaves the workdir empty.

    Args:
        workdir: the folder of the run, which need not exist.
        config: the configuration of the run, as nested dictionaries.
        defaults: the default configuration, in the same form.

    Raises:
        ConfigError: another trainer holds the workdir, or the workdir cannot be used or contains a run with
            another configuration.
    """
    workdir.make()
    with contextlib.ExitStack() as held:
        held.callback(workdir.remove_if_empty)
        lease = held.enter_context(Lease(workdir))
        done = max(workdir.saved_steps(), default=0)
        movable = partial(movable_fields, done)
        check = partial(_check_skip_batches, done)
        workdir.claim(config, defaults, begun=has_begun(workdir), movable=movable, check=check)
        try:
            yield lease
        except (ConfigError, DataError):
            with contextlib.suppress(OSError):
                if not has_begun(workdir):
                    workdir.remove_claim()
            raise


def _check_skip_batches(done: int, before: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    earlier, value = (config.get("train.skip_batches", "") for config in (before, wanted))
    check_skip_batches(value, 0, done=done, before=earlier)


def _parse(version: Version) -> dict[str, Any]:
    """Return the contents of a lease; empty if they are invalid."""
    try:
        found = parse_json(version.contents)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _same_machine(holder: dict[str, Any]) -> bool:
    return holder.get("machine") == _machine() and holder.get("machine") is not None


def _is_alive(holder: dict[str, Any]) -> bool:
    process = holder.get("process")
    if not isinstance(process, int) or process < 1:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # The process belongs to another user, and may hide its start time.
        return _start_time(process) in (holder.get("started"), None)
    return _start_time(process) == holder.get("started")


def _machine() -> str | None:
    """Return an identity of this boot of this machine or container; None if there is none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _start_time(process: int) -> str | None:
    """Return the start time of a process on this machine, in ticks since boot; None if there is none."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    # A zombie has ended.
    return None if fields[0] == "Z" else fields[19]


def _in_words(holder: dict[str, Any]) -> str:
    return f"process {holder.get('process')} on {holder.get('host')}"
