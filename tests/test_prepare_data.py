import json
import subprocess
import sys

import pytest

from birdie_jax.text import Tokenizer, TokenShards, load_manifest, train_tokenizer

_TEXTS = [f"document {number}\n    of the river " * 20 for number in range(60)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in _TEXTS))
    return path


def verb(*flags):
    arguments = [sys.executable, "-m", "birdie_jax.prepare_data", *flags]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)


def test_whole_command(corpus, tmp_path):
    output = tmp_path / "out"
    flags = [
        f"--input={corpus}",
        f"--output={output}",
        "--vocab_size=330",
        "--tokenizer_type=bpe",
        "--validation_fraction=0.2",
        "--record_tokens=16",
        "--workers=1",
    ]
    result = verb(*flags)
    assert result.returncode == 0, result.stderr
    train, validation = (TokenShards(output, split) for split in ("train", "validation"))
    assert train.num_documents + validation.num_documents == 60
    assert train.max_record_tokens <= 16
    sha256 = Tokenizer(output / "tokenizer.model").sha256
    assert result.stdout.splitlines() == [
        f"train: {train.num_documents} documents, {train.num_tokens:,} tokens, 1 shards",
        f"validation: {validation.num_documents} documents, {validation.num_tokens:,} tokens, 1 shards",
        f"tokenizer: 330 pieces, vocabulary 640, SHA-256 {sha256}",
        "empty documents left out: 0",
        f"in {output}",
    ]
    # Standard error is no terminal: plain lines, one a stage.
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["tokenizer", "token shards"]
    again = verb(*flags)
    assert (again.returncode, again.stdout, again.stderr) == (0, result.stdout, "")


def test_given_tokenizer(corpus, tmp_path):
    train_tokenizer(_TEXTS, 320, tokenizer_type="bpe").save(tmp_path / "given.model")
    result = verb(
        f"--input={corpus}",
        f"--output={tmp_path / 'out'}",
        f"--tokenizer={tmp_path / 'given.model'}",
        "--validation_fraction=0.2",
        "--workers=0",
        "--noprogress",
    )
    assert (result.returncode, result.stderr) == (0, "")
    given = (tmp_path / "given.model").read_bytes()
    assert (tmp_path / "out" / "tokenizer.model").read_bytes() == given
    assert load_manifest(tmp_path / "out").settings.vocab_size == 0


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (["--input=/nowhere"], 1, "prepare_data: input '/nowhere': is no file, no folder, not 'stdlib'"),
        (
            ["--validation_fraction=2"],
            1,
            "prepare_data: validation_fraction is 2.0; allowed: between 0 and 1",
        ),
        (["stray"], 2, "prepare_data: unexpected argument 'stray'; every setting is a --flag"),
    ],
)
def test_user_errors_are_one_line(corpus, tmp_path, flags, status, message):
    result = verb(f"--input={corpus}", f"--output={tmp_path / 'out'}", *flags)
    assert result.returncode == status
    assert result.stdout == ""
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


def test_missing_output_and_unknown_flags_are_refused():
    missing = verb("--input=stdlib")
    assert missing.returncode != 0
    assert "output" in missing.stderr
    unknown = verb("--output=x", "--vocabsize=3")
    assert unknown.returncode != 0
    assert "Unknown command line flag 'vocabsize'" in unknown.stderr
