"""The main loop of a preparation: reads blocks, tokenizes them, writes and commits shards in order."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from birdie_jax.errors import DataError
from birdie_jax.storage import PARTIAL_SUFFIX, is_remote
from birdie_jax.text.locations import Location
from birdie_jax.text.manifest import MANIFEST_NAME, SPLITS, Manifest, SourceCursor
from birdie_jax.text.manifest_guard import ManifestGuard
from birdie_jax.text.progress import PreparationProgress
from birdie_jax.text.shard_writer import ShardWriter, shard_name
from birdie_jax.text.source_record import SourceRecord
from birdie_jax.text.sources import DocumentStream, LeftOut, Source
from birdie_jax.text.tokenization import DocumentBlock, Tokenization, TokenizedDocument, tokenize_blocks
from birdie_jax.text.tokenizer import Tokenizer

_BLOCK_CHARACTERS = 1 << 19
_BLOCK_DOCUMENTS = 1024


class _ReaderState(NamedTuple):
    """The reader's position and counts after a document.

    Attributes:
        cursor: the document to continue with.
        left_out: the numbers of documents that were left out so far.
        source_bytes: the bytes of the source's files consumed so far, as stored.
    """

    cursor: SourceCursor
    left_out: LeftOut
    source_bytes: int


def write_shards(
    source: Source,
    directory: Location,
    manifest: Manifest,
    tokenizer: Tokenizer,
    record: SourceRecord,
    *,
    guard: ManifestGuard,
    workers: int,
    progress: PreparationProgress,
) -> Manifest:
    """Write the shards that `manifest` lacks, up to the source's end; return the completed manifest.

    `record` lists the source files of the finished shards.

    Raises:
        DataError: the source cannot be read, the disk is full, or a worker died. Finished shards are kept
            and the manifest names them; unfinished shards are removed.
    """
    if manifest.tokenizer is None:
        raise ValueError("the manifest must name the tokenizer before shards are written")
    settings = manifest.settings
    tokenization = Tokenization(
        tokenizer, manifest.dtype, settings.record_tokens, settings.validation_fraction
    )
    documents = source.documents(manifest.cursor.file, manifest.cursor.document, record.files)
    documents.left_out = LeftOut(*(getattr(manifest, name) for name in LeftOut._fields))
    output = _ShardOutput(directory, manifest, guard, record)
    progress.start_stage("token shards", manifest.source_bytes, output.tokens)
    # Closed in `finally`, so no worker outlives this call.
    results = tokenize_blocks(read_blocks(documents), tokenization, workers)
    try:
        for block, tokenized in results:
            for reader_state, document in zip(block.reader_states, tokenized, strict=True):
                output.add(document)
                if output.is_shard_full():
                    output.commit(reader_state)
            progress.update(block.reader_states[-1].source_bytes, output.documents, output.tokens)
        return output.commit(_capture(documents), complete=True)
    finally:
        results.close()
        output.discard()


def read_blocks(documents: DocumentStream) -> Iterator[DocumentBlock]:
    """Group documents into blocks for the worker processes; a long document gets its own block."""
    texts: list[str] = []
    reader_states: list[_ReaderState] = []
    characters = 0
    for document in documents:
        if texts and characters + len(document.text) > _BLOCK_CHARACTERS:
            yield DocumentBlock(texts, reader_states)
            texts, reader_states, characters = [], [], 0
        texts.append(document.text)
        reader_states.append(_capture(documents))
        characters += len(document.text)
        if len(texts) >= _BLOCK_DOCUMENTS:
            yield DocumentBlock(texts, reader_states)
            texts, reader_states, characters = [], [], 0
    if texts:
        yield DocumentBlock(texts, reader_states)


def _capture(documents: DocumentStream) -> _ReaderState:
    cursor = SourceCursor(documents.file, documents.next_document)
    return _ReaderState(cursor, documents.left_out, documents.bytes_read)


class _ShardOutput:
    """The open shards and the manifest of the finished ones.

    Attributes:
        documents: the number of documents with tokens, in finished and open shards of both splits.
        tokens: the number of tokens, in finished and open shards of both splits.
    """

    def __init__(self, directory: Location, manifest: Manifest, guard: ManifestGuard, record: SourceRecord):
        self.documents = sum(manifest.documents(split) for split in SPLITS)
        self.tokens = sum(manifest.tokens(split) for split in SPLITS)
        self._record = record
        self._directory = directory
        self._manifest = manifest
        self._guard = guard
        # Shards for a bucket are written to a local folder and uploaded when they are complete.
        self._staging = tempfile.TemporaryDirectory(prefix="shards-") if is_remote(directory) else None
        self._local = Path(self._staging.name if self._staging else directory)
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
            writer = ShardWriter(self._local / shard_name(document.split, number))
            self._writers[document.split] = writer
        for record in document.records:
            writer.add(record.payload, record.tokens, record.ends_document)
            self.tokens += record.tokens
        self.documents += 1

    def is_shard_full(self) -> bool:
        """Return whether the open training shard has at least `shard_tokens` tokens."""
        train = self._writers.get("train")
        return train is not None and train.tokens >= self._manifest.settings.shard_tokens

    def commit(self, reader_state: _ReaderState, *, complete: bool = False) -> Manifest:
        """Close the open shards of both splits, then replace the manifest.

        Args:
            reader_state: the state of the reader after the last document added.
            complete: whether that was the last document of the source.

        Returns:
            The new manifest, which names the finished shards and the next document to read.

        Raises:
            DataError: the disk is full, or the source ended and a split has no tokens.
        """
        finished = {}
        for split in SPLITS:
            finished[split] = self._manifest.shards(split)
            if split in self._writers:
                finished[split] += (self._writers[split].close(),)
                del self._writers[split]
                if self._staging:
                    self._upload(finished[split][-1].name)
            if complete and not finished[split]:
                raise DataError(
                    f"{self._directory / MANIFEST_NAME}: the tokenizer finds no token in any document "
                    f"of the {split} split; raise or lower validation_fraction, or give another tokenizer"
                )
        cursor = reader_state.cursor
        left_out = reader_state.left_out._asdict()
        left_out["empty_documents"] += self._without_tokens
        self._manifest = replace(
            self._manifest,
            **finished,
            complete=complete,
            cursor=cursor,
            source_sha256=self._record.save(cursor.files_begun, self._guard.write),
            **left_out,
            source_bytes=reader_state.source_bytes,
        )
        self._guard.save(self._manifest)
        if complete:
            self._guard.remove_shards_except({shard.name for split in SPLITS for shard in finished[split]})
        return self._manifest

    def _upload(self, name: str) -> None:
        then = "; finished shards are kept: run the same prepare_data again"
        self._guard.write(self._directory / name, self._local / name, then)
        (self._local / name).unlink()

    def discard(self) -> None:
        """Remove unfinished shards and an unfinished manifest."""
        for writer in self._writers.values():
            writer.discard()
        self._writers.clear()
        if self._staging:
            self._staging.cleanup()
            return
        # An interrupt can arrive after a file was created and before its writer was stored.
        for split in SPLITS:
            name = shard_name(split, len(self._manifest.shards(split)))
            (self._local / (name + PARTIAL_SUFFIX)).unlink(missing_ok=True)
        (self._local / (MANIFEST_NAME + PARTIAL_SUFFIX)).unlink(missing_ok=True)
