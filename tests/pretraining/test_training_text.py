"""The text of a run is the same in every process; errors about a corpus name its field."""

import dataclasses
import json

import pytest

from birdie_jax.config import parse_config
from birdie_jax.engine.coordination import Processes
from birdie_jax.errors import DataError
from birdie_jax.pretraining.training_text import check_same_text, prepare_text
from birdie_jax.storage.workdir import Workdir
from birdie_jax.text import TokenShards, prepare
from tests.micro_config import get_config


class _SecondProcess(Processes):
    """Process 1 of a run; the first process has already sent its text."""

    def __init__(self, text=""):
        self.index = 1
        self.text = text

    def broadcast_from_first(self, name, make):
        self.text = self.text or make()
        return self.text


@pytest.fixture
def prepared(tmp_path):
    def prepare_texts(name, texts):
        source = tmp_path / f"{name}.jsonl"
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        settings = {"vocab_size": 330, "tokenizer_type": "bpe", "validation_fraction": 0.2}
        folder = prepare(str(source), tmp_path / name, workers=0, progress=False, **settings)
        return [TokenShards(folder, split) for split in ("train", "validation")]

    return prepare_texts


def test_processes_must_read_the_same_text(prepared):
    texts = [f"document {number}\n    of the river " * 20 for number in range(60)]
    first = _SecondProcess()
    check_same_text(tuple(prepared("first", texts)), first)
    check_same_text(tuple(prepared("copied", texts)), _SecondProcess(first.text))
    # The same length and the same tokens, in another order.
    other = prepared("other", [*texts[1:], texts[0]])
    with pytest.raises(
        DataError, match=r"other: the text of process 1 differs from that of process 0 in .*first;"
    ):
        check_same_text(tuple(other), _SecondProcess(first.text))


def test_a_vocabulary_size_that_the_prepared_text_does_not_have_is_reported(prepared, tmp_path, caplog):
    texts = [f"document {number}\n    of the river " * 20 for number in range(60)]
    folder = str(prepared("web", texts)[0].directory)
    for vocab_size, warnings in ((330, []), (32_000, [" found 32000, which has no effect"])):
        config = parse_config(get_config())
        data = dataclasses.replace(config.data, prepared=folder, vocab_size=vocab_size)
        workdir = tmp_path / str(vocab_size)
        workdir.mkdir()
        prepare_text(dataclasses.replace(config, data=data), Workdir(workdir), Processes())
        assert [record.getMessage().split(":")[1] for record in caplog.records] == warnings


@pytest.fixture
def refusal(tmp_path):
    def refusal(corpora):
        config = parse_config(get_config())
        data = dataclasses.replace(config.data, corpora=corpora, cache_dir=str(tmp_path / "cache"))
        (tmp_path / "run").mkdir(exist_ok=True)
        with pytest.raises(DataError) as caught:
            prepare_text(dataclasses.replace(config, data=data), Workdir(tmp_path / "run"), Processes())
        return str(caught.value)

    return refusal


def test_a_missing_source_or_folder_of_a_corpus_is_named(refusal, prepared, tmp_path):
    folder = str(
        prepared("web", [f"document {number}\n    of the river " * 20 for number in range(60)])[0].directory
    )
    nowhere = {"b": {"source": "/nowhere"}}
    expected = "config.data.corpora.b.source: input '/nowhere': is not a file, a folder or 'stdlib'"
    assert refusal(nowhere).startswith(expected)
    assert refusal({"a": {"prepared": folder}} | nowhere).startswith(expected)
    for name in "ac":
        corpora = {"b": {"prepared": folder}, name: {"prepared": "/nowhere"}}
        assert refusal(corpora).startswith(
            f"config.data.corpora.{name}.prepared: /nowhere/manifest.json: not found; make it with python"
        )
    assert not (tmp_path / "run" / "text.json").exists()


def test_a_corpus_with_another_tokenizer_is_named(refusal, prepared):
    first, second = (
        str(
            prepared(name, [f"{name} {number}\n    of the river " * 20 for number in range(60)])[
                0
            ].directory
        )
        for name in ("web", "code")
    )
    found = refusal({"a": {"prepared": first}, "b": {"prepared": second}})
    message = f"config.data.corpora.b.prepared: {second}/manifest.json: the shards were made with the token"
    assert found.startswith(message)
