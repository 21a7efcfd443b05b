"""The text of a run: both splits, the same in every process."""

import json
from typing import NamedTuple

from birdie_jax.engine.coordination import Processes
from birdie_jax.errors import DataError
from birdie_jax.text import TokenShards


class TrainingText(NamedTuple):
    """What pre-training reads.

    Attributes:
        train: the training split.
        validation: the validation split.
        vocab_size: the number of rows of the embedding table for their tokenizer.
    """

    train: TokenShards
    validation: TokenShards
    vocab_size: int


def check_same_text(train: TokenShards, validation: TokenShards, processes: Processes) -> None:
    """Check that the text that this process reads is what the first one reads.

    Raises:
        DataError: it is not; the message names both folders.
    """
    own = [text.manifest.sha256 for text in (train, validation)]
    first = json.loads(
        processes.broadcast_from_first("shards", lambda: json.dumps([str(train.directory), own]))
    )
    if first[1] != own:
        raise DataError(
            f"{train.directory}: process {processes.index} has other text there than process 0 has in "
            f"{first[0]}; prepare both from the same source, with the same settings"
        )
