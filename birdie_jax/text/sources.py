"""Sources of documents: the standard library, local files, files in a bucket or on the hub."""

import hashlib
import json
import os
import stat
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from etils import epath

from birdie_jax.errors import DataError, shown
from birdie_jax.storage import exists, is_remote
from birdie_jax.text.documents import Document, find_reader, supported_suffixes
from birdie_jax.text.file_discovery import find_below, find_matches, find_status, keep_first_of_each
from birdie_jax.text.hub import is_hub, list_files_below, pin
from birdie_jax.text.locations import Location, locate
from birdie_jax.text.manifest import MANIFEST_NAME
from birdie_jax.text.record_rules import DocumentRules, make_rules
from birdie_jax.text.regular_files import read_regular
from birdie_jax.text.remote_files import ObjectState, find_objects, is_glob
from birdie_jax.text.source_files import (
    FileState,
    SourceFile,
    find_state,
    hash_file,
    open_unchanged,
    real_path,
)
from birdie_jax.text.source_record import SOURCE_RECORD_NAME

STANDARD_LIBRARY = "stdlib"

# Among a billion documents, two have the same digest with a probability of 1e-21.
_DIGEST_BYTES = 16

# Tests contain files that are broken on purpose, encodings are tables, the rest is not Python's own code.
_LEFT_OUT_OF_STANDARD_LIBRARY = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3", "encodings"}
)


class Source:
    """Files of documents, in an order that depends only on their names.

    Attributes:
        spec: the source as the user named it.
        rules: the rules that turn records into documents.
        files: the files, sorted by path; each is a regular file, or an object in a bucket.
        states: the state of each file when the source was opened; reading a file in another state fails.
        sizes: the bytes of each file, as stored.
        commit: the commit of the hub's data set; empty for other sources.
    """

    def __init__(
        self,
        spec: str,
        rules: DocumentRules,
        files: tuple[Location, ...],
        states: tuple[ObjectState, ...] | None = None,
        commit: str = "",
    ):
        """Record the state of each file, unless `states` gives it.

        Raises:
            DataError: a file cannot be read, or is not a regular file.
        """
        self.spec = spec
        self.rules = rules
        self.files = files
        self.commit = commit
        self.states: tuple[FileState | ObjectState, ...] = (
            tuple(find_state(Path(file)) for file in files) if states is None else states
        )
        self.sizes = tuple(state.size for state in self.states)

    @property
    def total_bytes(self) -> int:
        """The bytes of all files, as stored."""
        return sum(self.sizes)

    @property
    def sha256(self) -> str:
        """The hash of the paths and states of the files; it changes if a file is written to.

        The contents are not read. Any change of a file, even of its permissions, changes the hash.
        """
        listing = [
            [real_path(file), *state[:3]] for file, state in zip(self.files, self.states, strict=True)
        ]
        return hashlib.sha256(json.dumps(listing).encode()).hexdigest()

    def documents(
        self, start_file: int = 0, start_document: int = 0, read_files: list[SourceFile] | None = None
    ) -> "DocumentStream":
        """Return the documents in order, starting with document `start_document` of file `start_file`.

        The stream leaves out and counts documents without text, documents that the filter excludes, and
        repeated documents. To detect repeats, it reads the documents before the start again. It reads one
        file at a time, and holds one document, batch of rows, or part of a large text file in memory.

        Args:
            start_file: the number of the file of the first document.
            start_document: the number of the first document within that file.
            read_files: a list of entries of the first files. The stream appends an entry with the hash of
                the contents for each further file that it opens. None: do not hash the files.
        """
        return DocumentStream(self, start_file, start_document, read_files)


class LeftOut(NamedTuple):
    """The numbers of documents that a source leaves out. The manifest uses the same names.

    Attributes:
        empty_documents: the number of documents without text.
        filtered_documents: the number of documents that the filter excludes.
        duplicate_documents: the number of documents with a repeated text.
    """

    empty_documents: int = 0
    filtered_documents: int = 0
    duplicate_documents: int = 0


