"""Prepare text: documents become a tokenizer and token shards.

    python -m birdie_jax.prepare_data --input=stdlib --output=data/stdlib
    python -m birdie_jax.prepare_data --input='pile/**/*.jsonl.zst' --output=data/pile --vocab_size=32768
    python -m birdie_jax.prepare_data --input='gs://texts/pile/**/*.jsonl.zst' --output=gs://texts/prepared
    python -m birdie_jax.prepare_data --input='hf://datasets/ORG/NAME/**/*.parquet' --output=data/name

With --units=N the source is prepared in N parts, by processes of this machine or by those of a cluster
(docs/prepare_text.md).

If stopped at any instant and started again with the same command, it resumes from the last finished shard,
or repeats the unfinished units.
Exit status: 0 when the folder is complete, 1 where the same command may succeed later (a full disk, a
bucket that does not answer), 2 for a command or data that cannot be used, 130 when interrupted.
"""

import sys

from absl import flags

from birdie_jax.command_line import define_path, start
from birdie_jax.errors import DataError, one_line, shown
from birdie_jax.text import load_manifest, locate, prepare
from birdie_jax.text.locations import Location
from birdie_jax.text.units import advance, count_units, run_unit

_INPUT = flags.DEFINE_string(
    "input",
    "stdlib",
    "Documents: 'stdlib' (the Python standard library's own sources), a file, a folder, or a glob of .txt, "
    ".md, .py, .jsonl, .tar (each also with .gz, .zst, .xz) or .parquet files; or any of these "
    "in a bucket (gs://..., s3://...) or of a data set of the Hugging Face hub "
    "(hf://datasets/ORG/NAME[@REVISION]/...; a token is taken from HF_TOKEN).",
)
_OUTPUT = define_path(
    "output",
    "Folder, or URL of one in a bucket, for the tokenizer, the shards and the manifest.",
    required=True,
)
_TOKENIZER = flags.DEFINE_string(
    "tokenizer",
    "",
    "SentencePiece .model or tokenizer.json (also by URL) to use unchanged; empty: train one.",
)
_TOKENIZER_TYPE = flags.DEFINE_enum(
    "tokenizer_type", "unigram", ["unigram", "bpe"], "Kind of tokenizer to train."
)
_VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 4096, "Pieces of the tokenizer to train.")
_SAMPLE_BYTES = flags.DEFINE_integer(
    "sample_bytes", 4 << 20, "Bytes of text, drawn evenly from the input, to train it on."
)
_TEXT_FIELD = flags.DEFINE_string(
    "text_field",
    "text",
    "Field of .jsonl, .parquet and of a .json in a .tar that holds the text; a.b is the field b of a.",
)
_SEPARATOR = flags.DEFINE_string(
    "document_separator",
    "",
    "Separator of documents in .txt, .md and .py files (\\n: a line end, \\r\\n: one of Windows); empty: a "
    "file is one document.",
)
_FILTER = flags.DEFINE_string(
    "document_filter",
    "",
    "Condition on the fields of a record that is a document: 'language == en and len(text) >= 200' "
    "(==, !=, <, <=, >, >=); empty: all.",
)
_UNITS = flags.DEFINE_integer(
    "units",
    0,
    "Number of units of whole files; any processes prepare them in any order. 0: one process, all files.",
)
_RUNNER = flags.DEFINE_enum(
    "runner", "local", ["local", "none"], "What runs the units: processes of this machine, or --unit later."
)
_UNIT = flags.DEFINE_integer("unit", None, "Run only this unit, from 0, of the plan in --output.")
_FINISH = flags.DEFINE_bool(
    "finish", False, "Only combine the results of the units of the plan in --output."
)
_DEDUPLICATE = flags.DEFINE_bool(
    "deduplicate",
    False,
    "Leave out documents that repeat an earlier text; takes 100 bytes of memory per document.",
)
_RECORD_TOKENS = flags.DEFINE_integer("record_tokens", 32768, "Maximum tokens in a record.")
_SHARD_TOKENS = flags.DEFINE_integer(
    "shard_tokens",
    1 << 26,
    "Tokens in a training shard; without units, a stopped run repeats at most one.",
)
_VALIDATION_FRACTION = flags.DEFINE_float(
    "validation_fraction", 0.01, "Expected share of the documents for validation, between 0 and 1."
)
_WORKERS = flags.DEFINE_integer(
    "workers", None, "Tokenizing processes; 0: only this one; default: one per processor."
)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the tokenizer's sample.")
_PROGRESS = flags.DEFINE_bool("progress", True, "Show progress on standard error.")


