"""Trains a SentencePiece tokenizer on a bounded, seeded sample of a source."""

import hashlib
import heapq
import io
import re
from collections.abc import Iterable

import numpy as np
import sentencepiece

from birdie_jax.errors import DataError
from birdie_jax.text.tokenizer import Tokenizer

TOKENIZER_TYPES = ("unigram", "bpe")

_PASSAGE_CHARACTERS = 2048
# SentencePiece divides the work by thread, so the model depends on the number of threads: keep it fixed.
_THREADS = 4
# Line ends, tabs and indentation are always single pieces, for code and verse; U+2581 is a space.
_LAYOUT_PIECES = ("\n", "\n\n", "\t", *("\u2581" * spaces for spaces in range(2, 17)))


def train_tokenizer(
    documents: Iterable[str],
    vocab_size: int,
    sample_bytes: int = 4 << 20,
    *,
    seed: int = 0,
    tokenizer_type: str = "unigram",
) -> Tokenizer:
    """Train a tokenizer of exactly `vocab_size` pieces that round-trips every text exactly.

    The sample consists of passages of up to 2,048 characters, drawn evenly from all documents. Memory is
    bounded by `sample_bytes` and the largest document. The same documents and arguments give the same
    model, byte for byte.

    Args:
        documents: the texts; iterated to the end, once.
        vocab_size: the number of pieces of the model; 256 of them are single bytes.
        sample_bytes: the maximum number of UTF-8 bytes of text to train on.
        seed: the seed of the sample.
        tokenizer_type: `unigram`, or `bpe`, which encodes about five times slower.

    Raises:
        DataError: there is no text, or too little or too varied text for `vocab_size`; gives the size of
            the text and the allowed sizes.
        ValueError: `tokenizer_type` or `sample_bytes` is not allowed.
    """
    if tokenizer_type not in TOKENIZER_TYPES:
        raise ValueError(f"tokenizer_type is {tokenizer_type!r}; allowed: {', '.join(TOKENIZER_TYPES)}")
    if sample_bytes < 1:
        raise ValueError(f"sample_bytes is {sample_bytes}; allowed: at least 1")
    return train_on_sample(sample_passages(documents, sample_bytes, seed), vocab_size, tokenizer_type)


def train_on_sample(sample: list[str], vocab_size: int, tokenizer_type: str) -> Tokenizer:
    """Train a tokenizer of exactly `vocab_size` pieces on passages of up to 2,048 characters.

    Raises:
        DataError: as for `train_tokenizer`.
    """
    size = sum(len(passage.encode()) for passage in sample)
    if not sample:
        raise DataError("a tokenizer cannot be trained: the source holds no text")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            model_type=tokenizer_type,
            vocab_size=vocab_size,
            num_threads=_THREADS,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            user_defined_symbols=list(_LAYOUT_PIECES),
            byte_fallback=True,
            character_coverage=0.9995,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            max_sentence_length=4 * _PASSAGE_CHARACTERS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _size_error(str(error), vocab_size, size) from error
    return Tokenizer.from_bytes(model.getvalue(), "the trained tokenizer")


def sample_passages(documents: Iterable[str], sample_bytes: int, seed: int) -> list[str]:
    """Draw passages of up to 2,048 characters evenly from all documents, up to `sample_bytes` of UTF-8.

    Every passage draws a random priority. The passages with the lowest priorities are kept, in the order of
    the documents. All passages are kept if they fit.
    """
    generator = np.random.default_rng(seed)
    kept: list[
        tuple[float, int, str]
    ] = []  # a heap: the passage with the highest priority is dropped first
    kept_bytes = 0
    threshold = 1.0
    order = 0
    for text in documents:
        priorities = generator.random(-(-len(text) // _PASSAGE_CHARACTERS))
        for index in np.flatnonzero(priorities < threshold):
            start = int(index) * _PASSAGE_CHARACTERS
            passage = text[start : start + _PASSAGE_CHARACTERS]
            heapq.heappush(kept, (-float(priorities[index]), order + int(index), passage))
            kept_bytes += len(passage.encode())
            while kept_bytes > sample_bytes and len(kept) > 1:
                priority, _, dropped = heapq.heappop(kept)
                kept_bytes -= len(dropped.encode())
                # A later passage with a higher priority than a dropped one would be dropped too.
                threshold = min(threshold, -priority)
        order += len(priorities)
    return [passage for _, _, passage in sorted(kept, key=lambda entry: entry[1])]


def sample_by_hash(documents: Iterable[str], sample_bytes: int, seed: int) -> list[str]:
    """Draw passages of up to 2,048 characters evenly from all documents, up to `sample_bytes` of UTF-8.

    The passages with the lowest hashes are kept, each once, in the order of their hashes. So the result
    does not depend on the order of the documents, and sampling from several samples gives the sample of all
    their documents.
    """
    # A heap: the passage with the highest hash is dropped first.
    kept: list[tuple[int, str]] = []
    known: set[int] = set()
    kept_bytes = 0
    threshold = 1 << 64
    key = seed.to_bytes(8)
    for text in documents:
        for start in range(0, len(text), _PASSAGE_CHARACTERS):
            passage = text[start : start + _PASSAGE_CHARACTERS]
            contents = passage.encode()
            place = int.from_bytes(hashlib.blake2b(contents, digest_size=8, key=key).digest())
            if place >= threshold or place in known:
                continue
            heapq.heappush(kept, (-place, passage))
            known.add(place)
            kept_bytes += len(contents)
            while kept_bytes > sample_bytes and len(kept) > 1:
                dropped, passage = heapq.heappop(kept)
                known.discard(-dropped)
                kept_bytes -= len(passage.encode())
                threshold = -dropped
    return [passage for _, passage in sorted(kept, reverse=True)]


def _size_error(message: str, vocab_size: int, sample_size: int) -> DataError:
    """Return the error to raise if SentencePiece rejects a vocabulary size."""
    text = f"a tokenizer of vocab_size={vocab_size} cannot be trained on {sample_size} bytes of text: "
    if max_pieces := re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", message):
        return DataError(
            f"{text}it gives at most {max_pieces[1]} pieces; give more text or lower vocab_size"
        )
    if min_pieces := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return DataError(
            f"{text}its characters, the 256 bytes and the layout alone need {min_pieces[1]}; raise it"
        )
    return DataError(f"{text}{message}")
