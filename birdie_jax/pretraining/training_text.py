"""The text of a run: both splits, prepared once, and the same in every process."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from absl import logging

from birdie_jax.config import Config, DataConfig, corpora_of
from birdie_jax.engine.coordination import Processes
from birdie_jax.engine.memory_check import trains_tokenizer
from birdie_jax.errors import DataError
from birdie_jax.storage import absolute, exists, make_path, write_whole
from birdie_jax.storage.cache_folder import cache_folder
from birdie_jax.storage.workdir import Workdir
from birdie_jax.text import Tokenizer, TokenShards, load_tokenizer, open_source, prepare
from birdie_jax.text.cache import cached_folder
from birdie_jax.text.corpora import Corpora
from birdie_jax.text.locations import Location, locate
from birdie_jax.text.manifest import TOKENIZER_NAME
from birdie_jax.text.shared_tokenizer import shared_tokenizer


class TrainingText(NamedTuple):
    """The text that pre-training reads.

    Attributes:
        train: the training splits of the corpora.
        validation: the validation splits of the corpora.
        vocab_size: the number of rows of the embedding table.
    """

    train: Corpora
    validation: Corpora
    vocab_size: int


def prepare_text(config: Config, workdir: Workdir, processes: Processes) -> tuple[TrainingText, Tokenizer]:
    """Prepare the text of the run if needed; return it and its tokenizer.

    Raises:
        DataError: a text or its tokenizer is unusable; the message names the field of a corpus.
    """
    found = processes.broadcast_from_first("text", lambda: json.dumps(_text_folders(config)))
    # On hosts that share no folder with the first process, processes prepare the text one after another.
    folders = json.loads(found) if processes.first else _text_folders(config)
    first = next(iter(folders))
    with _naming_the_field(config, first):
        tokenizer = load_tokenizer(folders[first])
    pieces, wanted = tokenizer.num_pieces, config.data.vocab_size
    if processes.first and pieces != wanted and not trains_tokenizer(config):
        logging.warning(
            "config.data.vocab_size: found %d, which has no effect: the text's tokenizer has %d pieces",
            wanted,
            pieces,
        )
    sha256 = processes.broadcast_from_first("tokenizer", lambda: _keep_tokenizer(workdir, tokenizer))
    weights = tuple(corpus.weight for corpus in corpora_of(config.data).values()) or (1.0,)
    opened = partial(TokenShards, tokenizer_sha256=sha256, mirror_gib=config.data.mirror_gib)

    def split(name: str) -> Corpora:
        texts = []
        for corpus, folder in folders.items():
            with _naming_the_field(config, corpus):
                texts.append(opened(folder, name))
        return Corpora(tuple(folders), tuple(texts), weights)

    text = TrainingText(split("train"), split("validation"), tokenizer.vocab_size)
    check_same_text(text.train.texts, processes)
    for each in text.train.texts:
        if each.not_mirrored:
            logging.warning("%s is read record by record: %s", each.directory, each.not_mirrored)
    if processes.first:
        places = [str(absolute(make_path(folder))) for folder in folders.values()]
        workdir.keep_text(text.train.sha256, ", ".join(places))
    return text, tokenizer


def check_same_text(texts: tuple[TokenShards, ...], processes: Processes) -> None:
    """Check that this process reads the same texts as the first process.

    Raises:
        DataError: a text differs; names both folders.
    """
    own = [[str(text.directory), text.manifest.sha256] for text in texts]
    first = json.loads(processes.broadcast_from_first("shards", lambda: json.dumps(own)))
    for (folder, identity), (its_folder, its_identity) in zip(own, first, strict=True):
        if identity != its_identity:
            raise DataError(
                f"{folder}: the text of process {processes.index} differs from that of process 0 in "
                f"{its_folder}; prepare both from the same source, with the same settings"
            )


@contextmanager
def _naming_the_field(config: Config, name: str) -> Iterator[None]:
    """Begin an error about a corpus with its field; a single text has the name ''."""
    try:
        yield
    except DataError as error:
        if not name:
            raise
        field = "prepared" if corpora_of(config.data)[name].prepared else "source"
        # The class has the exit status.
        raise type(error)(f"config.data.corpora.{name}.{field}: {error}") from error


def _text_folders(config: Config) -> dict[str, str]:
    """Return the folder of each corpus, prepared if needed; a single text has the name ''."""
    data = config.data
    root = locate(data.cache_dir) if data.cache_dir else cache_folder() / "data"
    corpora = corpora_of(data)
    if not corpora:
        return {"": data.prepared or _prepare(root, data.source, data, data.tokenizer)}
    tokenizer = data.tokenizer
    sources = {name: corpus.source for name, corpus in corpora.items() if corpus.source}
    prepared = [corpus.prepared for corpus in corpora.values() if corpus.prepared]
    if not tokenizer and prepared:
        tokenizer = str(locate(prepared[0]) / TOKENIZER_NAME)
    elif not tokenizer:
        opened = []
        for name, source in sources.items():
            with _naming_the_field(config, name):
                opened.append(open_source(source, **_document_settings(data)))
        weights = [corpora[name].weight for name in sources]
        tokenizer = str(shared_tokenizer(root, opened, weights, data.vocab_size))
    folders = {}
    for name, corpus in corpora.items():
        with _naming_the_field(config, name):
            folders[name] = corpus.prepared or _prepare(root, corpus.source, data, tokenizer)
    return folders


def _prepare(root: Location, source: str, data: DataConfig, tokenizer: str) -> str:
    """Return the cached folder of a source, prepared if needed."""
    settings = {
        "tokenizer_model": tokenizer,
        "vocab_size": data.vocab_size,
        "record_tokens": data.record_tokens,
        "validation_fraction": data.validation_fraction,
        **_document_settings(data),
    }
    return str(prepare(source, cached_folder(root, source, **settings), **settings))


def _document_settings(data: DataConfig) -> dict[str, Any]:
    """Return the nonempty document settings; only these affect the name of a cached folder."""
    names = ("text_field", "document_separator", "document_filter", "deduplicate")
    return {name: value for name in names if (value := getattr(data, name))}


def _keep_tokenizer(workdir: Workdir, tokenizer: Tokenizer) -> str:
    """Save the run's tokenizer in the workdir, unless it is there; return the hash of the saved one."""
    if not exists(workdir.tokenizer):
        write_whole(workdir.tokenizer, tokenizer.model_bytes)
    return Tokenizer(str(workdir.tokenizer)).sha256
