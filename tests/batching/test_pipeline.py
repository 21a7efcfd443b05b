"""Batches depend only on seed and mixtures, not on processes, prefetch or restarts."""

import itertools
import threading

import grain
import numpy as np
import pytest
from grain.experimental import assert_equal_output_after_checkpoint

from birdie_jax.batching import prefetch_batches
from tests.batching.conftest import STEPS


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_batches_do_not_depend_on_prefetch(run, batches, assert_same_batches, prefetch):
    history = run.history()
    iterator = iter(prefetch_batches(run.streams(history), workers=0, prefetch=prefetch))
    assert_same_batches(list(itertools.islice(iterator, STEPS)), batches)
    history.close()
    iterator.close()


def test_batches_depend_on_the_seed(run, batches):
    history = run.history()
    other = next(iter(run.streams(history, seed=6)))
    history.close()
    assert not np.array_equal(other.batch.tokens, batches[0].batch.tokens)
    rows = batches[0].batch.tokens
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_a_process_makes_only_its_own_rows(run, batches):
    history = run.history()
    streams = run.streams(history)
    streams.rows, streams.stream_states = [1, 3], streams.stream_states[[1, 3]]
    for made, whole in zip(iter(streams), batches, strict=False):
        np.testing.assert_array_equal(made.batch.tokens, whole.batch.tokens[[1, 3]])
        np.testing.assert_array_equal(made.stream_states, whole.stream_states[[1, 3]])
    history.close()


def test_a_batch_contains_only_arms_of_its_mixture(run, batches):
    for step, made in enumerate(batches):
        arms = made.batch.arm_ids[made.batch.segment_ids > 0]
        assert set(arms.tolist()) <= run.allowed_arms(step)
    assert run.allowed_arms(2).isdisjoint(run.allowed_arms(3))
    # The test requires buffered examples when the mixture changes.
    assert (batches[2].stream_states[:, 3] >= 0).all()


@pytest.mark.parametrize("step", range(1, 10))
def test_a_restored_pipeline_continues_bit_for_bit(run, batches, assert_same_batches, step):
    history = run.history()
    streams = run.streams(history, first_step=step, stream_states=batches[step - 1].stream_states)
    rest = list(itertools.islice(iter(streams), STEPS - step))
    history.close()
    assert_same_batches(rest, batches[step:])


def test_grain_finds_equal_output_after_every_checkpoint(run):
    history = run.history()
    dataset = grain.experimental.LimitIterDataset(run.streams(history), count=8)
    assert_equal_output_after_checkpoint(dataset)
    history.close()


@pytest.mark.parametrize("prefetch", [1, 8])
def test_batches_wait_for_the_mixture_of_their_decision(run, batches, assert_same_batches, prefetch):
    history = run.history(published=1)
    iterator = iter(prefetch_batches(run.streams(history), workers=0, prefetch=prefetch))
    made = [next(iterator) for _ in range(run.every_steps)]
    waiter = threading.Thread(target=lambda: made.append(next(iterator)))
    waiter.start()
    waiter.join(0.2)
    assert waiter.is_alive()
    assert len(made) == run.every_steps
    history.publish(run.mixtures[1])
    waiter.join(10)
    assert not waiter.is_alive()
    assert_same_batches(made, batches[: run.every_steps + 1])
    history.close()
    iterator.close()


def test_closing_the_history_ends_waiting_makers(run):
    history = run.history(published=1)
    iterator = iter(prefetch_batches(run.streams(history), workers=0, prefetch=2))
    for _ in range(run.every_steps):
        next(iterator)
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(StopIteration):
            next(iterator)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    assert not ended.wait(0.1)
    history.close()
    assert ended.wait(10)
    iterator.close()
    assert not [thread for thread in threading.enumerate() if "prefetch" in thread.name]


def test_workers_must_divide_the_rows(run):
    history = run.history()
    with pytest.raises(ValueError, match="workers: found 3 for 4 rows; allowed: 0 or a divisor of 4"):
        prefetch_batches(run.streams(history), workers=3, prefetch=1)
    history.close()
