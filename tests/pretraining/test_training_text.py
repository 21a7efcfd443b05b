import json

import pytest

from birdie_jax.engine.coordination import Processes
from birdie_jax.errors import DataError
from birdie_jax.pretraining.training_text import check_same_text
from birdie_jax.text import TokenShards, prepare


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
