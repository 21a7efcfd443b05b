"""Prepares documents as a folder of token shards: in parallel, in bounded memory, resumable at any time.

One process reads the source in order, a pool tokenizes, and the results are written in the order of the
source, so the shards do not depend on the number of workers. When the training shard reaches
`shard_tokens` tokens, the shards of both splits are closed after the current document. The new manifest
names them and the next document. A killed preparation resumes from the manifest and produces the same
bytes, because a document's split and records depend only on the document.
"""

import fcntl
import numbers
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from birdie_jax.errors import DataError, OvertakenError, one_line, shown
from birdie_jax.storage import exists, is_remote, make_folders, remove
from birdie_jax.text.array_record_file import check_utf8
from birdie_jax.text.hub import is_hub
from birdie_jax.text.locations import Location, locate
from birdie_jax.text.manifest import (
    MANIFEST_NAME,
    SPLIT_RULE,
    TOKENIZER_NAME,
    PreparationSettings,
    TokenizerIdentity,
    load_manifest,
)
from birdie_jax.text.manifest_guard import ManifestGuard
from birdie_jax.text.manifest_start import check_folder, check_splits, resume_manifest, start_manifest
from birdie_jax.text.preparation_plan import PLAN_NAME, check_plan, load_plan, make_plan
from birdie_jax.text.progress import PreparationProgress
from birdie_jax.text.saving import os_errors_as_data_errors, save_file
from birdie_jax.text.shard_pipeline import write_shards
from birdie_jax.text.sources import Source, open_source
from birdie_jax.text.token_record import choose_dtype
from birdie_jax.text.token_shards import load_tokenizer
from birdie_jax.text.tokenizer import Tokenizer
from birdie_jax.text.tokenizer_training import TOKENIZER_TYPES, train_tokenizer
from birdie_jax.text.units import run_locally

# The upper limits are far above any practical value, and reject values that would fail only after hours.
_COUNTS = {
    "vocab_size": (1, 1 << 20),
    "sample_bytes": (1, 1 << 34),
    "record_tokens": (1, 1 << 26),
    "shard_tokens": (1, 1 << 34),
    "seed": (0, 2**63 - 1),
    "workers": (0, 1024),
    "units": (0, 1 << 20),
}

_MAX_PATH = 4096

# In a bucket: how often to poll the manifest of another process, and how long it may stay unchanged.
_POLL_SECONDS = 5.0
_STANDSTILL_SECONDS = 3600.0


