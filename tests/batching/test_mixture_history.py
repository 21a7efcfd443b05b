"""The mixture history: order, waiting, closing, and reading from another process."""

import gc
import multiprocessing
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from birdie_jax.batching import MixtureHistory
from birdie_jax.errors import HistoryClosed

_FIRST = np.array([0.25, 0.25, 0.5])
_SECOND = np.array([1.0, 0.0, 0.0])


@pytest.fixture(params=["memory file", "named file"])
def history(request, monkeypatch):
    if request.param == "named file":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    history = MixtureHistory(num_arms=3, num_decisions=2)
    yield history
    history.close()


def test_mixtures_are_read_by_decision(history):
    history.publish(_FIRST)
    history.publish(_SECOND.astype(np.float32))
    np.testing.assert_array_equal(history.wait_for(1), _SECOND)
    np.testing.assert_array_equal(history.wait_for(0), _FIRST)
    history.wait_for(0)[:] = 0
    np.testing.assert_array_equal(history.wait_for(0), _FIRST)


def test_a_reader_waits_until_its_mixture_is_there(history):
    history.publish(_FIRST)
    found = []
    reader = threading.Thread(target=lambda: found.append(history.wait_for(1)))
    reader.start()
    reader.join(0.05)
    assert reader.is_alive()
    history.publish(_SECOND)
    reader.join(10)
    np.testing.assert_array_equal(found, [_SECOND])


def test_a_mixture_of_another_shape_is_refused(history):
    with pytest.raises(ValueError, match=r"found a mixture of \(2,\) as number 0; it holds 2 of 3 arms"):
        history.publish(np.array([0.5, 0.5]))


def test_a_full_history_refuses_a_mixture(history):
    history.publish(_FIRST)
    history.publish(_SECOND)
    with pytest.raises(ValueError, match=r"as number 2; it holds 2 of 3 arms"):
        history.publish(_FIRST)


def test_closing_ends_waiting(history):
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(HistoryClosed):
            history.wait_for(0)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    assert not ended.wait(0.05)
    history.close()
    assert ended.wait(10)


@pytest.mark.slow
def test_a_history_leaves_no_file(monkeypatch):
    in_memory = MixtureHistory(num_arms=3, num_decisions=2)
    monkeypatch.delattr(os, "memfd_create", raising=False)
    named = MixtureHistory(num_arms=3, num_decisions=2)
    paths = [Path(in_memory._path), Path(named._path)]
    assert all(path.exists() for path in paths)
    del in_memory, named
    gc.collect()
    assert not any(path.exists() for path in paths)


def _read(history: MixtureHistory, results) -> None:
    results.put(history.wait_for(0))
    try:
        history.wait_for(1)
    except HistoryClosed:
        results.put("closed")


@pytest.mark.slow
def test_a_spawned_process_reads_the_same_history(history):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_read, args=(history, results), daemon=True)
    process.start()
    history.publish(_FIRST)
    np.testing.assert_array_equal(results.get(timeout=60), _FIRST)
    history.close()
    assert results.get(timeout=60) == "closed"
    process.join(60)
    assert process.exitcode == 0
    results.close()
    results.join_thread()
