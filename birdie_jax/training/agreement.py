"""Whether all processes of a run have the same configuration, the same workdir and the same text."""

import json
import secrets
import time
from dataclasses import asdict
from pathlib import Path

from birdie_jax.config import Config, ConfigError, to_dict
from birdie_jax.text import DataError, TokenShards
from birdie_jax.training.coordination import Processes
from birdie_jax.training.workdir import differences

# Folders, of which each host may have its own.
_OF_A_HOST = frozenset({"data.cache_dir", "data.prepared"})
_POLL_SECONDS = 0.2


def check_agreement(config: Config, processes: Processes) -> None:
    """Check that this process was started with the first one's configuration.

    Raises:
        ConfigError: it was not; the message names every field that differs.
    """
    own = json.dumps(to_dict(config))
    first = processes.after_first("config", lambda: own)
    changed = [
        f"  config.{name}: process 0 has {theirs!r}, process {processes.index} has {ours!r}"
        for name, theirs, ours in differences(json.loads(first), json.loads(own))
        if name not in _OF_A_HOST
    ]
    if changed:
        raise ConfigError("the processes of a run need one configuration:\n" + "\n".join(changed))


def check_shared(workdir: Path, processes: Processes, seconds: float) -> None:
    """Check that the folder `workdir` of every process is the one that the first process has.

    Args:
        workdir: of the run; the first process has made it.
        processes: of the run.
        seconds: that a file system may take to show one host what another has written.

    Raises:
        ConfigError: it is another folder of the same name, as on hosts that share no file system.
    """
    if processes.count == 1:
        return
    token = secrets.token_hex(8)
    own = workdir / f".meeting-{token}"
    if processes.first:
        for left_behind in workdir.glob(".meeting-*"):
            left_behind.unlink()
        own.write_text("the processes of a run look whether they all see this file\n")
    path = workdir / processes.after_first("meeting", lambda: own.name)
    deadline = time.monotonic() + seconds
    # The listing, since a file that was asked for in vain may be remembered as absent.
    while not workdir.is_dir() or path not in workdir.iterdir():
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


def check_same_text(train: TokenShards, validation: TokenShards, processes: Processes) -> None:
    """Check that the text that this process reads is what the first one reads.

    Raises:
        DataError: it is not; the message names both folders.
    """
    own = [_description(text) for text in (train, validation)]
    first = json.loads(processes.after_first("shards", lambda: json.dumps([str(train.directory), own])))
    if first[1] != json.loads(json.dumps(own)):
        raise DataError(
            f"{train.directory}: process {processes.index} has other text there than process 0 has in "
            f"{first[0]}; prepare both from the same source, with the same settings"
        )


def _description(text: TokenShards) -> list[object]:
    shards = text.manifest.shards(text.split)
    return [text.manifest.source_sha256, *(asdict(shard) for shard in shards)]