def prepare(
    source_spec: str,
    output: str | Location,
    *,
    tokenizer_model: str = "",
    tokenizer_type: str = "unigram",
    vocab_size: int = 4096,
    sample_bytes: int = 4 << 20,
    text_field: str = "text",
    record_tokens: int = 32768,
    shard_tokens: int = 1 << 26,
    validation_fraction: float = 0.01,
    workers: int | None = None,
    seed: int = 0,
    progress: bool = True,
    document_separator: str = "",
    document_filter: str = "",
    deduplicate: bool = False,
    units: int = 0,
    run_units: bool = True,
) -> Location:
    """Prepare a folder of token shards, or resume a stopped preparation; return the folder.

    If another process is preparing the same folder, this one prints a line to standard error and waits
    until the other ends. It then prepares what is missing, if anything.

    Args:
        source_spec: see `open_source`.
        output: the folder, created if needed. For a bucket, shards are written locally and uploaded.
        tokenizer_model: the path of a tokenizer model to use; empty to train one on the source.
        tokenizer_type: the kind of tokenizer to train, `unigram` or `bpe`.
        vocab_size: the number of pieces to train.
        sample_bytes: the bytes of text to train on.
        text_field: the field of JSON, JSON lines and Parquet that contains the text.
        record_tokens: a longer document becomes several records of near-equal size.
        shard_tokens: a training shard is closed when it has this many tokens; a stopped preparation loses
            no more than this.
        validation_fraction: the expected fraction of documents for validation, more than 0 and less than 1.
        workers: the number of tokenizing processes; 0 to tokenize in this one; None for one per CPU.
        seed: the seed of the tokenizer's sample.
        progress: whether to show progress on standard error.
        document_separator: see `open_source`.
        document_filter: see `open_source`.
        deduplicate: whether to leave out repeated texts. This uses about 100 bytes of memory per document,
            and a resumed preparation reads the earlier documents again.
        units: the number of units to divide the source into (`units.py`); 0 for none.
        run_units: whether to run the units here; if false, only the plan is written.

    Raises:
        DataError: an argument, the source, the tokenizer or the folder cannot be used, or the disk is
            full; names the field or the file and record. Finished shards are kept.
    """
    _check("output", output, 0 < len(os.fspath(output)) <= _MAX_PATH, "the path of a folder")
    _check("text_field", text_field, text_field != "", "the name of a field")
    _check_counts(
        vocab_size=vocab_size,
        sample_bytes=sample_bytes,
        record_tokens=record_tokens,
        shard_tokens=shard_tokens,
        seed=seed,
        **({} if workers is None else {"workers": workers}),
    )
    if units:
        _check_counts(units=units)
        _check("deduplicate", deduplicate, not deduplicate, "false with units: no unit sees all texts")
    _check("validation_fraction", validation_fraction, 0 < validation_fraction < 1, "between 0 and 1")
    _check(
        "tokenizer_type", tokenizer_type, tokenizer_type in TOKENIZER_TYPES, " or ".join(TOKENIZER_TYPES)
    )
    directory = locate(output)
    check_utf8(directory)
    rules = {
        "document_separator": document_separator,
        "document_filter": document_filter,
        "deduplicate": deduplicate,
    }
    source = open_source(source_spec, text_field, **rules, commit=_find_commit(directory, source_spec))
    given = Tokenizer(tokenizer_model) if tokenizer_model else None
    settings = PreparationSettings(
        source=source_spec,
        text_field=text_field,
        tokenizer_model=given.sha256 if given else "",
        tokenizer_type="" if given else tokenizer_type,
        vocab_size=0 if given else vocab_size,
        sample_bytes=0 if given else sample_bytes,
        record_tokens=record_tokens,
        shard_tokens=shard_tokens,
        validation_fraction=float(validation_fraction),
        split_rule=SPLIT_RULE,
        seed=0 if given else seed,
        **rules,
        units=units,
    )
    processes = _available_processors() if workers is None else workers
    while True:
        try:
            with lock_folder(directory):
                if (commit := _find_commit(directory, source_spec)) not in ("", source.commit):
                    source = open_source(source_spec, text_field, **rules, commit=commit)
                if units:
                    _plan(source, directory, settings, given)
                    if run_units:
                        run_locally(directory, processes, progress=progress)
                    return directory
                _prepare(source, directory, settings, given, workers=processes, progress=progress)
        except OvertakenError:
            _wait_for_other(directory, settings)
        else:
            return directory


def _plan(
    source: Source, directory: Location, settings: PreparationSettings, given: Tokenizer | None
) -> None:
    """Write the plan of a folder and the given tokenizer, unless they exist.

    Raises:
        DataError: the folder contains another preparation, or the source cannot be used.
    """
    if exists(directory / MANIFEST_NAME):
        if resume_manifest(directory, settings, source):
            return
        remove(directory / MANIFEST_NAME)
    plan = make_plan(source, settings)
    is_planned = exists(directory / PLAN_NAME)
    if is_planned:
        # Before the tokenizer is written: the units of another plan would use it.
        check_plan(directory, plan)
    else:
        check_folder(directory, settings)
        check_splits(source, settings.validation_fraction)
    if given and not exists(directory / TOKENIZER_NAME):
        save_file(directory / TOKENIZER_NAME, given.model_bytes)
    if not is_planned:
        save_file(directory / PLAN_NAME, plan.to_json())


