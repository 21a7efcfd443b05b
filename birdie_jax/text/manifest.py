"""`manifest.json`: what a folder of token shards holds, how it was made, and how far it is.

The manifest is replaced as a whole each time a pair of shards is finished, so it never names a shard that
is not on the disk, and a stopped preparation goes on from `position`.
"""

import json
import typing
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path

from birdie_jax.text.durable import write_whole
from birdie_jax.text.errors import DataError

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
TOKENIZER_NAME = "tokenizer.model"
SPLITS = ("train", "validation")
SPLIT_RULE = (
    "validation where the top 53 bits of the 8-byte blake2b of the document's UTF-8 text, "
    "divided by 2**53, are below validation_fraction"
)


@dataclass(frozen=True)
class Settings:
    """What decides the contents of the shards; a resumed preparation must have the same.

    Attributes:
        source: the source as the user named it.
        text_field: field of a JSON line or Parquet row that holds the text.
        tokenizer_model: SHA-256 of the given SentencePiece model; empty where one is trained.
        tokenizer_type: `unigram` or `bpe`, the kind to train; empty where a model is given.
        vocab_size: pieces to train; 0 where a model is given.
        sample_bytes: bytes of text to train on; 0 where a model is given.
        record_tokens: most tokens in a record.
        shard_tokens: a training shard is closed when it has this many tokens.
        validation_fraction: expected share of the documents in the validation split.
        split_rule: how a document's split is decided, in words.
        seed: of the tokenizer's sample.
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


@dataclass(frozen=True)
class TokenizerIdentity:
    """Which tokenizer made the shards: the model's SHA-256, its pieces, and the padded vocabulary."""

    sha256: str
    num_pieces: int
    vocab_size: int


@dataclass(frozen=True)
class Shard:
    """One ArrayRecord file: its name, sums over its records, its size, and its longest record in tokens.

    `documents` counts the documents that end in this shard, which are all that begin in it.
    """

    name: str
    records: int
    tokens: int
    documents: int
    bytes: int
    longest_record: int


@dataclass(frozen=True)
class Position:
    """The first document that is not in any finished shard: file's index, and document within the file."""

    file: int
    document: int


@dataclass(frozen=True)
class Manifest:
    """The contents of `manifest.json`.

    Attributes:
        format_version: of the folder's layout; this program reads and writes `FORMAT_VERSION`.
        complete: whether the whole source is in the shards.
        settings: what the shards were asked to be.
        tokenizer: which tokenizer made them; None until it is trained.
        dtype: stored type of a token id, `uint16` or `uint32`; empty until the tokenizer is known.
        train: finished shards of the training split, in order.
        validation: finished shards of the validation split, in order.
        empty_documents: documents left out because they hold no text.
        source_bytes: bytes of the source files consumed so far, as stored (compressed).
        source_sha256: hash of the names and sizes of the files that were read from so far.
        position: where a stopped preparation goes on.
    """

    format_version: int
    complete: bool
    settings: Settings
    tokenizer: TokenizerIdentity | None
    dtype: str
    train: tuple[Shard, ...]
    validation: tuple[Shard, ...]
    empty_documents: int
    source_bytes: int
    source_sha256: str
    position: Position

    def shards(self, split: str) -> tuple[Shard, ...]:
        """Return the finished shards of `split`, which is one of `SPLITS`.

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

    def save(self, directory: Path) -> None:
        """Replace `directory/manifest.json`, in one step.

        Raises:
            DataError: the disk refuses; the manifest of before is kept.
        """
        text = json.dumps(asdict(self), indent=1) + "\n"
        write_whole(directory / MANIFEST_NAME, text.encode())


def load_manifest(directory: Path) -> Manifest:
    """Read `directory/manifest.json`.

    Raises:
        DataError: it is missing, unreadable, of another format version, or not a manifest; names the file
            and the field.
    """
    path = directory / MANIFEST_NAME
    try:
        contents = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: not found; make it with python -m birdie_jax.prepare_data --output={directory}"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path}: is not JSON: {error}") from error
    version = contents.get("format_version") if isinstance(contents, dict) else None
    if version != FORMAT_VERSION:
        raise DataError(f"{path}: format_version is {version!r}; this program reads {FORMAT_VERSION}")
    return _checked(Manifest, contents, f"{path}: ")


def _checked(kind: typing.Any, value: typing.Any, where: str) -> typing.Any:
    """Return JSON `value` as `kind`: a dataclass, a tuple of them, an optional one, or a plain type."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise DataError(f"{where} is {value!r}; a list is expected")
        return tuple(_checked(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if type(None) in arguments:
        return None if value is None else _checked(arguments[0], value, where)
    if is_dataclass(kind):
        names = [field.name for field in fields(kind)]
        if not isinstance(value, dict) or set(value) != set(names):
            found = sorted(value) if isinstance(value, dict) else repr(value)
            raise DataError(f"{where} has {found}; the fields {names} are expected")
        types = typing.get_type_hints(kind)
        return kind(**{name: _checked(types[name], value[name], f"{where}.{name}") for name in names})
    # JSON writes the float 1.0 as 1.0, but a person may write 0; and a bool is an int to isinstance.
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise DataError(f"{where} is {value!r}; {kind.__name__} is expected")
    return value
