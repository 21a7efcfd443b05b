"""Whether all processes of a run have the same configuration and the same workdir."""

import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

from birdie_jax.config_errors import ConfigError
from birdie_jax.engine.coordination import Processes
from birdie_jax.storage import is_remote, shown
from birdie_jax.storage.workdir import Workdir, differences, flat

# Folders, of which each host may have its own.
_HOST_FIELDS = frozenset({"data.cache_dir", "data.prepared"})
_POLL_SECONDS = 0.2


def check_agreement(config: Mapping[str, Any], processes: Processes) -> None:
    """Check that this process was started with the first one's configuration.

    Raises:
        ConfigError: it was not; the message names every field that differs.
    """
    own = json.dumps(config)
    first = processes.broadcast_from_first("config", lambda: own)
    changed = [
        f"config.{name}: process 0 has {shown(theirs)}, process {processes.index} has {shown(ours)}"
        for name, theirs, ours in differences(flat(json.loads(first)), flat(json.loads(own)))
        if name not in _HOST_FIELDS
    ]
    if changed:
        raise ConfigError(f"the processes of a run need one configuration: {'; '.join(changed)}")


def check_shared(workdir: Workdir, processes: Processes, seconds: float) -> None:
    """Check that the folder `workdir` of every process is the one that the first process has.

    Args:
        workdir: the folder of the run; the first process has made it.
        processes: the processes of the run.
        seconds: the time that a file system may take to show one host what another has written.

    Raises:
        ConfigError: it is another folder of the same name, as on hosts that share no file system.
    """
    # One URL is one place.
    if processes.count == 1 or is_remote(workdir.root):
        return
    token = secrets.token_hex(8)
    own = workdir.sharing_probe(token)
    if processes.first:
        for left_behind in workdir.root.glob(workdir.sharing_probe("*").name):
            left_behind.unlink()
        own.write_text("the processes of a run look whether they all see this file\n")
    path = workdir.root / processes.broadcast_from_first("sharing probe", lambda: own.name)
    deadline = time.monotonic() + seconds
    # The listing, since a file that was asked for in vain may be remembered as absent.
    while not workdir.root.is_dir() or path not in workdir.root.iterdir():
        if time.monotonic() > deadline:
            raise ConfigError(
                f"--workdir: process {processes.index} does not see {path}, which process 0 has written; "
                "allowed: a folder on a file system that all processes share"
            )
        time.sleep(_POLL_SECONDS)
    processes.write("seen", path.name)
    if processes.first:
        while len(processes.read("seen")) < processes.count:
            time.sleep(_POLL_SECONDS)
        own.unlink()
