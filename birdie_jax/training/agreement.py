"""Whether all processes of a run were started with the same configuration and read the same text."""

import json
from dataclasses import asdict

from birdie_jax.config import Config, ConfigError, to_dict
from birdie_jax.text import DataError, TokenShards
from birdie_jax.training.coordination import Processes
from birdie_jax.training.workdir import differences

# Folders, of which each host may have its own.
_OF_A_HOST = frozenset({"data.cache_dir", "data.prepared"})


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
