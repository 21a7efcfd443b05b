import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from birdie_jax.storage.object_store import file_system
from birdie_jax.text import Tokenizer, prepare, train_tokenizer
from birdie_jax.text.locations import Location
from tests.text.prepared_folders import json_lines

_WORDS = ("the", "a", "if", "return", "self", "for", "in", "river", "seven", "and", "of", "to", "def")


def texts(count: int, words: int = 60, seed: int = 0) -> list[str]:
    generator = random.Random(seed)
    documents = []
    for number in range(count):
        body = [generator.choice(_WORDS) for _ in range(generator.randint(1, 2 * words))]
        documents.append(f"# {number}\n    " + " ".join(body) + "\n")
    return documents


def write_json_lines(path: Path, documents: list[str]) -> Path:
    path.write_bytes(json_lines(*documents))
    return path


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer(texts(200), 400, tokenizer_type="bpe")


@pytest.fixture(scope="session")
def model_path(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.model"
    tokenizer.save(path)
    return path


@pytest.fixture
def make_texts() -> Callable[..., list[str]]:
    return texts


@pytest.fixture
def make_json_lines() -> Callable[[Path, list[str]], Path]:
    return write_json_lines


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_json_lines(tmp_path / "corpus.jsonl", texts(400))


@pytest.fixture
def settings(model_path: Path) -> dict[str, Any]:
    """Settings of a preparation in this process that makes many small shards."""
    return {
        "tokenizer_model": str(model_path),
        "validation_fraction": 0.2,
        "shard_tokens": 2000,
        "workers": 0,
        "progress": False,
    }


@pytest.fixture
def run(settings: dict[str, Any]) -> Callable[..., Location]:
    """Return a function that prepares a source with these settings and given changes."""

    def prepared(source: str | Path, output: Path, **changes: Any) -> Location:
        return prepare(str(source), output, **(settings | changes))

    return prepared


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Location:
    """A prepared folder of short documents; tests must not change it."""
    folder = tmp_path_factory.mktemp("prepared")
    documents = [f"document {number} " + "the river " * (number % 40) for number in range(300)]
    return prepare(
        str(write_json_lines(folder / "corpus.jsonl", documents)),
        folder / "shards",
        tokenizer_model=str(model_path),
        validation_fraction=0.2,
        record_tokens=32,
        shard_tokens=3000,
        workers=0,
        progress=False,
    )


@pytest.fixture
def upload(bucket_url: str) -> Callable[[Path], str]:
    """Return a function that uploads a folder's files to the bucket and returns their URL."""

    def put(folder: Path) -> str:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                name = f"{bucket_url}/{file.relative_to(folder)}"
                file_system(bucket_url).put_file(str(file), name)
        return bucket_url

    return put
