"""Every example occurs once per epoch, rows do not overflow, and padding is small."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.finetuning.packed_epochs import PackedEpochs, pack_lengths


@st.composite
def problems(draw):
    row_length = draw(st.integers(4, 60))
    lengths = draw(st.lists(st.integers(1, row_length), min_size=1, max_size=80))
    return np.array(lengths, np.int64), row_length, draw(st.integers(0, 4))


def rows_of_epoch(packed: PackedEpochs, epoch: int) -> list[list[int]]:
    first = epoch * packed.rows_per_epoch
    return [packed.row(number).tolist() for number in range(first, first + packed.rows_per_epoch)]


@given(problems(), st.integers(0, 2**40))
def test_each_epoch_has_each_example_once_in_rows_with_room(problem, seed):
    lengths, row_length, spacing = problem
    packed = PackedEpochs(lengths, row_length, spacing, seed=seed, key=0)
    for epoch in (0, 1):
        rows = rows_of_epoch(packed, epoch)
        assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
        for row in rows:
            assert lengths[row].sum() + spacing * (len(row) - 1) <= row_length
            assert row
    assert packed.padding_share == pytest.approx(1 - lengths.sum() / (packed.rows_per_epoch * row_length))


@given(problems())
def test_packing_needs_about_the_rows_of_best_fit_decreasing(problem):
    """Packing by histogram is faster and gives nearly the same number of rows."""
    lengths, row_length, spacing = problem
    rooms: list[int] = []
    for length in sorted((lengths + spacing).tolist(), reverse=True):
        fitting = [number for number, room in enumerate(rooms) if room >= length]
        if not fitting:
            rooms.append(row_length + spacing)
            fitting = [len(rooms) - 1]
        rooms[min(fitting, key=lambda number: rooms[number])] -= length
    found = len(pack_lengths(lengths, row_length, spacing).row_ends)
    assert np.ceil((lengths + spacing).sum() / (row_length + spacing)) <= found <= len(rooms) * 1.1 + 1


def test_rows_are_a_function_of_seed_key_and_number():
    lengths = np.random.default_rng(0).integers(2, 40, 200)

    def packed(seed=3, key=1):
        return PackedEpochs(lengths, 64, 3, seed=seed, key=key)

    one, other = packed(), packed()
    # Reading backwards builds epochs again.
    numbers = range(2 * one.rows_per_epoch)
    forwards = [one.row(number).tolist() for number in numbers]
    assert forwards == [other.row(number).tolist() for number in reversed(numbers)][::-1]
    first, second = forwards[: one.rows_per_epoch], forwards[one.rows_per_epoch :]
    for another in (second, rows_of_epoch(packed(seed=4), 0), rows_of_epoch(packed(key=2), 0)):
        assert another != first


def test_each_epoch_shuffles_examples_of_equal_length():
    """Otherwise two examples that share a row would always share it."""
    lengths = np.full(60, 20)
    packed = PackedEpochs(lengths, 66, 3, seed=0, key=0)
    pairs = [{frozenset(row) for row in rows_of_epoch(packed, epoch)} for epoch in range(2)]
    assert packed.rows_per_epoch == 20
    assert len(pairs[0] & pairs[1]) < 3


LENGTHS = {
    "log-normal": lambda random, count: np.exp(random.normal(np.log(300), 1.0, count)),
    "uniform": lambda random, count: random.uniform(16, 2048, count),
    "exponential": lambda random, count: 30 + random.exponential(200, count),
    "heavy tail": lambda random, count: 40 * random.zipf(1.6, count),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_less_than_a_twentieth_of_the_positions_is_padding(name):
    lengths = np.clip(LENGTHS[name](np.random.default_rng(1), 5000), 2, 2048).astype(np.int64)
    assert PackedEpochs(lengths, 2048, 3, seed=0, key=0).padding_share < 0.05
