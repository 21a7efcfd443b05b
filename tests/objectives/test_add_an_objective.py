"""An objective that is registered outside the package works like a built-in objective."""

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from birdie_jax.batching import RowSettings, RowStream, pack_rows
from birdie_jax.config import default_config, parse_config
from birdie_jax.errors import ConfigError
from birdie_jax.objectives import (
    OBJECTIVES,
    Arm,
    Example,
    Objective,
    make_objective,
    mixture_from_arms,
    register_objective,
)
from birdie_jax.pretraining.arm_samples import check_answer
from birdie_jax.text import TokenShards, prepare
from birdie_jax.vocabulary import SEPARATOR, START


@pytest.fixture
def reversal():
    @register_objective
    @dataclass(frozen=True, kw_only=True)
    class Reversal(Objective):
        """Write a text backwards, `times` times."""

        name: ClassVar[str] = "reversal"

        marker: int | None = 40
        times: int = 1

        def example_length(self, count):
            return 1 + count + self.times * count

        def assemble(self, tokens, rng, ends_document):
            marker = np.array([self.marker], np.int32)
            return Example(np.concatenate([marker, tokens]), np.tile(tokens[::-1], self.times))

    yield Reversal
    del OBJECTIVES["reversal"]


@pytest.fixture
def text(tmp_path):
    source = tmp_path / "text"
    source.mkdir()
    for number in range(12):
        (source / f"{number}.txt").write_text(f"document {number} has words and words again. " * 20)
    settings = {"tokenizer_type": "bpe", "vocab_size": 310, "validation_fraction": 0.3, "workers": 0}
    folder = prepare(str(source), tmp_path / "prepared", progress=False, **settings)
    return TokenShards(folder, "train")


def test_make_objective_checks_the_fields(reversal):
    objective = make_objective("reversal", times=2, max_length=3)
    example = objective(np.arange(300, 310), np.random.default_rng(0))
    np.testing.assert_array_equal(example.context, [40, 300, 301, 302])
    np.testing.assert_array_equal(example.target, [302, 301, 300, 302, 301, 300])
    with pytest.raises(ValueError, match=r"^reversal: times: found 'two' \(str\); allowed: int$"):
        make_objective("reversal", times="two")
    with pytest.raises(ValueError, match=r"^reversal: parameter 'loops' is unknown; allowed: .*times$"):
        make_objective("reversal", loops=2)


def test_a_row_stream_packs_an_arm_of_a_config(reversal, text):
    config = default_config()
    config.objectives.arms = {
        "backwards": {"objective": "reversal", "max_length": 10, "group": "copying", "weight": 3.0}
    }
    mixture = mixture_from_arms(parse_config(config).objectives.arms)
    assert mixture.groups == ("copying",)
    stream = RowStream(
        text, mixture.arms, RowSettings(seed=0, rows=1, length=64, spacing=2, lookahead=2), 0
    )
    stream.set_mixture(mixture.weights)
    batch = pack_rows([stream.next_row()], 64, 2)
    first = np.flatnonzero(batch.segment_ids[0] == 1)
    read = batch.tokens[0, first][batch.bidirectional[0, first]]
    written = batch.targets[0, first][batch.loss_mask[0, first]]
    assert len(written) == 10 and read[0] == 40
    np.testing.assert_array_equal(written, read[:0:-1])
    assert batch.tokens[0, first][~batch.bidirectional[0, first]][0] == START
    assert batch.segment_ids.max() >= 2


def test_an_undeclared_special_token_is_refused(reversal):
    class Separated(reversal):
        """Reversal with [SEP] at the end."""

        def assemble(self, tokens, rng, ends_document):
            example = super().assemble(tokens, rng, ends_document)
            return Example(example.context, np.append(example.target, SEPARATOR).astype(np.int32))

    class Named(Separated):
        """The same objective, with the token declared."""

        def answer_special_tokens(self, context):
            return (SEPARATOR,)

    for kind in (Separated, Named):
        arm = Arm("backwards", kind(), "copying")
        example = arm.objective(np.arange(300, 310), np.random.default_rng(0))
        if kind is Named:
            check_answer(arm, example)
            continue
        message = (
            "arm backwards: found [SEP] in a target; allowed: [EOS], as answer_special_tokens of the "
            "objective reversal returns"
        )
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
            check_answer(arm, example)