def _prepare(
    source: Source,
    directory: Location,
    settings: PreparationSettings,
    given: Tokenizer | None,
    *,
    workers: int,
    progress: bool,
) -> None:
    """Prepare a folder, or resume it; no other process must be preparing it.

    Raises:
        OvertakenError: in a bucket, another process has started to prepare the folder.
        DataError: as for `prepare`.
    """
    guard = ManifestGuard(directory)
    resumed = resume_manifest(directory, settings, source)
    manifest, record = resumed or start_manifest(directory, settings, source, guard)
    if manifest.complete:
        return
    if resumed:
        guard.take_over(manifest)
    with PreparationProgress(source.total_bytes, enabled=progress) as progress_shown:
        if manifest.tokenizer is None:
            tokenizer = given or _train_tokenizer(source, settings, progress_shown)
            guard.write(directory / TOKENIZER_NAME, tokenizer.model_bytes)
            identity = TokenizerIdentity(tokenizer.sha256, tokenizer.num_pieces, tokenizer.vocab_size)
            manifest = replace(manifest, tokenizer=identity, dtype=choose_dtype(tokenizer.vocab_size))
            guard.save(manifest)
        else:
            tokenizer = load_tokenizer(directory)
        write_shards(
            source,
            directory,
            manifest,
            tokenizer,
            record,
            guard=guard,
            workers=workers,
            progress=progress_shown,
        )


def _find_commit(directory: Location, source_spec: str) -> str:
    """Return the commit of the hub's data set that an earlier preparation reads; empty if there is none."""
    begun = None
    if is_hub(source_spec) and exists(directory / MANIFEST_NAME):
        begun = load_manifest(directory)
    elif is_hub(source_spec) and exists(directory / PLAN_NAME):
        begun = load_plan(directory)
    return begun.source_commit if begun and begun.settings.source == source_spec else ""


def _available_processors() -> int:
    # A batch system or container may allow fewer CPUs than the machine has; only Linux reports this.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check(name: str, value: object, allowed: bool, rule: str) -> None:
    if not allowed:
        raise DataError(f"{name} is {shown(value)}; allowed: {rule}")


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        lowest, highest = _COUNTS[name]
        allowed = isinstance(count, numbers.Integral) and lowest <= count <= highest
        _check(name, count, allowed, f"{lowest} to {highest:,}")


def _wait_for_other(directory: Location, settings: PreparationSettings) -> None:
    """In a bucket, wait until the other process completes the folder or turns out to have other settings.

    Raises:
        OvertakenError: the other process has written nothing for `_STANDSTILL_SECONDS`.
        DataError: the store does not answer.
    """
    _say_waiting(directory)
    before, since = None, time.monotonic()
    while True:
        now = load_manifest(directory)
        if now.complete or (now.tokenizer is not None and now.settings != settings):
            return
        if now != before:
            before, since = now, time.monotonic()
        if time.monotonic() - since > _STANDSTILL_SECONDS:
            raise OvertakenError(
                f"{directory}: the other prepare_data that is writing there has finished no shard for "
                f"{_STANDSTILL_SECONDS / 60:.0f} minutes; the same command takes its place"
            )
        time.sleep(_POLL_SECONDS)


def _say_waiting(directory: Location) -> None:
    message = f"{one_line(str(directory))}: another prepare_data is writing there; waiting until it ends"
    print(message, file=sys.stderr, flush=True)


@contextmanager
def lock_folder(directory: Location) -> Iterator[None]:
    """Create and lock a folder; wait for another process that holds the lock.

    The system releases the lock of a killed process. A bucket has neither folders nor locks:
    `ManifestGuard` guards the manifest instead.
    """
    if is_remote(directory):
        with os_errors_as_data_errors(f"{directory}: the output folder cannot be used"):
            yield
        return
    directory = Path(directory)
    try:
        make_folders(directory)
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise DataError(f"{directory}: the output folder cannot be made: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{directory}: the output folder cannot be made: {error}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say_waiting(directory)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with os_errors_as_data_errors(f"{directory}: the output folder cannot be used"):
            yield
    finally:
        os.close(descriptor)


def _train_tokenizer(
    source: Source, settings: PreparationSettings, progress: PreparationProgress
) -> Tokenizer:
    progress.start_stage("tokenizer")
    return train_tokenizer(
        _iterate_texts(source, progress),
        settings.vocab_size,
        settings.sample_bytes,
        seed=settings.seed,
        tokenizer_type=settings.tokenizer_type,
    )


def _iterate_texts(source: Source, progress: PreparationProgress) -> Iterator[str]:
    """Yield the source's texts and show the progress."""
    documents = source.documents()
    number = 0
    for number, document in enumerate(documents, 1):
        if number % 64 == 0:
            progress.update(documents.bytes_read, number)
        yield document.text
    progress.update(documents.bytes_read, number)
