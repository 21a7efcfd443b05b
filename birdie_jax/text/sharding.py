"""The middle of a preparation: read blocks, have them tokenized, write and commit shards in order."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from birdie_jax.text.durable import PARTIAL_SUFFIX
from birdie_jax.text.errors import DataError
from birdie_jax.text.manifest import MANIFEST_NAME, SPLITS, Manifest, Position
from birdie_jax.text.progress import PreparationProgress
from birdie_jax.text.shard_writer import ShardWriter, shard_name
from birdie_jax.text.sources import DocumentStream, Source
from birdie_jax.text.tokenization import Block, Tokenization, TokenizedDocument, tokenize_blocks
from birdie_jax.text.tokenizer import Tokenizer

_BLOCK_CHARACTERS = 1 << 19
_BLOCK_DOCUMENTS = 1024


class _Place(NamedTuple):
    """What the reader knew when it had read a document: where to go on, empty documents, bytes read."""

    position: Position
    empty_documents: int
    source_bytes: int


def write_shards(
    source: Source,
    directory: Path,
    manifest: Manifest,
    tokenizer: Tokenizer,
    *,
    workers: int,
    progress: PreparationProgress,
) -> Manifest:
    """Write what `manifest` says is missing, up to the source's end; return the completed manifest.

    Raises:
        DataError: the source cannot be read, the disk is full, or a worker died. Finished shards are kept
            and the manifest names them; parts of shards are removed.
    """
    if manifest.tokenizer is None:
        raise ValueError("the manifest must name the tokenizer before shards are written")
    settings = manifest.settings
    tokenization = Tokenization(
        tokenizer, manifest.dtype, settings.record_tokens, settings.validation_fraction
    )
    documents = source.documents(manifest.position.file, manifest.position.document)
    documents.empty_documents = manifest.empty_documents
    output = _Output(source, directory, manifest)
    progress.begin("token shards", manifest.source_bytes, output.tokens)
    # Closed at once on an error, so that no worker outlives this call.
    results = tokenize_blocks(_blocks(documents), tokenization, workers)
    try:
        for block, tokenized in results:
            for place, document in zip(block.places, tokenized, strict=True):
                output.add(document)
                if output.shard_is_full():
                    output.commit(place)
            progress.update(block.places[-1].source_bytes, output.documents, output.tokens)
        return output.commit(_place(documents), complete=True)
    finally:
        results.close()
        output.discard()


def _blocks(documents: DocumentStream) -> Iterator[Block]:
    """Group documents so that a block is worth sending to another process; a long document goes alone."""
    texts: list[str] = []
    places: list[_Place] = []
    characters = 0
    for document in documents:
        if texts and characters + len(document.text) > _BLOCK_CHARACTERS:
            yield Block(texts, places)
            texts, places, characters = [], [], 0
        texts.append(document.text)
        places.append(_place(documents))
        characters += len(document.text)
        if len(texts) >= _BLOCK_DOCUMENTS:
            yield Block(texts, places)
            texts, places, characters = [], [], 0
    if texts:
        yield Block(texts, places)


def _place(documents: DocumentStream) -> _Place:
    position = Position(documents.file, documents.next_document)
    return _Place(position, documents.empty_documents, documents.bytes_read)


class _Output:
    """The shards being written and the manifest of those finished.

    Attributes:
        documents: documents with tokens, in finished and unfinished shards of both splits.
        tokens: likewise.
    """

    def __init__(self, source: Source, directory: Path, manifest: Manifest):
        self.documents = sum(manifest.documents(split) for split in SPLITS)
        self.tokens = sum(manifest.tokens(split) for split in SPLITS)
        self._source = source
        self._directory = directory
        self._manifest = manifest
        self._writers: dict[str, ShardWriter] = {}
        self._without_tokens = 0

    def add(self, document: TokenizedDocument) -> None:
        """Append a document's records to the open shard of its split."""
        if not document.records:
            self._without_tokens += 1
            return
        writer = self._writers.get(document.split)
        if writer is None:
            number = len(self._manifest.shards(document.split))
            writer = ShardWriter(self._directory / shard_name(document.split, number))
            self._writers[document.split] = writer
        for record in document.records:
            writer.add(record.payload, record.tokens, record.ends_document)
            self.tokens += record.tokens
        self.documents += 1

    def shard_is_full(self) -> bool:
        """Return whether the open training shard has as many tokens as a shard shall have."""
        train = self._writers.get("train")
        return train is not None and train.tokens >= self._manifest.settings.shard_tokens

    def commit(self, place: _Place, *, complete: bool = False) -> Manifest:
        """Close the open shards of both splits, then let the manifest name them and what comes next.

        Args:
            place: what the reader knew after the last document added.
            complete: whether that was the source's last.

        Returns:
            The new manifest.

        Raises:
            DataError: the disk is full, or the source ended and a split got no tokens.
        """
        finished = {}
        for split in SPLITS:
            finished[split] = self._manifest.shards(split)
            if split in self._writers:
                finished[split] += (self._writers[split].close(),)
                del self._writers[split]
            if complete and not finished[split]:
                raise DataError(
                    f"{self._directory / MANIFEST_NAME}: the tokenizer finds no token in any document "
                    f"of the {split} split; raise or lower validation_fraction, or give another tokenizer"
                )
        self._manifest = replace(
            self._manifest,
            **finished,
            complete=complete,
            position=place.position,
            source_sha256=self._source.sha256_of_first(place.position.file + (place.position.document > 0)),
            empty_documents=place.empty_documents + self._without_tokens,
            source_bytes=place.source_bytes,
        )
        self._manifest.save(self._directory)
        return self._manifest

    def discard(self) -> None:
        """Remove the shards and the manifest that are not finished."""
        for writer in self._writers.values():
            writer.discard()
        self._writers.clear()
        # An interrupt can fall between the making of a file and the line that takes note of it.
        for split in SPLITS:
            name = shard_name(split, len(self._manifest.shards(split)))
            (self._directory / (name + PARTIAL_SUFFIX)).unlink(missing_ok=True)
        (self._directory / (MANIFEST_NAME + PARTIAL_SUFFIX)).unlink(missing_ok=True)
