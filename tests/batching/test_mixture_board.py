"""The board: mixtures in order, waiting, closing, and reading from another process."""

import gc
import multiprocessing
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from birdie_jax.batching import MixtureBoard
from birdie_jax.batching.mixture_board import BoardClosed

_FIRST = np.array([0.25, 0.25, 0.5])
_SECOND = np.array([1.0, 0.0, 0.0])


@pytest.fixture(params=["memory file", "named file"])
def board(request, monkeypatch):
    if request.param == "named file":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    board = MixtureBoard(num_arms=3, num_decisions=2)
    yield board
    board.close()


def test_mixtures_come_back_by_decision(board):
    board.publish(_FIRST)
    board.publish(_SECOND.astype(np.float32))
    np.testing.assert_array_equal(board.wait_for(1), _SECOND)
    np.testing.assert_array_equal(board.wait_for(0), _FIRST)
    board.wait_for(0)[:] = 0
    np.testing.assert_array_equal(board.wait_for(0), _FIRST)


def test_a_reader_waits_until_its_mixture_is_there(board):
    board.publish(_FIRST)
    found = []
    reader = threading.Thread(target=lambda: found.append(board.wait_for(1)))
    reader.start()
    reader.join(0.05)
    assert reader.is_alive()
    board.publish(_SECOND)
    reader.join(10)
    np.testing.assert_array_equal(found, [_SECOND])


def test_a_mixture_of_another_shape_is_refused(board):
    with pytest.raises(ValueError, match=r"found a mixture of \(2,\) as number 0; it holds 2 of 3 arms"):
        board.publish(np.array([0.5, 0.5]))


def test_a_full_board_takes_no_more(board):
    board.publish(_FIRST)
    board.publish(_SECOND)
    with pytest.raises(ValueError, match=r"as number 2; it holds 2 of 3 arms"):
        board.publish(_FIRST)


def test_closing_ends_waiting(board):
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(BoardClosed):
            board.wait_for(0)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    assert not ended.wait(0.05)
    board.close()
    assert ended.wait(10)


def test_a_board_leaves_no_file(monkeypatch):
    in_memory = MixtureBoard(num_arms=3, num_decisions=2)
    monkeypatch.delattr(os, "memfd_create", raising=False)
    named = MixtureBoard(num_arms=3, num_decisions=2)
    paths = [Path(in_memory._path), Path(named._path)]
    assert all(path.exists() for path in paths)
    del in_memory, named
    gc.collect()
    assert not any(path.exists() for path in paths)


def _read(board: MixtureBoard, results) -> None:
    results.put(board.wait_for(0))
    try:
        board.wait_for(1)
    except BoardClosed:
        results.put("closed")


def test_a_spawned_process_reads_the_same_board(board):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_read, args=(board, results), daemon=True)
    process.start()
    board.publish(_FIRST)
    np.testing.assert_array_equal(results.get(timeout=60), _FIRST)
    board.close()
    assert results.get(timeout=60) == "closed"
    process.join(60)
    assert process.exitcode == 0
    results.close()
    results.join_thread()
