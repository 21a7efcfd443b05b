"""The units of a plan: each can run on any machine, and the last step combines their results.

plan.json               the plan
sample-00003.json       unit 3's part of the tokenizer's sample, if a tokenizer is trained
tokenizer.model
train-u00003-00000.arrayrecord, validation-u00003-00000.arrayrecord, ...
unit-00003.json         the list of unit 3's shards, written after them

If there is no tokenizer yet, a unit writes its sample, else its shards. It uses its own file names and
publishes only complete files, so a unit that is killed or runs twice wastes only its own time.
`advance` trains the tokenizer when all samples exist, and writes the manifest when all shards exist.
"""

import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from birdie_jax.errors import DataError
from birdie_jax.storage import (
    exists,
    is_remote,
    list_names,
    parse_typed,
    publish,
    read_bytes,
    remove,
    to_plain,
    upload,
)
from birdie_jax.storage.json_text import parse_json
from birdie_jax.text.locations import Location
from birdie_jax.text.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    SPLITS,
    TOKENIZER_NAME,
    Manifest,
    Shard,
    SourceCursor,
    TokenizerIdentity,
    load_manifest,
)
from birdie_jax.text.preparation_plan import PLAN_NAME, Plan, check_unit, load_plan
from birdie_jax.text.saving import os_errors_as_data_errors, save_file
from birdie_jax.text.shard_pipeline import read_blocks
from birdie_jax.text.shard_writer import ShardWriter, shard_name
from birdie_jax.text.source_files import SourceFile
from birdie_jax.text.source_record import SourceRecord
from birdie_jax.text.sources import DocumentStream, LeftOut, Source
from birdie_jax.text.token_record import choose_dtype
from birdie_jax.text.token_shards import check_sizes
from birdie_jax.text.tokenization import Tokenization, TokenizedDocument, leave_to_parent
from birdie_jax.text.tokenizer import Tokenizer
from birdie_jax.text.tokenizer_training import sample_by_hash, train_on_sample

_SCRATCH = re.compile(r"(?:unit|sample)-\d{5,}(?:\.json|-\w+)")


@dataclass(frozen=True)
class UnitSample:
    """A unit's part of the tokenizer's sample.

    Attributes:
        plan: `Plan.sha256` of its plan.
        passages: see `sample_by_hash`.
    """

    plan: str
    passages: tuple[str, ...]


@dataclass(frozen=True)
class UnitRecord:
    """The result of a unit.

    Attributes:
        plan: `Plan.sha256` of its plan.
        tokenizer: the SHA-256 of the tokenizer.
        train: its training shards, in order.
        validation: its validation shards, in order.
        empty_documents: see `LeftOut`.
        filtered_documents: see `LeftOut`.
        duplicate_documents: see `LeftOut`.
        files: the source files that the unit read, in order.
    """

    plan: str
    tokenizer: str
    train: tuple[Shard, ...]
    validation: tuple[Shard, ...]
    empty_documents: int
    filtered_documents: int
    duplicate_documents: int
    files: tuple[SourceFile, ...]


def count_units(directory: Location) -> int:
    """Return the number of units of a plan; 0 if the folder is complete.

    Raises:
        DataError: there is no plan, or the folder was prepared without units.
    """
    return 0 if _is_complete(directory) else len(load_plan(directory).ends)


def run_unit(directory: Location, number: int) -> None:
    """Write the sample of a unit or, if there is a tokenizer, its shards; do nothing if they exist.

    Raises:
        DataError: there is no plan or no such unit, the folder was prepared without units, its files
            cannot be read or have changed, or a write to the disk or the store fails.
    """
    if _is_complete(directory):
        check_unit(number, load_manifest(directory).settings.units)
        return
    plan = load_plan(directory)
    source = plan.open_unit(number)
    tokenizer = _load_tokenizer(directory, plan)
    if tokenizer is None and _load_sample(directory, plan, number) is None:
        _write_sample(directory, plan, source, number)
    elif tokenizer is not None and _load_record(directory, plan, tokenizer, number) is None:
        _write_unit(directory, plan, source, tokenizer, number)


def advance(directory: Location) -> bool:
    """Train the tokenizer on the samples of all units, or write the manifest if all shards exist.

    Returns:
        Whether the folder is complete; if not, run every unit again to write its shards.

    Raises:
        DataError: some units have not run (the message names them), the tokenizer cannot be trained, a
            split has no document, or the folder was prepared without units.
    """
    if not _is_complete(directory):
        plan = load_plan(directory)
        tokenizer = _load_tokenizer(directory, plan)
        if tokenizer is None:
            _train(directory, plan)
            return False
        _finish(directory, plan, tokenizer)
    for name in list_names(directory):
        if name == PLAN_NAME or _SCRATCH.fullmatch(name):
            _remove(directory / name)
    return True


