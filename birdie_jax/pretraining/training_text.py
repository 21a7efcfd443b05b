"""The text of a run: prepared once, both splits, the same in every process."""

import json
from typing import NamedTuple

from absl import logging

from birdie_jax.config import Config
from birdie_jax.engine.coordination import Processes
from birdie_jax.errors import DataError
from birdie_jax.storage import absolute, exists, make_path, write_whole
from birdie_jax.storage.cache_folder import cache_folder
from birdie_jax.storage.workdir import Workdir
from birdie_jax.text import Tokenizer, TokenShards, load_tokenizer
from birdie_jax.text.cache import cached_folder
from birdie_jax.text.locations import Location, locate
from birdie_jax.text.preparation import prepare


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


def prepare_text(config: Config, workdir: Workdir, processes: Processes) -> tuple[TrainingText, Tokenizer]:
    """Return the text of the run, prepared if need be, and the tokenizer that it is made with."""
    folder = processes.broadcast_from_first("text", lambda: str(_text_folder(config)))
    if not processes.first:
        # Processes of a host that shares no folder with the first one's prepare it one after another.
        folder = _text_folder(config)
    tokenizer = load_tokenizer(folder)
    sha256 = processes.broadcast_from_first("tokenizer", lambda: _keep_tokenizer(workdir, tokenizer))
    text = TrainingText(
        train=TokenShards(folder, "train", tokenizer_sha256=sha256, mirror_gib=config.data.mirror_gib),
        validation=TokenShards(
            folder, "validation", tokenizer_sha256=tokenizer.sha256, mirror_gib=config.data.mirror_gib
        ),
        vocab_size=tokenizer.vocab_size,
    )
    check_same_text(text.train, text.validation, processes)
    if text.train.not_mirrored:
        logging.warning("%s is read record by record: %s", folder, text.train.not_mirrored)
    if processes.first:
        workdir.keep_text(text.train.manifest.sha256, str(absolute(make_path(folder))))
    return text, tokenizer


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


def _text_folder(config: Config) -> str | Location:
    """Return the folder with the prepared text, after preparing it if it is not there."""
    data = config.data
    if data.prepared:
        return data.prepared
    settings = {
        "tokenizer_model": data.tokenizer,
        "vocab_size": data.vocab_size,
        "text_field": data.text_field,
        "record_tokens": data.record_tokens,
        "validation_fraction": data.validation_fraction,
    }
    # Left out where they are not used, for the folders of before.
    settings |= {
        name: value
        for name in ("document_separator", "document_filter", "deduplicate")
        if (value := getattr(data, name))
    }
    root = locate(data.cache_dir) if data.cache_dir else cache_folder() / "data"
    folder = cached_folder(root, data.source, **settings)
    return prepare(data.source, folder, **settings)


def _keep_tokenizer(workdir: Workdir, tokenizer: Tokenizer) -> str:
    """Keep the run's tokenizer in the workdir; return the hash that its text must be made with."""
    if not exists(workdir.tokenizer):
        write_whole(workdir.tokenizer, tokenizer.model_bytes)
    return Tokenizer(str(workdir.tokenizer)).sha256
