import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from absl.testing import flagsaver

from birdie_jax import command_line, prepare_data
from birdie_jax.text import Tokenizer, TokenShards, load_manifest

_TEXTS = [f"document {number}\n    of the river " * 20 for number in range(60)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in _TEXTS))
    return path


def verb(*flags):
    arguments = [sys.executable, "-m", "birdie_jax.prepare_data", *flags]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
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
    # Standard error is not a terminal: it gets one plain line per stage.
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["tokenizer", "token shards"]
    again = verb(*flags)
    assert (again.returncode, again.stdout, again.stderr) == (0, result.stdout, "")
    # Another preparation uses the tokenizer.
    trained = output / "tokenizer.model"
    other = ["--workers=0", "--noprogress", "--validation_fraction=0.2", f"--tokenizer={trained}"]
    result = verb(f"--input={corpus}", f"--output={tmp_path / 'other'}", *other)
    assert (result.returncode, result.stderr) == (0, "")
    assert (tmp_path / "other" / "tokenizer.model").read_bytes() == trained.read_bytes()
    assert load_manifest(tmp_path / "other").settings.vocab_size == 0


# Each flag is set alone, as `--name=value`; a shell cannot pass a null character.
_UNUSABLE_FLAGS = [
    (["--input=/nowhere"], "input '/nowhere': is not a file, a folder or 'stdlib'"),
    (["--input="], "the input is empty; allowed: a file, a folder, a glob or 'stdlib'"),
    (["--input=" + "x" * 100_000], "input 'xxxxx"),
    (["--input=two\nlines"], "input 'two\\nlines': is not a file"),
    (["--output="], "flag --output=: found ''; allowed: the name of a file or folder"),
    (["--output=" + "x" * 100_000], "output is 'xxxxx"),
    (["--text_field="], "text_field is ''; allowed: the name of a field"),
    (["--tokenizer=/dev/zero"], "/dev/zero: is a device; allowed: a regular file"),
    (["--tokenizer=/nowhere"], "/nowhere: the tokenizer model cannot be read: No such file"),
    (["--validation_fraction=2"], "validation_fraction is 2.0; allowed: between 0 and 1"),
    (["--vocab_size=0"], "vocab_size is 0; allowed: 1 to 1,048,576"),
    (["--vocab_size=2147483648"], "vocab_size is 2147483648; allowed: 1 to 1,048,576"),
    (["--sample_bytes=99999999999999999999"], "sample_bytes is 99999999999999999999; allowed: 1 to 17,"),
    (["--record_tokens=67108865"], "record_tokens is 67108865; allowed: 1 to 67,108,864"),
    (["--shard_tokens=-1"], "shard_tokens is -1; allowed: 1 to 17,179,869,184"),
    (["--workers=1025"], "workers is 1025; allowed: 0 to 1,024"),
    (["--seed=9223372036854775808"], "seed is 9223372036854775808; allowed: 0 to 9,223,372,036"),
    (["--seed=" + "9" * 4000], "seed is an integer of about 4,00"),
    (["--seed=" + "9" * 5000], "flag --seed=99999"),
    (["--vocab_size=many"], "flag --vocab_size=many: invalid literal for int()"),
    (["--tokenizer_type=word"], "flag --tokenizer_type=word: value should be one of <unigram|bpe>"),
    (["--vocabsize=3"], "Unknown command line flag 'vocabsize'. Did you mean: vocab_size ?"),
    (["--" + "x" * 100_000], "the name of a flag is too long"),
    (["stray"], "unknown argument 'stray'; every option begins with --"),
    (["stray\nlines" * 10_000], "unknown argument 'stray\\nlinesstray"),
]