def run_locally(directory: Location, workers: int, *, progress: bool) -> None:
    """Run all units of a plan in `workers` processes, or in this one if 0, and combine their results.

    Raises:
        DataError: as for `run_unit` and `advance`, or a process died.
    """
    is_complete = False
    while not is_complete:
        count = count_units(directory)
        for done, _ in enumerate(_run_all(directory, count, workers), 1):
            if progress:
                print(f"units: {done} of {count} done", file=sys.stderr, flush=True)
        is_complete = advance(directory)


def _run_all(directory: Location, count: int, workers: int) -> Iterator[None]:
    if workers == 0:
        yield from (run_unit(directory, number) for number in range(count))
        return
    # Not forked: the caller may have threads.
    executor = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=leave_to_parent
    )
    try:
        for future in as_completed(
            [executor.submit(run_unit, directory, number) for number in range(count)]
        ):
            yield future.result()
    except BaseException as error:
        # A unit may take hours. Python 3.14 has `terminate_workers` for this.
        for process in list(executor._processes.values()):
            process.terminate()
        if not isinstance(error, BrokenProcessPool):
            raise
        raise DataError(
            f"a process died ({error}), as happens when memory runs out; finished units are kept: run the "
            "same prepare_data again, with fewer workers"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def _write_sample(directory: Location, plan: Plan, source: Source, number: int) -> None:
    texts = (document.text for document in source.documents())
    passages = sample_by_hash(texts, plan.settings.sample_bytes, plan.settings.seed)
    _save(directory / f"sample-{number:05d}.json", UnitSample(plan.sha256, tuple(passages)))


def _train(directory: Location, plan: Plan) -> None:
    samples = [_load_sample(directory, plan, number) for number in range(len(plan.ends))]
    _check_all(directory, samples, "samples")
    settings = plan.settings
    passages = (passage for sample in samples if sample for passage in sample.passages)
    tokenizer = train_on_sample(
        sample_by_hash(passages, settings.sample_bytes, settings.seed),
        settings.vocab_size,
        settings.tokenizer_type,
    )
    save_file(directory / TOKENIZER_NAME, tokenizer.model_bytes)


def _write_unit(directory: Location, plan: Plan, source: Source, tokenizer: Tokenizer, number: int) -> None:
    settings = plan.settings
    dtype = choose_dtype(tokenizer.vocab_size)
    tokenization = Tokenization(tokenizer, dtype, settings.record_tokens, settings.validation_fraction)
    files: list[SourceFile] = []
    documents = source.documents(0, 0, files)
    finished: dict[str, list[Shard]] = {split: [] for split in SPLITS}
    without_tokens = 0
    place = None if is_remote(directory) else directory
    what = f"{directory}: unit {number} cannot be written"
    with (
        os_errors_as_data_errors(what),
        tempfile.TemporaryDirectory(prefix=f"unit-{number:05d}-", dir=place) as staging,
    ):
        writers: dict[str, ShardWriter] = {}

        def close_all() -> None:
            for split in [split for split in SPLITS if split in writers]:
                shard = writers.pop(split).close()
                _publish(Path(staging) / shard.name, directory / shard.name)
                finished[split].append(shard)

        try:
            for document in _tokenize(documents, tokenization):
                if not document.records:
                    without_tokens += 1
                    continue
                if document.split not in writers:
                    name = shard_name(document.split, len(finished[document.split]), number)
                    writers[document.split] = ShardWriter(Path(staging) / name)
                for record in document.records:
                    writers[document.split].add(record.payload, record.tokens, record.ends_document)
                if "train" in writers and writers["train"].tokens >= settings.shard_tokens:
                    close_all()
            close_all()
        finally:
            for writer in writers.values():
                writer.discard()
    left_out = LeftOut(documents.left_out[0] + without_tokens, *documents.left_out[1:])
    record = UnitRecord(
        plan=plan.sha256,
        tokenizer=tokenizer.sha256,
        **{split: tuple(shards) for split, shards in finished.items()},
        **left_out._asdict(),
        files=tuple(files),
    )
    _save(directory / f"unit-{number:05d}.json", record)


def _tokenize(documents: DocumentStream, tokenization: Tokenization) -> Iterator[TokenizedDocument]:
    for block in read_blocks(documents):
        yield from tokenization(block.texts)


def _finish(directory: Location, plan: Plan, tokenizer: Tokenizer) -> None:
    found = [_load_record(directory, plan, tokenizer, number) for number in range(len(plan.ends))]
    _check_all(directory, found, "shards")
    records = [record for record in found if record]
    shards: dict[str, Any] = {
        split: tuple(shard for each in records for shard in getattr(each, split)) for split in SPLITS
    }
    for split, of_split in shards.items():
        if not of_split:
            raise DataError(
                f"{directory}: no document falls into {split}; raise or lower validation_fraction, or give "
                "another tokenizer"
            )
    check_sizes(directory, (*shards["train"], *shards["validation"]))
    left_out: dict[str, Any] = {
        name: sum(getattr(each, name) for each in records) for name in LeftOut._fields
    }
    source_record = SourceRecord(directory, [file for each in records for file in each.files])
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        complete=True,
        settings=plan.settings,
        tokenizer=TokenizerIdentity(tokenizer.sha256, tokenizer.num_pieces, tokenizer.vocab_size),
        dtype=choose_dtype(tokenizer.vocab_size),
        **shards,
        **left_out,
        source_bytes=sum(file.bytes for file in plan.files),
        source_sha256=source_record.save(len(source_record.files), save_file),
        source_commit=plan.source_commit,
        cursor=SourceCursor(len(plan.files), 0),
    )
    manifest.save(directory)


