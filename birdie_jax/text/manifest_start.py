"""The manifest at the start of a preparation: a new one, or the one to resume from."""

import sys
from dataclasses import asdict

from birdie_jax.errors import DataError, one_line, shown
from birdie_jax.storage import exists, is_remote, list_names, remove
from birdie_jax.text.array_record_file import check_records
from birdie_jax.text.locations import Location
from birdie_jax.text.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    SPLITS,
    TOKENIZER_NAME,
    Manifest,
    PreparationSettings,
    Shard,
    SourceCursor,
    load_manifest,
)
from birdie_jax.text.manifest_guard import ManifestGuard
from birdie_jax.text.preparation_plan import PLAN_NAME
from birdie_jax.text.shard_writer import SHARD_FILE
from birdie_jax.text.source_record import (
    SOURCE_RECORD_NAME,
    SourceRecord,
    hash_contents,
    load_source_record,
)
from birdie_jax.text.sources import LeftOut, Source, check_source
from birdie_jax.text.token_shards import check_sizes
from birdie_jax.text.tokenization import split_hash
from birdie_jax.text.tokenizer import Tokenizer

# Reading this many bytes takes seconds.
_LONG_BYTES = 1 << 30


def resume_manifest(
    directory: Location, settings: PreparationSettings, source: Source
) -> tuple[Manifest, SourceRecord] | None:
    """Return the state of an earlier preparation with the same settings, after removing unfinished files.

    On a disk, the finished shards of an incomplete preparation are read and checked. Returns None if there
    was no earlier preparation, or it did not get as far as a tokenizer; then any settings are allowed.

    Raises:
        DataError: the folder contains another preparation, or the source has changed since; names the
            setting or the file.
    """
    path = directory / MANIFEST_NAME
    if not exists(path):
        return None
    manifest = load_manifest(directory)
    if manifest.tokenizer is None:
        return None
    there, here = asdict(manifest.settings), asdict(settings)
    for name, value in there.items():
        if value != here[name]:
            raise DataError(
                f"{path}: the folder holds another preparation: its {name} is {shown(value)}, here it is "
                f"{shown(here[name])}; use the same settings or another output folder"
            )
    if manifest.format_version != FORMAT_VERSION:
        raise DataError(
            f"{path}: was written by an earlier prepare_data, which kept no hashes of the source; you can "
            "train on complete data, but to prepare the source now use another output folder"
        )
    record = load_source_record(directory, manifest.cursor.files_begun)
    if hash_contents(record.files) != manifest.source_sha256:
        raise DataError(
            f"{directory / SOURCE_RECORD_NAME}: does not belong to {path}; use another output folder"
        )
    check_source(source, record.files, whole=manifest.complete)
    finished = {shard.name: shard for split in SPLITS for shard in manifest.shards(split)}
    check_sizes(directory, tuple(finished.values()))
    if not (manifest.complete or is_remote(directory)):
        _check_finished(directory, tuple(finished.values()))
    # In a bucket, the owner of the folder removes them (`ManifestGuard.take_over`).
    for name in [] if is_remote(directory) else list_names(directory):
        if SHARD_FILE.fullmatch(name) and name not in finished:
            remove(directory / name)
    return manifest, record


def _check_finished(directory: Location, shards: tuple[Shard, ...]) -> None:
    if (size := sum(shard.bytes for shard in shards)) >= _LONG_BYTES:
        message = f"checking {len(shards)} finished shards, {size / 2**30:.1f} GiB"
        print(f"{one_line(str(directory))}: {message}", file=sys.stderr, flush=True)
    for shard in shards:
        check_records(directory / shard.name, shard)


def start_manifest(
    directory: Location, settings: PreparationSettings, source: Source, guard: ManifestGuard
) -> tuple[Manifest, SourceRecord]:
    """Check that the source fills both splits; save and return the state of a new preparation."""
    if not exists(directory / MANIFEST_NAME):
        check_folder(directory, settings)
    check_splits(source, settings.validation_fraction)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        complete=False,
        settings=settings,
        tokenizer=None,
        dtype="",
        train=(),
        validation=(),
        **LeftOut()._asdict(),
        source_bytes=0,
        source_sha256=hash_contents(()),
        source_commit=source.commit,
        cursor=SourceCursor(0, 0),
    )
    guard.save(manifest)
    record = SourceRecord(directory)
    record.save(0, guard.write)
    return manifest, record


def check_folder(directory: Location, settings: PreparationSettings) -> None:
    """Check that a folder without a manifest contains no files of another preparation.

    Raises:
        DataError: it contains such a file; names the file.
    """
    for name in list_names(directory):
        file = directory / name
        is_given = name == TOKENIZER_NAME and Tokenizer(file).sha256 == settings.tokenizer_model
        if (name in (TOKENIZER_NAME, PLAN_NAME) and not is_given) or SHARD_FILE.fullmatch(name):
            raise DataError(
                f"{file}: exists without a {MANIFEST_NAME}; use another output folder, or remove it"
            )


def check_splits(source: Source, validation_fraction: float) -> None:
    """Read documents until both splits have one.

    Raises:
        DataError: the source has no documents, or all of them fall into one split; gives the number.
    """
    documents = source.documents()
    lowest, highest, count = 1.0, 0.0, 0
    for document in documents:
        place = split_hash(document.text)
        lowest, highest, count = min(lowest, place), max(highest, place), count + 1
        if lowest < validation_fraction <= highest:
            return
    if count == 0:
        left_out = documents.left_out
        excluded = left_out.filtered_documents
        filtered = f", {excluded} left out by the filter" if excluded else ""
        raise DataError(
            f"{source.spec}: the source holds no text ({left_out.empty_documents} empty documents "
            f"in {len(source.files)} files{filtered})"
        )
    if lowest == highest:
        raise DataError(
            f"{source.spec}: holds {count} document(s), all alike; at least 2 different ones are needed, "
            "one for each of train and validation"
        )
    full = "train" if validation_fraction <= lowest else "validation"
    raise DataError(
        f"{source.spec}: all {count} documents fall into {full} with validation_fraction="
        f"{validation_fraction:g}; with validation_fraction={_between(lowest, highest):g} both train and "
        "validation get at least one"
    )


def _between(lowest: float, highest: float) -> float:
    """Return a short number greater than `lowest` and at most `highest`, near `lowest`."""
    for digits in range(2, 16):
        rounded = round(lowest + 10.0**-digits, digits)
        if lowest < rounded <= highest and float(f"{rounded:g}") == rounded:
            return rounded
    return highest