class DocumentStream:
    """One pass over a source; iterate it once.

    Attributes:
        left_out: the numbers of documents left out so far.
        bytes_read: the bytes of the source's files, as stored, up to the current position.
        file: the number of the current file.
        next_document: the number of the next document within that file.
    """

    def __init__(
        self, source: Source, start_file: int, start_document: int, read_files: list[SourceFile] | None
    ):
        self._source = source
        self._read_files = read_files
        self._seen: set[bytes] = set()
        self.file = start_file
        self.next_document = start_document
        self.left_out = LeftOut()
        self.bytes_read = sum(source.sizes[:start_file])

    def __iter__(self) -> Iterator[Document]:
        """Yield the documents.

        Raises:
            DataError: a file cannot be read, is corrupt, is not UTF-8, lacks the text field, or has changed
                since the source was opened; names the file and the line or row.
        """
        source = self._source
        if source.rules.deduplicate:
            self._note_earlier_documents()
        before = self.bytes_read
        while self.file < len(source.files):
            path, state = source.files[self.file], source.states[self.file]
            read = find_reader(path)
            if read is None:
                raise DataError(f"{path}: has no supported suffix; supported: {supported_suffixes()}")
            with open_unchanged(path, state) as file:
                if self._read_files is not None and len(self._read_files) <= self.file:
                    self._read_files.append(hash_file(path, file, state))
                for document, bytes_read, is_kept in read(file, path, source.rules, self.next_document):
                    self.next_document = document.number + 1
                    self.bytes_read = before + bytes_read
                    if self._should_yield(document.text, is_kept):
                        yield document
            before += state.size
            self.bytes_read = before
            self.file += 1
            self.next_document = 0

    def _should_yield(self, text: str, is_kept: bool) -> bool:
        """Return whether to yield a document; if not, count it."""
        empty, filtered, duplicates = self.left_out
        if not is_kept:
            self.left_out = LeftOut(empty, filtered + 1, duplicates)
        elif not text or text.isspace():
            self.left_out = LeftOut(empty + 1, filtered, duplicates)
        elif self._source.rules.deduplicate and not self._is_new(text):
            self.left_out = LeftOut(empty, filtered, duplicates + 1)
        else:
            return True
        return False

    def _is_new(self, text: str) -> bool:
        digest = hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
        is_new = digest not in self._seen
        self._seen.add(digest)
        return is_new

    def _note_earlier_documents(self) -> None:
        """Read the documents before the start, so later repeats of them are detected."""
        earlier = DocumentStream(self._source, 0, 0, None)
        documents = iter(earlier) if (self.file, self.next_document) > (0, 0) else iter(())
        for document in documents:
            if (earlier.file, document.number) >= (self.file, self.next_document):
                break
            self._is_new(document.text)


def open_source(
    spec: str,
    text_field: str = "text",
    *,
    document_separator: str = "",
    document_filter: str = "",
    deduplicate: bool = False,
    commit: str = "",
) -> Source:
    """Find the files of a source without reading them.

    Args:
        spec: `stdlib` for the sources of the Python standard library; a file; a folder, searched for all
            supported files except hidden ones; or a glob, where `**` matches any folders. Links to folders
            are followed, and a file with several paths is read once. A file, folder or glob can also be
            the URL of a bucket or of a data set of the hub, hf://datasets/ORG/NAME[@REVISION]/... Files
            that `prepare` wrote are not documents.
        text_field: the field of JSON, JSON lines and Parquet that contains the text.
        document_separator: the string that separates documents in text files; empty if a file is one.
        document_filter: conditions that select records by their fields (`record_rules.py`); empty for all.
        deduplicate: whether to leave out repeated texts.
        commit: the commit of a data set of the hub; empty for the newest of its revision.

    Raises:
        DataError: the path does not exist, the glob matches nothing, a folder or file cannot be read, or
            a file has an unsupported suffix.
    """
    if not spec:
        raise DataError(f"the input is empty; allowed: a file, a folder, a glob or {STANDARD_LIBRARY!r}")
    rules = make_rules(text_field, document_separator, document_filter, deduplicate)
    if is_remote(spec):
        return _open_remote(spec, rules, commit)
    path = Path(spec)
    if spec == STANDARD_LIBRARY:
        files = _find_standard_library()
    elif (status := find_status(path)) is None:
        files = [file for file in find_matches(spec) if not os.path.isdir(file) and not _is_record(file)]
        if not files:
            raise DataError(
                f"input {shown(spec)}: is not a file, a folder or {STANDARD_LIBRARY!r}, and matches no file"
            )
    elif stat.S_ISDIR(status.st_mode):
        files = [file for file in find_below(path) if find_reader(file) and not _is_record(file)]
        if not files:
            raise DataError(
                f"{path}: the folder holds no file of a supported suffix: {supported_suffixes()}"
            )
    else:
        files = [path]
    source = Source(spec, rules, tuple(keep_first_of_each(files)))
    _check_suffixes(source.files)
    return source


