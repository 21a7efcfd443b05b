"""Validation batches: fixed, with one arm each, and the same text for all arms."""

import numpy as np
import pytest

from birdie_jax.batch import Batch
from birdie_jax.batching import RowSettings, split_into_chunks, validation_batches
from birdie_jax.errors import DataError
from birdie_jax.objectives import make_mixture, mixture_from_arms
from birdie_jax.text import TokenShards

_ARMS = make_mixture("tiny", 256).arms
_SETTINGS = RowSettings(seed=1, rows=3, length=256, spacing=3, lookahead=6)


def test_each_arm_has_its_own_batches(long_folder):
    text = TokenShards(long_folder, "validation")
    batches = validation_batches(text, _ARMS, _SETTINGS, 2)
    assert len(batches) == len(_ARMS)
    for arm, of_arm in enumerate(batches):
        assert len(of_arm) == 2
        for batch in of_arm:
            assert batch.tokens.shape == (3, 256)
            assert set(np.unique(batch.arm_ids)) == ({arm, -1} if (batch.segment_ids == 0).any() else {arm})
            assert batch.loss_mask.any(axis=1).all()
        assert not np.array_equal(of_arm[0].tokens, of_arm[1].tokens)


def test_validation_batches_are_fixed(long_folder):
    first, second = (
        validation_batches(TokenShards(long_folder, "validation"), _ARMS, _SETTINGS, 2) for _ in range(2)
    )
    for of_arm, again in zip(first, second, strict=True):
        for batch, same in zip(of_arm, again, strict=True):
            for field, same_field in zip(batch, same, strict=True):
                np.testing.assert_array_equal(field, same_field)


def test_all_arms_read_the_same_text(long_validation_log):
    assert len(long_validation_log) > 1
    reads = []
    for arm in _ARMS:
        long_validation_log.read = []
        validation_batches(long_validation_log, (arm,), _SETTINGS._replace(rows=1), 60)
        reads.append(list(long_validation_log.read))
    longest = max(reads, key=len)
    assert min(len(read) for read in reads) >= 2
    for read in reads:
        assert read == longest[: len(read)]


def test_the_error_of_too_short_text_names_arm_and_split(short_folder):
    arms = mixture_from_arms({"long_copies": {"objective": "copying", "min_length": 500}}).arms
    text = TokenShards(short_folder, "validation")
    with pytest.raises(DataError, match="no validation record makes an example of arm 'long_copies'"):
        validation_batches(text, arms, _SETTINGS._replace(length=2048), 1)


@pytest.mark.parametrize("rows", [1, 3, 8, 64])
def test_chunks_contain_every_row_once_and_padding(long_folder, rows):
    batches = validation_batches(TokenShards(long_folder, "validation"), _ARMS, _SETTINGS, 2)
    chunks = split_into_chunks(batches, rows)
    assert all(chunk.tokens.shape == (rows, _SETTINGS.length) for chunk in chunks)
    whole = Batch(*(np.concatenate(fields) for fields in zip(*chunks, strict=True)))
    expected = [batch for of_arm in batches for batch in of_arm]
    count = sum(len(batch.tokens) for batch in expected)
    assert len(whole.tokens) - count < rows
    for name, field in whole._asdict().items():
        wanted = np.concatenate([getattr(batch, name) for batch in expected])
        np.testing.assert_array_equal(field[:count], wanted)
        assert field.dtype == wanted.dtype
    assert not whole.loss_mask[count:].any()
    assert (whole.segment_ids[count:] == 0).all()
    assert (whole.arm_ids[count:] == -1).all()
