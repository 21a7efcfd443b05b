"""`manifest.json`: the contents of a folder of token shards, its settings and its progress.

The manifest is replaced atomically each time a pair of shards is finished, so it never names a shard that
does not exist. A stopped preparation resumes from `cursor`.
"""

import hashlib
import json
from dataclasses import MISSING, dataclass, field, fields

from birdie_jax.errors import DataError, shown
from birdie_jax.storage import FILE_KEY, parse_typed, read_bytes, to_plain
from birdie_jax.storage.json_text import parse_json
from birdie_jax.text.locations import Location, reason
from birdie_jax.text.saving import save_file

FORMAT_VERSION = 3
# Version 1 has no hashes of shards' records. Version 2 counts no left-out documents except empty ones.
_READ_VERSIONS = (1, 2, FORMAT_VERSION)
MANIFEST_NAME = "manifest.json"
_CHECKSUM = "checksum"
TOKENIZER_NAME = "tokenizer.model"
SPLITS = ("train", "validation")
SPLIT_RULE = (
    "validation where the top 53 bits of the 8-byte blake2b of the document's UTF-8 text, "
    "divided by 2**53, are below validation_fraction"
)


@dataclass(frozen=True)
class PreparationSettings:
    """The settings that determine the contents of the shards; a resumed preparation must have the same.

    Attributes:
        source: the source as the user named it.
        text_field: the field of a JSON line or Parquet row that contains the text.
        tokenizer_model: the SHA-256 of the given tokenizer model; empty if one is trained.
        tokenizer_type: the kind of tokenizer to train, `unigram` or `bpe`; empty if a model is given.
        vocab_size: the number of pieces to train; 0 if a model is given.
        sample_bytes: the bytes of text to train on; 0 if a model is given.
        record_tokens: the maximum number of tokens in a record.
        shard_tokens: the number of tokens at which a training shard is closed.
        validation_fraction: the expected fraction of documents in the validation split.
        split_rule: the rule that assigns a document to a split, in words.
        seed: the seed of the tokenizer's sample.
        document_separator: the string that separates documents in text files; empty if a file is one.
        document_filter: the conditions that select records by their fields; empty for all.
        deduplicate: whether to leave out repeated texts.
        units: the number of units of the source; 0 if one process reads all of it.
    """

    source: str
    text_field: str
    tokenizer_model: str
    tokenizer_type: str
    vocab_size: int
    sample_bytes: int
    record_tokens: int
    shard_tokens: int
    validation_fraction: float
    split_rule: str
    seed: int
    document_separator: str = ""
    document_filter: str = ""
    deduplicate: bool = False
    units: int = 0


@dataclass(frozen=True)
class TokenizerIdentity:
    """The tokenizer that made the shards.

    Attributes:
        sha256: the SHA-256 of the tokenizer model.
        num_pieces: the number of its pieces.
        vocab_size: the number of rows of its embedding table: pieces and special tokens, padded.
    """

    sha256: str
    num_pieces: int
    vocab_size: int


@dataclass(frozen=True)
class Shard:
    """One ArrayRecord file.

    Attributes:
        name: the file's name.
        records: the number of its records.
        tokens: the number of its tokens.
        documents: the number of its documents; no document continues in another shard.
        bytes: the file's size.
        max_record_tokens: the number of tokens in its longest record; `longest_record` in the JSON.
        sha256: the SHA-256 of its records' concatenated bytes; empty in a folder of version 1.
    """

    name: str
    records: int
    tokens: int
    documents: int
    bytes: int
    max_record_tokens: int = field(metadata={FILE_KEY: "longest_record"})
    sha256: str = ""


@dataclass(frozen=True)
class SourceCursor:
    """The position of the first document that is not in a finished shard.

    Attributes:
        file: the index of its file within the source.
        document: the number of the document within the file.
    """

    file: int
    document: int

    @property
    def files_begun(self) -> int:
        """The number of files with at least one document read."""
        return self.file + (self.document > 0)


