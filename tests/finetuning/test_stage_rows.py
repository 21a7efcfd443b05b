"""The rows of a stage: recorded examples by epochs, generated ones by seed, step and row."""

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

from birdie_jax.errors import ConfigError, DataError
from birdie_jax.finetuning.stage_rows import make_stage_rows
from birdie_jax.finetuning.stages import Stage
from tests.finetuning.toy_tasks import BackwardWords, GeneratedWords, RecordedWords, Words
from tests.trained_workdirs import small_tokenizer


@pytest.fixture(scope="module")
def recorded():
    return RecordedWords(small_tokenizer(), 40, 24)


def rows_of(examples, *, first_step=0, **fields):
    task = BackwardWords() if isinstance(examples, RecordedWords) else Words()
    settings: dict[str, Any] = {"length": 64, "rows": 4} | fields
    stage = Stage("a", 2, task, **settings)
    return make_stage_rows(stage, examples, seed=5, first_step=first_step, spacing=3)


def drawn(rows, num_rows=4):
    return [[rows.examples(step, row) for row in range(num_rows)] for step in range(rows.num_steps)]


def counts(rows, examples):
    """Return the count of each example in the rows of all steps."""
    found = Counter(
        (example.context.tobytes(), example.target.tobytes())
        for step in drawn(rows)
        for row in step
        for example in row
    )
    return [found[example.context.tobytes(), example.target.tobytes()] for example in examples]


def test_every_example_occurs_once_per_epoch_and_padding_fills_the_last_batch(recorded):
    rows = rows_of(recorded, epochs=3.0)
    assert counts(rows, recorded) == [3] * 40
    *others, last = drawn(rows)
    assert all(row for step in others for row in step)
    empty = [not row for row in last]
    assert any(empty) and not all(empty) and empty == sorted(empty)


def test_the_last_epoch_may_be_partial(recorded):
    whole, half = rows_of(recorded, epochs=1.0), rows_of(recorded, epochs=1.5)
    found = np.array(counts(half, recorded))
    assert set(found.tolist()) == {1, 2}
    assert 10 < (found == 2).sum() < 30
    assert drawn(half)[0] == drawn(whole)[0]


def test_steps_repeat_epochs(recorded):
    per_epoch = rows_of(recorded, epochs=1.0).num_steps
    rows = rows_of(recorded, steps=3 * per_epoch)
    assert rows.num_steps == 3 * per_epoch
    assert min(counts(rows, recorded)) >= 2
    assert all(row for step in drawn(rows) for row in step)


def test_the_smaller_of_epochs_and_steps_counts(recorded):
    rows = rows_of(recorded, epochs=1.0, steps=2)
    assert rows.num_steps == 2
    (share,) = re.findall(r"; (\S+) epochs in 2 steps", rows.description)
    shown = [example for step in drawn(rows) for row in step for example in row]
    assert float(share) == pytest.approx(len(shown) / 40, abs=0.1) and float(share) < 1
    assert rows_of(recorded, epochs=1.0, steps=99).num_steps == rows_of(recorded, epochs=1.0).num_steps


def test_examples_have_the_number_of_their_stage(recorded):
    assert {
        example.arm for step in drawn(rows_of(recorded, epochs=1.0)) for row in step for example in row
    } == {2}


def test_long_examples_are_refused_or_skipped_and_reported(recorded):
    long = np.flatnonzero(np.asarray(recorded.lengths) > 24)
    assert 3 < len(long) < 40
    named = ", ".join(f"example {i + 1} ({recorded.lengths[i]} positions)" for i in long[:3])
    found = f"{len(long)} of 40 examples are longer than a row: {named}, ..."
    message = (
        f"config.finetune.stages.a.length: found 24; {found}; allowed: at least {max(recorded.lengths)}, "
        "or skip_long=True to skip them"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        rows_of(recorded, epochs=1.0, length=24)
    rows = rows_of(recorded, epochs=1.0, length=24, skip_long=True)
    assert rows.description.endswith(f"; skipped because of skip_long: {found}")
    assert counts(rows, recorded) == [0 if number in long else 1 for number in range(40)]


def test_stages_without_examples_are_refused(recorded):
    with pytest.raises(
        DataError, match="the task toy_backward_words has no example; skipped because of skip_long"
    ):
        rows_of(recorded, epochs=1.0, length=4, skip_long=True)
    with pytest.raises(DataError, match=r"^config\.finetune\.stages\.a: .* has no example$"):
        rows_of(RecordedWords(small_tokenizer(), 0, 24), epochs=1.0)


def test_generated_rows_are_functions_of_seed_step_and_row():
    examples = GeneratedWords(small_tokenizer(), 24)
    rows = rows_of(examples, steps=6)
    again = rows_of(examples, steps=3, first_step=3)
    for step in range(3):
        for row in range(4):
            assert_same(again.examples(step, row), rows.examples(step + 3, row))
    firsts = {rows.examples(step, row)[0].target.tobytes() for step in range(6) for row in range(4)}
    assert len(firsts) == 24


def assert_same(found, expected):
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.context, other.context)
        np.testing.assert_array_equal(one.target, other.target)


def test_a_generated_row_is_filled_until_no_example_fits():
    rows = rows_of(GeneratedWords(small_tokenizer(), 24), steps=4)
    lengths = [
        [len(example.context) + len(example.target) for example in row]
        for step in drawn(rows)
        for row in step
    ]
    assert all(sum(row) + 3 * (len(row) - 1) <= 64 for row in lengths)
    assert np.mean([sum(row) for row in lengths]) > 40


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"epochs": 1.0},
            "a.epochs: found 1.0; allowed: no epochs, but steps: the task toy_words generates",
        ),
        ({"steps": 3, "epochs": 1.0}, "a.epochs: found 1.0; allowed: no epochs, but steps"),
        ({"steps": 3, "length": 4}, "a.length: found 4; allowed: rows long enough for an example of"),
    ],
)
def test_invalid_settings_of_generated_examples_are_refused(fields, message):
    with pytest.raises(ConfigError, match=re.escape(f"config.finetune.stages.{message}")):
        rows_of(GeneratedWords(small_tokenizer(), 24), **fields)


class TooLong(GeneratedWords):
    def draw(self, random, max_positions):
        return super().draw(random, 1000)


def test_a_task_that_draws_too_long_examples_is_named():
    with pytest.raises(
        ValueError, match=r"task toy_words: draw returned an example of \d+ positions; allowed: at"
    ):
        drawn(rows_of(TooLong(small_tokenizer(), 24), steps=4))
