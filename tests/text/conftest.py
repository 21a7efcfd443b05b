import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gcsfs
import pytest

from birdie_jax.storage.object_store import file_system
from birdie_jax.text import Tokenizer, prepare, train_tokenizer
from birdie_jax.text.locations import Location
from tests.gcs_server import BUCKET, GcsServer, run_gcs_server
from tests.unprivileged import make_unprivileged_folder

_WORDS = ("the", "a", "if", "return", "self", "for", "in", "river", "seven", "and", "of", "to", "def")


def texts(count: int, words: int = 60, seed: int = 0) -> list[str]:
    generator = random.Random(seed)
    documents = []
    for number in range(count):
        body = [generator.choice(_WORDS) for _ in range(generator.randint(1, 2 * words))]
        documents.append(f"# {number}\n    " + " ".join(body) + "\n")
    return documents


def write_json_lines(path: Path, documents: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text, "meta": {"n": 1}}) + "\n" for text in documents))
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
    """Settings of a preparation that makes many shards of little text, in this process."""
    return {
        "tokenizer_model": str(model_path),
        "validation_fraction": 0.2,
        "shard_tokens": 2000,
        "workers": 0,
        "progress": False,
    }


@pytest.fixture
def run(settings: dict[str, Any]) -> Callable[..., Location]:
    """Return the function that prepares a source with these settings, or changed ones."""

    def prepared(source: str | Path, output: Path, **changes: Any) -> Location:
        return prepare(str(source), output, **(settings | changes))

    return prepared


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Location:
    """A folder of short documents; nobody changes it."""
    folder = tmp_path_factory.mktemp("prepared")
    with (folder / "corpus.jsonl").open("w") as file:
        for number in range(300):
            file.write(json.dumps({"text": f"document {number} " + "the river " * (number % 40)}) + "\n")
    return prepare(
        str(folder / "corpus.jsonl"),
        folder / "shards",
        tokenizer_model=str(model_path),
        validation_fraction=0.2,
        record_tokens=32,
        shard_tokens=3000,
        workers=0,
        progress=False,
    )


@pytest.fixture
def unprivileged_folder() -> Iterator[Path]:
    with make_unprivileged_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """A server of the Cloud Storage protocol, found by the libraries of this process."""
    with run_gcs_server(tmp_path_factory.mktemp("gcs")) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        gcsfs.GCSFileSystem.clear_instance_cache()
        yield server
        gcsfs.GCSFileSystem.clear_instance_cache()


@pytest.fixture
def upload(gcs: GcsServer) -> Callable[[Path, str], str]:
    """Return the function that puts a folder's files into the bucket, and returns their URL."""

    def put(folder: Path, name: str) -> str:
        url = f"gs://{BUCKET}/{name}"
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                file_system(url).put_file(str(file), f"{url}/{file.relative_to(folder)}")
        return url

    return put