@dataclass(frozen=True)
class Manifest:
    """The contents of `manifest.json`.

    Attributes:
        format_version: the version of the folder's layout; this program writes `FORMAT_VERSION`.
        complete: whether the shards contain the whole source.
        settings: the settings of the preparation.
        tokenizer: the tokenizer of the shards; None until it is trained.
        dtype: the stored type of a token id, `uint16` or `uint32`; empty until the tokenizer is known.
        train: the finished shards of the training split, in order.
        validation: the finished shards of the validation split, in order.
        empty_documents: the number of documents left out because they have no text.
        filtered_documents: the number of documents that the filter left out.
        duplicate_documents: the number of documents left out because they repeat a text.
        source_bytes: the bytes of the source files consumed so far, as stored (compressed).
        source_sha256: the hash of the contents of the source files opened so far, in order; in a folder of
            version 1, of their names and sizes.
        source_commit: the commit of the hub's data set; empty for other sources.
        cursor: the position at which a stopped preparation resumes; `position` in the JSON.
    """

    format_version: int
    complete: bool
    settings: PreparationSettings
    tokenizer: TokenizerIdentity | None
    dtype: str
    train: tuple[Shard, ...]
    validation: tuple[Shard, ...]
    empty_documents: int
    filtered_documents: int
    duplicate_documents: int
    source_bytes: int
    source_sha256: str
    source_commit: str
    cursor: SourceCursor = field(metadata={FILE_KEY: "position"})

    def shards(self, split: str) -> tuple[Shard, ...]:
        """Return the finished shards of `split`, one of `SPLITS`.

        Raises:
            ValueError: there is no such split.
        """
        if split not in SPLITS:
            raise ValueError(f"split {split!r} is none of {', '.join(SPLITS)}")
        return self.train if split == "train" else self.validation

    def tokens(self, split: str) -> int:
        """Return the number of tokens in the finished shards of `split`."""
        return sum(shard.tokens for shard in self.shards(split))

    def documents(self, split: str) -> int:
        """Return the number of documents in the finished shards of `split`."""
        return sum(shard.documents for shard in self.shards(split))

    @property
    def sha256(self) -> str:
        """The identity of the prepared text: a hexadecimal hash of everything that determines batches.

        It covers the tokenizer and the records of each shard, in order. It does not depend on the path of
        the folder, the paths of the source, or the number of workers: preparing the same text twice with
        the same settings gives the same hash. A folder of version 1 has no hashes of records; there it
        covers the sizes of the shards, the settings, and the names and sizes of the source files.
        """
        identity: dict[str, object] = {"tokenizer": self.tokenizer and self.tokenizer.sha256}
        for split in SPLITS:
            shards = self.shards(split)
            identity[split] = [[shard.records, shard.documents, shard.sha256] for shard in shards]
            if not all(shard.sha256 for shard in shards):
                identity |= {
                    split: to_plain(shards),
                    "settings": to_plain(self.settings),
                    "source": self.source_sha256,
                }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> bytes:
        """Return the contents of `manifest.json`, with their checksum."""
        contents = to_plain(self)
        checked = contents | {_CHECKSUM: _checksum(contents)}
        return (json.dumps(checked, indent=1) + "\n").encode()

    def save(self, directory: Location) -> None:
        """Replace `directory/manifest.json` atomically.

        Raises:
            DataError: the write fails; the old manifest is kept.
        """
        save_file(directory / MANIFEST_NAME, self.to_json())


def load_manifest(directory: Location) -> Manifest:
    """Read `directory/manifest.json`.

    Raises:
        DataError: the file is missing, unreadable, damaged, of another format version, or not a manifest;
            names the file and the field.
    """
    path = directory / MANIFEST_NAME
    try:
        contents = parse_json(read_bytes(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(
            f"{path}: not found; make it with python -m birdie_jax.prepare_data --output={directory}"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from error
    except ValueError as error:
        raise DataError(f"{path}: is not readable JSON: {error}") from error
    version = contents.get("format_version") if isinstance(contents, dict) else None
    # `1.0` and `true` equal 1 in Python, but are not valid versions.
    if type(version) is not int or version not in _READ_VERSIONS:
        versions = " and ".join(map(str, _READ_VERSIONS))
        raise DataError(f"{path}: format_version is {shown(version)}; this program reads {versions}")
    if (checksum := contents.pop(_CHECKSUM, None)) not in (None, _checksum(contents)):
        raise DataError(
            f"{path}: is damaged: its {_CHECKSUM} is {shown(checksum)}, and its contents have "
            f"{_checksum(contents)}; prepare the data again, or remove the {_CHECKSUM} "
            "if you changed the file yourself"
        )
    if version == 1:
        _add_fields_since_version_1(contents)
    if version < FORMAT_VERSION:
        _add_fields_since_version_2(contents)
    return parse_typed(Manifest, contents, f"{path}: manifest", DataError)


def _checksum(contents: object) -> str:
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def _add_fields_since_version_1(contents: dict) -> None:
    for split in SPLITS:
        shards = contents.get(split)
        for shard in shards if isinstance(shards, list) else []:
            if isinstance(shard, dict):
                shard.setdefault("sha256", "")


def _add_fields_since_version_2(contents: dict) -> None:
    for name, default in {"source_commit": "", "filtered_documents": 0, "duplicate_documents": 0}.items():
        contents.setdefault(name, default)
    if isinstance(settings := contents.get("settings"), dict):
        for field_ in fields(PreparationSettings):
            if field_.default is not MISSING:
                settings.setdefault(field_.name, field_.default)
    if contents["format_version"] == 2:
        # The defaults match version 2, so a preparation of version 2 resumes, and is saved as this version.
        contents["format_version"] = FORMAT_VERSION