_UNUSABLE_UNITS = [
    (["--unit=0"], "out/plan.json: not found; prepare_data --units=N --runner=none makes it"),
    (["--finish"], "out/plan.json: not found; prepare_data --units=N --runner=none makes it"),
    (["--unit=0", "--input=x"], "--input: found beside --unit; allowed: --output alone"),
    (["--finish", "--noprogress"], "--progress: found beside --finish; allowed: --output alone"),
    (["--unit=0", "--finish"], "--finish: found beside --unit; allowed: --output alone"),
    (["--unit=many"], "flag --unit=many: invalid literal for int()"),
    (["--units=2", "--runner=beam"], "flag --runner=beam: value should be one of <local|none>"),
    (["--units=0", "--runner=none"], "--runner: found 'none' with --units=0; allowed: with --units=1 or"),
    (["--runner=none"], "--runner: found 'none' with --units=0; allowed: with --units=1 or more"),
    (["--tokenizer=x", "--vocab_size=9"], "--vocab_size: found 9 beside --tokenizer, which is used"),
    (["--tokenizer=x", "--tokenizer_type=bpe"], "--tokenizer_type: found 'bpe' beside --tokenizer, which"),
    (["--tokenizer=x", "--sample_bytes=9"], "--sample_bytes: found 9 beside --tokenizer, which is used"),
    (["--tokenizer=x", "--seed=9"], "--seed: found 9 beside --tokenizer, which is used unchanged; allowed"),
    (["--document_filter=language"], "filter 'language': cannot be parsed from character 0 on"),
]


@pytest.fixture
def run_in_this_process(capsys, monkeypatch):
    """Run the verb without starting a process, which takes seconds."""

    monkeypatch.setattr(sys, "argv", list(sys.argv))

    def run(*arguments):
        words = ["prepare_data", *arguments]
        # absl's own `run` would change the logging of this process.
        monkeypatch.setattr(command_line.app, "run", lambda main, flags_parser: main(flags_parser(words)))
        saved = flagsaver.save_flag_values()
        status = 0
        try:
            command_line.start("prepare_data", prepare_data.main)
        except SystemExit as end:
            status = end.code
        finally:
            flagsaver.restore_flag_values(saved)
        return status, *capsys.readouterr()

    return run


@pytest.mark.parametrize("case", _UNUSABLE_FLAGS, ids=lambda case: f"{case[0][0][:20]!a}")
def test_user_errors_are_one_short_line(corpus, tmp_path, monkeypatch, run_in_this_process, case):
    unusable, message = case
    monkeypatch.chdir(tmp_path)
    found = run_in_this_process(f"--input={corpus}", "--output=out", *unusable)
    assert found[:2] == (2, "")
    assert found[2].startswith(f"birdie_jax.prepare_data: {message}")
    assert found[2].endswith("\n")
    assert found[2].removesuffix("\n").isprintable()
    assert len(found[2]) < 1000
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("unusable", "message"), _UNUSABLE_UNITS, ids=lambda case: f"{case[0]:.30}")
def test_invalid_flags_of_units_are_refused(tmp_path, monkeypatch, run_in_this_process, unusable, message):
    monkeypatch.chdir(tmp_path)
    status, out, error = run_in_this_process("--output=out", *unusable)
    assert (status, out) == (2, "")
    assert error.startswith(f"birdie_jax.prepare_data: {message}")
    assert error.count("\n") == 1