def main(arguments: list[str]) -> None:
    """Prepare the data that the flags name, and print a summary of the folder."""
    del arguments
    try:
        if _UNIT.value is not None or _FINISH.value:
            _check_alone()
            directory = locate(_OUTPUT.value)
            if _UNIT.value is not None:
                run_unit(directory, _UNIT.value)
                return
            if not advance(directory):
                print(f"{one_line(str(directory))}: has its tokenizer; run each unit again for its shards")
                return
            _print_summary(directory)
            return
        _check_used()
        directory = prepare(
            _INPUT.value,
            _OUTPUT.value,
            tokenizer_model=_TOKENIZER.value,
            tokenizer_type=_TOKENIZER_TYPE.value,
            vocab_size=_VOCAB_SIZE.value,
            sample_bytes=_SAMPLE_BYTES.value,
            text_field=_TEXT_FIELD.value,
            record_tokens=_RECORD_TOKENS.value,
            shard_tokens=_SHARD_TOKENS.value,
            validation_fraction=_VALIDATION_FRACTION.value,
            workers=_WORKERS.value,
            seed=_SEED.value,
            progress=_PROGRESS.value,
            document_separator=_SEPARATOR.value,
            document_filter=_FILTER.value,
            deduplicate=_DEDUPLICATE.value,
            units=_UNITS.value,
            run_units=_RUNNER.value == "local",
        )
    except KeyboardInterrupt:
        in_units = _UNITS.value or _UNIT.value is not None or _FINISH.value
        then = "repeats its unfinished units" if in_units else "resumes from the last finished shard"
        print(f"birdie_jax.prepare_data: stopped; the same command {then}", file=sys.stderr)
        sys.exit(130)
    if _RUNNER.value == "none" and (units := count_units(directory)):
        print(f"{one_line(str(directory))}: has a plan; run --unit=0 to {units - 1}, then --finish")
        return
    _print_summary(directory)


def _check_alone() -> None:
    """Refuse other flags with --unit and --finish: the plan has the settings."""
    own = {_UNIT.name if _UNIT.value is not None else _FINISH.name, _OUTPUT.name}
    for flag in globals().values():
        if isinstance(flag, flags.FlagHolder) and flag.present and flag.name not in own:
            raise DataError(
                f"--{flag.name}: found beside --{min(own - {_OUTPUT.name})}; allowed: --output alone"
            )


def _check_used() -> None:
    """Refuse flags that the others make useless."""
    if _RUNNER.value == "none" and not _UNITS.value:
        raise DataError(f"--{_RUNNER.name}: found 'none' with --units=0; allowed: with --units=1 or more")
    if _TOKENIZER.value:
        for flag in (_TOKENIZER_TYPE, _VOCAB_SIZE, _SAMPLE_BYTES, _SEED):
            if flag.present:
                raise DataError(
                    f"--{flag.name}: found {shown(flag.value)} beside --tokenizer, which is used "
                    "unchanged; allowed: without --tokenizer"
                )


def _print_summary(directory: Location) -> None:
    manifest = load_manifest(directory)
    for split in ("train", "validation"):
        print(
            f"{split}: {manifest.documents(split):,} documents, {manifest.tokens(split):,} tokens, "
            f"{len(manifest.shards(split))} shards"
        )
    if manifest.tokenizer is not None:
        pieces, size = manifest.tokenizer.num_pieces, manifest.tokenizer.vocab_size
        print(f"tokenizer: {pieces:,} pieces, vocabulary {size:,}, SHA-256 {manifest.tokenizer.sha256}")
    print(f"empty documents left out: {manifest.empty_documents:,}")
    if manifest.settings.document_filter:
        print(f"documents left out by the filter: {manifest.filtered_documents:,}")
    if manifest.settings.deduplicate:
        print(f"duplicates left out: {manifest.duplicate_documents:,}")
    print(f"in {one_line(str(directory))}")


if __name__ == "__main__":
    start("prepare_data", main)
