import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from birdie_jax.batching import (
    DecisionSchedule,
    MixtureHistory,
    RowSettings,
    RowStreams,
)
from birdie_jax.objectives import make_mixture
from birdie_jax.text import TokenShards, prepare

STEPS = 14
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _document(generator: random.Random, words: int) -> str:
    return " ".join("".join(generator.choices(_LETTERS, k=generator.randint(2, 5))) for _ in range(words))


def _prepared(folder: Path, words: list[int]) -> Path:
    generator = random.Random(0)
    lines = [json.dumps({"text": _document(generator, count)}) for count in words]
    source = folder / "documents.jsonl"
    source.write_text("\n".join(lines))
    return prepare(
        str(source),
        folder / "prepared",
        tokenizer_type="bpe",
        vocab_size=400,
        sample_bytes=1 << 15,
        record_tokens=4096,
        validation_fraction=0.2,
        workers=0,
        progress=False,
    )


@pytest.fixture(scope="session")
def long_folder(tmp_path_factory) -> Path:
    """Forty documents of about 3,500 to 9,000 tokens."""
    return _prepared(tmp_path_factory.mktemp("long"), [1500 + 60 * number for number in range(40)])


@pytest.fixture(scope="session")
def short_folder(tmp_path_factory) -> Path:
    """Sixty documents of about 10 to 150 tokens."""
    return _prepared(tmp_path_factory.mktemp("short"), [4 + number for number in range(60)])


@pytest.fixture(scope="session")
def long_text(long_folder) -> TokenShards:
    return TokenShards(long_folder, "train")


class ReadingLog(TokenShards):
    """Token shards that record which records are read."""

    def __getitem__(self, index):
        self.__dict__.setdefault("read", []).append(int(index))
        return super().__getitem__(index)


@pytest.fixture
def short_log(short_folder) -> ReadingLog:
    return ReadingLog(short_folder, "train")


@pytest.fixture
def long_validation_log(long_folder) -> ReadingLog:
    return ReadingLog(long_folder, "validation")


class Run:
    """A run with small rows; decision d, every `every_steps` steps, draws only arms d and d + 3."""

    def __init__(self, text: TokenShards, rows: int = 4, every_steps: int = 3, decisions: int = 8):
        self.text = text
        self.arms = make_mixture("tiny", 256).arms
        self.settings = RowSettings(seed=5, rows=rows, length=256, spacing=3, lookahead=6)
        self.every_steps = every_steps
        self.schedule = DecisionSchedule(every_steps, num_steps=decisions * every_steps)
        self.mixtures = np.zeros((decisions, len(self.arms)))
        for decision in range(decisions):
            self.mixtures[decision, [decision % len(self.arms), (decision + 3) % len(self.arms)]] = 0.3, 0.7

    def history(self, published: int | None = None) -> MixtureHistory:
        history = MixtureHistory(len(self.arms), len(self.mixtures))
        for mixture in self.mixtures[:published]:
            history.publish(mixture)
        return history

    def streams(
        self, history: MixtureHistory, first_step: int = 0, stream_states=None, **changes
    ) -> RowStreams:
        settings = self.settings._replace(**changes)
        return RowStreams(
            self.text,
            self.arms,
            settings,
            history,
            first_step=first_step,
            schedule=self.schedule,
            stream_states=stream_states,
        )

    def allowed_arms(self, step: int) -> set[int]:
        return set(np.flatnonzero(self.mixtures[self.schedule.governing(step)]).tolist())


@pytest.fixture
def run(long_text) -> Run:
    return Run(long_text)


@pytest.fixture
def batches(run) -> list:
    """The first batches of `run`, made one at a time."""
    history = run.history()
    made = list(itertools.islice(iter(run.streams(history)), STEPS))
    history.close()
    return made


def _assert_same(found, expected) -> None:
    for made, wanted in zip(found, expected, strict=True):
        for name, ours, theirs in zip(wanted.batch._fields, made.batch, wanted.batch, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=name)
            assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(made.stream_states, wanted.stream_states)


@pytest.fixture
def assert_same_batches() -> Callable[..., None]:
    return _assert_same