def test_units_by_their_commands(corpus, tmp_path, run_in_this_process):
    for name in ("a", "b"):
        (tmp_path / "source" / name).mkdir(parents=True)
        shutil.copy(corpus, tmp_path / "source" / name / "corpus.jsonl")
    sizes = [
        "--vocab_size=330",
        "--tokenizer_type=bpe",
        "--validation_fraction=0.2",
        "--workers=0",
        "--noprogress",
    ]
    flags = [f"--input={tmp_path}/source", "--units=2", *sizes, "--document_filter=len(text) > 500"]
    status, summary, error = run_in_this_process(f"--output={tmp_path}/local", *flags)
    assert (status, error) == (0, "")
    assert "documents left out by the filter: " in summary
    output = f"--output={tmp_path}/out"
    planned = run_in_this_process(output, *flags, "--runner=none")
    assert planned == (0, f"{tmp_path}/out: has a plan; run --unit=0 to 1, then --finish\n", "")
    message = (
        f"birdie_jax.prepare_data: {tmp_path}/out: 1 of 2 units have not written their samples: 1; run each"
    )
    for stage in ("samples", "shards"):
        assert run_in_this_process(output, "--unit=0") == (0, "", "")
        status, _, error = run_in_this_process(output, "--finish")
        assert (status, error.startswith(message.replace("samples", stage))) == (2, True)
        assert run_in_this_process(output, "--unit=1") == (0, "", "")
        status, out, error = run_in_this_process(output, "--finish")
        assert (status, error) == (0, "")
        assert out == summary.replace("/local", "/out") or (
            stage == "samples" and "run each unit again" in out
        )
    assert load_manifest(tmp_path / "out") == load_manifest(tmp_path / "local")
    # A complete folder has no plan.
    assert run_in_this_process(output, *flags, "--runner=none") == (0, out, "")


@pytest.mark.slow
@pytest.mark.parametrize("unusable", [["--input=/nowhere"], ["--vocabsize=3"]])
def test_user_errors_are_one_line_of_the_command(corpus, tmp_path, unusable):
    result = verb(f"--input={corpus}", f"--output={tmp_path / 'out'}", *unusable)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("birdie_jax.prepare_data: ")
    assert result.stderr.count("\n") == 1


_SMALL = [
    "--vocab_size=330",
    "--tokenizer_type=bpe",
    "--validation_fraction=0.2",
    "--workers=0",
    "--noprogress",
]


def test_file_names_with_line_ends_and_without_encoding(corpus, tmp_path, run_in_this_process):
    source = Path(os.fsdecode(os.fsencode(tmp_path) + b"/two\nlines\xff"))
    source.mkdir()
    shown = f"{tmp_path}/two\\nlines\\udcff"
    shutil.copy(corpus, source / "good.jsonl")
    flags = [f"--input={source}", *_SMALL]
    status, out, error = run_in_this_process(f"--output={tmp_path}/o\nut", *flags)
    assert (status, error) == (0, "")
    assert out.splitlines()[-1] == f"in {tmp_path}/o\\nut"
    again = run_in_this_process(f"--output={tmp_path}/o\nut", *flags)
    assert again == (status, out, error)
    status, out, error = run_in_this_process(f"--output={source}/out", *flags)
    assert (status, out) == (2, "")
    assert error == (f"birdie_jax.prepare_data: {shown}/out: is not UTF-8; allowed: a UTF-8 path\n")
    (source / "bad.jsonl").write_text('{"text": 5}\n')
    status, out, error = run_in_this_process(f"--output={tmp_path}/out2", *flags)
    assert (status, out) == (2, "")
    assert error.startswith(f"birdie_jax.prepare_data: {shown}/bad.jsonl: line 1: field 'text' is a int")
    assert error.count("\n") == 1


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o555, 0o666])
@pytest.mark.parametrize("below", ["", "new"])
def test_an_unwritable_output_folder_is_refused(unprivileged_folder, run_in_this_process, mode, below):
    corpus = unprivileged_folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in _TEXTS))
    output = unprivileged_folder / "out"
    output.mkdir()
    output.chmod(mode)
    status, out, error = run_in_this_process(f"--input={corpus}", f"--output={output / below}", *_SMALL)
    assert (status, out) == (2, "")
    assert re.fullmatch(
        rf"birdie_jax.prepare_data: {re.escape(str(output))}\S*: .*: Permission denied.*\n", error
    )


def test_missing_output_is_refused(run_in_this_process):
    status, _, error = run_in_this_process("--input=stdlib")
    assert status == 2
    assert re.fullmatch(r"birdie_jax.prepare_data: --output is not given .*\n", error)