def _is_complete(directory: Location) -> bool:
    if not exists(directory / MANIFEST_NAME):
        return False
    manifest = load_manifest(directory)
    if manifest.complete and not manifest.settings.units:
        raise DataError(
            f"{directory}: found a complete folder that was prepared without units; allowed: a folder of "
            "prepare_data --units=N --runner=none"
        )
    return manifest.complete


def _load_tokenizer(directory: Location, plan: Plan) -> Tokenizer | None:
    path = directory / TOKENIZER_NAME
    tokenizer = Tokenizer(path) if exists(path) else None
    if plan.settings.tokenizer_model not in ("", tokenizer and tokenizer.sha256):
        raise DataError(
            f"{path}: is not the tokenizer that {PLAN_NAME} names; plan into another output folder"
        )
    return tokenizer


def _load_sample(directory: Location, plan: Plan, number: int) -> UnitSample | None:
    path = directory / f"sample-{number:05d}.json"
    found = _load_json(path)
    sample = None if found is None else parse_typed(UnitSample, found, str(path), DataError)
    return sample if sample and sample.plan == plan.sha256 else None


def _load_record(directory: Location, plan: Plan, tokenizer: Tokenizer, number: int) -> UnitRecord | None:
    """Return the record of a unit; None if the unit has not run with this plan and tokenizer."""
    path = directory / f"unit-{number:05d}.json"
    found = _load_json(path)
    if found is None:
        return None
    record = parse_typed(UnitRecord, found, str(path), DataError)
    return record if (record.plan, record.tokenizer) == (plan.sha256, tokenizer.sha256) else None


def _load_json(path: Location) -> Any:
    try:
        return parse_json(read_bytes(path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataError(f"{path}: is not readable JSON: {error}; remove it") from error


def _save(path: Location, value: Any) -> None:
    """Write a file atomically, even if the same unit runs twice at the same time."""
    contents = (json.dumps(to_plain(value)) + "\n").encode()
    if is_remote(path):
        save_file(path, contents)
        return
    with os_errors_as_data_errors(f"{path}: cannot be written"):
        with tempfile.NamedTemporaryFile(prefix=f"{path.stem}-", dir=path.parent, delete=False) as file:
            file.write(contents)
        os.chmod(file.name, 0o644)
        publish(file.name, path)


def _publish(file: Path, path: Location) -> None:
    if is_remote(path):
        upload(file, path)
        file.unlink()
    else:
        publish(file, path)


def _check_all(directory: Location, found: list[Any], what: str) -> None:
    missing = [str(number) for number, each in enumerate(found) if each is None]
    if missing:
        numbers = ", ".join(missing[:20]) + (", ..." if len(missing) > 20 else "")
        raise DataError(
            f"{directory}: {len(missing)} of {len(found)} units have not written their {what}: {numbers}; "
            "run each with prepare_data --unit=NUMBER"
        )


def _remove(path: Location) -> None:
    """Remove a file, or the folder that a killed unit left behind."""
    if not is_remote(path) and Path(path).is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        remove(path)
