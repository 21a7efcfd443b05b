"""One tokenizer for several sources."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from birdie_jax.errors import DataError
from birdie_jax.text import Tokenizer, open_source
from birdie_jax.text import shared_tokenizer as module
from birdie_jax.text.shared_tokenizer import shared_tokenizer
from birdie_jax.text.tokenizer_training import train_tokenizer

SIGNS = {"letters": "a", "digits": "1"}


@pytest.fixture
def sources(tmp_path):
    texts = {"letters": "abc abd abe " * 3000, "digits": "123 124 125 " * 3000}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
    return [open_source(str(tmp_path / f"{name}.txt"), "text") for name in texts]


def test_a_shared_tokenizer_is_trained_on_all_sources_and_cached(sources, tmp_path):
    path = shared_tokenizer(tmp_path / "cache", sources, [1.0, 1.0], 290)
    pieces = Tokenizer(path)
    assert all(len(pieces.encode(text)) <= 4 for text in ("abc abd", "123 124"))
    before = path.stat().st_mtime_ns
    assert shared_tokenizer(tmp_path / "cache", sources, [1.0, 1.0], 290) == path
    assert path.stat().st_mtime_ns == before
    assert shared_tokenizer(tmp_path / "cache", sources, [2.0, 2.0], 290) == path
    assert shared_tokenizer(tmp_path / "cache", sources, [1.0, 2.0], 290) != path


def test_runs_that_start_together_train_one_tokenizer(sources, tmp_path, monkeypatch):
    trained = []
    both_begun = threading.Barrier(2)

    def train(passages, vocab_size, size):
        trained.append(vocab_size)
        with contextlib.suppress(threading.BrokenBarrierError):
            both_begun.wait(0.5)
        return train_tokenizer(passages, vocab_size, size)

    monkeypatch.setattr(module, "train_tokenizer", train)
    with ThreadPoolExecutor() as executor:
        runs = [
            executor.submit(shared_tokenizer, tmp_path / "cache", sources, [1.0, 1.0], 290)
            for _ in range(2)
        ]
        assert len({run.result() for run in runs}) == 1
    assert trained == [290]


def test_the_sample_follows_the_weights(sources, tmp_path, monkeypatch):
    found = []

    def train(passages, vocab_size, size):
        found.extend(passages)
        return train_tokenizer(passages, vocab_size, size)

    monkeypatch.setattr(module, "_SAMPLE_BYTES", 20_000)
    monkeypatch.setattr(module, "train_tokenizer", train)
    shared_tokenizer(tmp_path / "cache", sources, [30.0, 10.0], 290)
    sampled = {name: sum(len(text) for text in found if sign in text) for name, sign in SIGNS.items()}
    assert sampled["letters"] == pytest.approx(15_000, rel=0.2)
    assert sampled["digits"] == pytest.approx(5_000, rel=0.3)


def test_too_little_text_is_refused(sources, tmp_path):
    with pytest.raises(DataError, match="vocab_size=9000 cannot be trained"):
        shared_tokenizer(tmp_path / "cache", sources, [1.0, 1.0], 9000)
