"""Turns documents into records in worker processes: the CPU-bound work of `prepare_data`."""

import hashlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, NamedTuple

from birdie_jax.errors import DataError
from birdie_jax.text.token_record import encode_record, split_evenly
from birdie_jax.text.tokenizer import Tokenizer

_BLOCKS_IN_FLIGHT_PER_WORKER = 3


class TokenizedRecord(NamedTuple):
    """An encoded record and its counts.

    Attributes:
        payload: the bytes of the record.
        tokens: the number of its tokens.
        ends_document: whether it is the last record of its document.
    """

    payload: bytes
    tokens: int
    ends_document: bool


class TokenizedDocument(NamedTuple):
    """A document as records.

    Attributes:
        split: the split that the document belongs to.
        records: the records; empty if the text has no tokens.
    """

    split: str
    records: tuple[TokenizedRecord, ...]


@dataclass(frozen=True)
class Tokenization:
    """A picklable function from a block of texts to their records.

    Attributes:
        tokenizer: the tokenizer.
        dtype: the stored type of a token id.
        record_tokens: the maximum number of tokens in a record.
        validation_fraction: the fraction of documents for validation.
    """

    tokenizer: Tokenizer
    dtype: str
    record_tokens: int
    validation_fraction: float

    def __call__(self, texts: list[str]) -> list[TokenizedDocument]:
        """Return each text's split and records, in order."""
        documents = []
        for text, tokens in zip(texts, self.tokenizer.encode_batch(texts), strict=True):
            parts = split_evenly(tokens, self.record_tokens) if len(tokens) else []
            records = [
                TokenizedRecord(encode_record(part, last, self.dtype), len(part), last)
                for number, part in enumerate(parts, 1)
                for last in (number == len(parts),)
            ]
            documents.append(TokenizedDocument(split_of(text, self.validation_fraction), tuple(records)))
        return documents


def split_of(text: str, validation_fraction: float) -> str:
    """Return `train` or `validation` for a document.

    The split depends only on the text. So the order and the file names of the source do not matter, and
    copies of a document are always in the same split.
    """
    return "validation" if split_hash(text) < validation_fraction else "train"


def split_hash(text: str) -> float:
    """Return the text's hash as a number in [0, 1); a value below the fraction means validation."""
    # A float represents the top 53 bits exactly, so no hash is rounded up to 1.
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / 2**53


class DocumentBlock(NamedTuple):
    """Consecutive documents that one worker tokenizes in one call.

    Attributes:
        texts: the text of each document.
        reader_states: the state of the reader after each document; opaque to this module.
    """

    texts: list[str]
    reader_states: list[Any]


def tokenize_blocks(
    blocks: Iterable[DocumentBlock], tokenization: Tokenization, workers: int
) -> Generator[tuple[DocumentBlock, list[TokenizedDocument]], None, None]:
    """Tokenize blocks in `workers` processes, or in this one if 0, and yield them in order.

    It reads ahead a bounded number of blocks.

    Raises:
        DataError: a worker died, for instance because the machine ran out of memory.
    """
    if workers == 0:
        for block in blocks:
            yield block, tokenization(block.texts)
        return
    # Not forked: the caller may have threads, and a fork would copy locks that they hold.
    executor = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_start_worker, initargs=(tokenization,)
    )
    in_flight: deque[tuple[DocumentBlock, Future]] = deque()
    try:
        for block in blocks:
            in_flight.append((block, executor.submit(_tokenize, block.texts)))
            if len(in_flight) >= workers * _BLOCKS_IN_FLIGHT_PER_WORKER:
                first, future = in_flight.popleft()
                yield first, future.result()
        while in_flight:
            first, future = in_flight.popleft()
            yield first, future.result()
    except BrokenProcessPool as error:
        raise DataError(
            f"a tokenizing process died ({error}), as happens when memory runs out; finished shards are "
            "kept: run the same prepare_data again, with fewer workers"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


_work: Callable[[list[str]], list[TokenizedDocument]]


def _start_worker(tokenization: Tokenization) -> None:
    global _work  # noqa: PLW0603  (a pool passes data to its workers only through a global)
    _work = tokenization
    leave_to_parent()


def leave_to_parent() -> None:
    """Make this worker process ignore Ctrl-C, which its parent handles, and exit with its parent."""
    # A killed parent cannot stop its workers, so they watch it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _tokenize(texts: list[str]) -> list[TokenizedDocument]:
    return _work(texts)
