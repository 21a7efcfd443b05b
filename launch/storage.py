"""Check that the paths of a command are in buckets, or in a folder that all workers share."""

import re
from collections.abc import Iterator, Sequence

from .commands import UsageError

MOUNT = "/mnt/birdie"
"""The path where a shared file system is mounted on every worker."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_MAX_SHOWN = 200


def uses_buckets(command: Sequence[str]) -> bool:
    """Return whether an argument of a command, or its value in `--flag=value`, is the URL of a bucket."""
    return any(value.startswith("gs://") for value in _values(command))


def uses_mount(command: Sequence[str]) -> bool:
    """Return whether an argument of a command names a path below the shared folder."""
    return any(_is_below_mount(value) for value in _values(command))


def check_storage(command: Sequence[str], shared_by: str, *, shared: bool) -> None:
    """Check that every worker can reach the paths of a command with a `--workdir`.

    Args:
        command: the command of the run; a command without `--workdir` is not checked.
        shared_by: the launcher's option that shares a folder between the workers, for messages.
        shared: whether that option was given.

    Raises:
        UsageError: the workdir is neither in a bucket nor in the shared folder, the command names a path in
            the folder although it is not shared, or a folder is shared but the command does not use it.
    """
    workdir = workdir_of(command)
    if workdir is None:
        return
    check_workdir_url(workdir)
    buckets = f"gs://BUCKET/..., or a folder below {MOUNT} with {shared_by}"
    for value in _values(command):
        if value.startswith("s3://"):
            raise UsageError(
                f"{_shown(value)}: workers do not have the s3 extra; copy it to gs://BUCKET/..."
            )
    if not workdir.startswith("gs://") and not _is_below_mount(workdir):
        raise UsageError(
            f"--workdir: found {_shown(workdir)}, which the workers do not share; allowed: {buckets}"
        )
    if uses_mount(command) and not shared:
        below = next(value for value in _values(command) if _is_below_mount(value))
        raise UsageError(f"{shared_by}: not given, and {_shown(below)} needs it; allowed: {buckets}")
    if shared and not uses_mount(command):
        raise UsageError(f"{shared_by}: given, but the command uses nothing below {MOUNT}; remove it")


def check_workdir_url(workdir: str) -> None:
    """Check the scheme of a workdir that is a URL.

    Raises:
        UsageError: checkpoints cannot be written there.
    """
    if workdir.startswith("gs://") or (found := _URL.match(workdir)) is None:
        return
    reason = ", to which orbax writes no checkpoints" if found.group(1) == "s3" else ""
    raise UsageError(
        f"--workdir: found {_shown(workdir)}{reason}; allowed: gs://BUCKET/..., or a folder that all share"
    )


def workdir_of(command: Sequence[str]) -> str | None:
    """Return the value of a command's last `--workdir`, or None if it has none."""
    return flag_of(command, "workdir")


def flag_of(command: Sequence[str], flag: str) -> str | None:
    """Return the value of the last flag of this name in a command, or None if there is none."""
    found = None
    for index, argument in enumerate(command):
        name, equals, value = argument.partition("=")
        if name in (f"--{flag}", f"-{flag}"):
            following = command[index + 1] if index + 1 < len(command) else ""
            found = value if equals else following
    return found


def _values(command: Sequence[str]) -> Iterator[str]:
    """Yield the arguments; for `--flag=value`, yield the value."""
    for argument in command:
        yield argument.partition("=")[2] if argument.startswith("-") and "=" in argument else argument


def _is_below_mount(value: str) -> bool:
    return value == MOUNT or value.startswith(f"{MOUNT}/")


def _shown(value: str) -> str:
    # The text before an @ may be a password.
    value = re.sub(r"(:/+)[^/@]*@", r"\1***@", value)
    return repr(value if len(value) <= _MAX_SHOWN else f"{value[:_MAX_SHOWN]}...")