def _open_remote(spec: str, rules: DocumentRules, commit: str) -> Source:
    if is_hub(spec):
        url, commit = pin(spec, commit)
        root = epath.Path(url)
    else:
        root, url = locate(spec), spec
    found = find_objects(url)
    if root not in found and not is_glob(spec):
        found = {file: state for file, state in found.items() if find_reader(file)}
        if not found:
            raise DataError(
                f"{spec}: the folder holds no file of a supported suffix: {supported_suffixes()}"
            )
    if root not in found:
        found = {file: state for file, state in found.items() if not _is_record(file)}
    source = Source(spec, rules, tuple(found), tuple(found.values()), commit)
    _check_suffixes(source.files)
    return source


def _is_record(file: Location) -> bool:
    """Return whether `prepare` wrote the file; of its files, only this one has a supported suffix."""
    if file.name != SOURCE_RECORD_NAME:
        return False
    manifest = file.parent / MANIFEST_NAME
    return bool(list_files_below(str(manifest))) if is_hub(manifest) else exists(manifest)


def _check_suffixes(files: Iterable[Location]) -> None:
    for file in files:
        if find_reader(file) is None:
            raise DataError(f"{file}: has no supported suffix; supported: {supported_suffixes()}")


def check_source(source: Source, read_files: Sequence[SourceFile], *, whole: bool) -> None:
    """Check that the first files of a source still have the contents that were read.

    A file whose path or state has changed, for instance after a copy to another machine, is read again.

    Args:
        source: the source as it is now.
        read_files: the files that were read, in order.
        whole: whether these were all files of the source.

    Raises:
        DataError: a file differs; names the first one.
    """
    then = "restore the source, or use another output folder"
    for number, read_file in enumerate(read_files):
        if number == len(source.files):
            raise DataError(
                f"{read_file.path}: was read by this preparation, and {source.spec} no longer has it; "
                f"{then}"
            )
        file, state = source.files[number], source.states[number]
        if read_file.is_at(file, state):
            continue
        if state.size == read_file.bytes:
            with open_unchanged(file, state) as opened:
                if hash_file(file, opened, state).sha256 == read_file.sha256:
                    continue
        was = "" if read_file.path == real_path(file) else f", {read_file.path}"
        raise DataError(
            f"{file}: has changed since this preparation read it, or replaces another file: "
            f"it read a file of {read_file.bytes} bytes with SHA-256 {read_file.sha256}{was}; {then}"
        )
    if whole and len(source.files) > len(read_files):
        added = source.files[len(read_files)]
        raise DataError(f"{added}: was added to {source.spec} since this preparation ended; {then}")


def _find_standard_library() -> list[Path]:
    """Return the UTF-8 source files of the standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [
        file
        for file in find_below(folder, _LEFT_OUT_OF_STANDARD_LIBRARY)
        if file.suffix == ".py" and _is_utf8(file)
    ]
    if not files:
        raise DataError(f"{folder}: this Python has no sources of its standard library; name another input")
    return files


def _is_utf8(file: Path) -> bool:
    try:
        read_regular(file).decode("utf-8")
    except UnicodeDecodeError:
        return False
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    return True
