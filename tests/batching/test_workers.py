"""Batches from worker processes: equal batches, waiting, errors, and a clean end."""

import itertools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import grain
import numpy as np
import pytest

from birdie_jax.batching import DecisionSchedule, close_prefetched, prefetch_batches
from birdie_jax.errors import DataError
from birdie_jax.text import TokenShards

_STEPS = 8


def _close(history, iterator) -> None:
    """Close as the train loop does; closing must be fast and leave no process."""
    begin = time.monotonic()
    history.close()
    iterator.close()
    assert time.monotonic() - begin < 15
    assert multiprocessing.active_children() == []


@pytest.mark.slow
@pytest.mark.parametrize("setting", [(1, 1, 0), (2, 4, 0), (2, 1, 3), (4, 1, 5)])
def test_batches_are_those_of_no_worker(run, batches, assert_same_batches, setting):
    workers, prefetch, first_step = setting
    history = run.history()
    stream_states = batches[first_step - 1].stream_states if first_step else None
    streams = run.streams(history, first_step, stream_states)
    iterator = iter(prefetch_batches(streams, workers=workers, prefetch=prefetch))
    assert_same_batches(list(itertools.islice(iterator, _STEPS - first_step)), batches[first_step:_STEPS])
    _close(history, iterator)


@pytest.mark.slow
def test_workers_wait_for_each_mixture_and_end_with_the_history(run, batches, assert_same_batches):
    history = run.history(published=1)
    iterator = iter(prefetch_batches(run.streams(history), workers=2, prefetch=3))
    made = [next(iterator) for _ in range(run.every_steps)]
    waiter = threading.Thread(target=lambda: made.append(next(iterator)))
    waiter.start()
    waiter.join(0.3)
    assert waiter.is_alive()
    # Published only now, so batches made ahead cannot have used it.
    history.publish(run.mixtures[1])
    waiter.join(30)
    made += [next(iterator) for _ in range(run.every_steps - 1)]
    assert_same_batches(made, batches[: 2 * run.every_steps])
    for step, batch in enumerate(made):
        arms = batch.batch.arm_ids[batch.batch.segment_ids > 0]
        assert set(arms.tolist()) <= run.allowed_arms(step)
    # The workers now wait for a mixture that never comes.
    history.close()
    with pytest.raises(StopIteration):
        next(iterator)
    _close(history, iterator)


def _corrupt(folder: Path, copy: Path) -> tuple[TokenShards, str]:
    """Copy a prepared folder with a few bytes changed in the middle of its training shard."""
    shutil.copytree(folder, copy)
    shard = next(copy.glob("train-*.arrayrecord"))
    contents = bytearray(shard.read_bytes())
    middle = len(contents) // 2
    contents[middle : middle + 64] = bytes(64)
    shard.write_bytes(contents)
    return TokenShards(copy, "train"), rf"{shard}: record \d+ is corrupt: "


@pytest.mark.sampled
@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_record_is_named(run, long_folder, tmp_path, workers):
    run.text, message = _corrupt(long_folder, tmp_path / "corrupt")
    run.mixtures[:] = np.eye(len(run.arms))[0]
    history = run.history()
    run.schedule = DecisionSchedule(every_steps=1 << 20, num_steps=1 << 20)
    iterator = iter(prefetch_batches(run.streams(history), workers=workers, prefetch=2))
    with pytest.raises(DataError, match=message):
        for _ in range(1000):
            next(iterator)
    _close(history, iterator)


_TRAINER = """
    import sys, time
    from birdie_jax.batching import DecisionSchedule, MixtureHistory, RowSettings, RowStreams
    from birdie_jax.batching import prefetch_batches
    from birdie_jax.objectives import make_mixture
    from birdie_jax.text import TokenShards

    if __name__ == "__main__":
        mixture = make_mixture("tiny", 256)
        history = MixtureHistory(len(mixture.arms), 2)
        history.publish(mixture.weights)
        streams = RowStreams(
            TokenShards(sys.argv[1], "train"), mixture.arms, RowSettings(0, 2, 256, 3, 4), history,
            first_step=0, schedule=DecisionSchedule(3, 6),
        )
        batches = iter(prefetch_batches(streams, workers=2, prefetch=1))
        next(batches)
        print("ready", flush=True)
        time.sleep(120)
"""


def _session_processes(session: int) -> list[int]:
    """Return the processes of a session, without zombies, which only an init process can reap."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="lists processes by /proc")
def test_workers_leave_signals_to_their_parent_and_end_with_it(long_folder, tmp_path):
    script = tmp_path / "trainer.py"
    script.write_text(textwrap.dedent(_TRAINER))
    with subprocess.Popen(
        [sys.executable, script, long_folder], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as trainer:
        try:
            assert trainer.stdout.readline() == "ready\n"
            processes = _session_processes(trainer.pid)
            assert len(processes) >= 3
            for process in processes:
                # Ctrl-C and Slurm signal all processes; Python's resource tracker ignores this too.
                if process != trainer.pid:
                    os.kill(process, signal.SIGINT)
                    os.kill(process, signal.SIGTERM)
            time.sleep(0.3)
            assert _session_processes(trainer.pid) == processes
        finally:
            trainer.kill()
    deadline = time.monotonic() + 20
    while _session_processes(trainer.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _session_processes(trainer.pid) == []


class Workers(grain.DatasetIterator):
    """Closes its workers one after another, as grain does, and fails at workers that have ended."""

    def __init__(self, gone):
        super().__init__()
        self.left = list(gone)
        self.closed = 0

    def close(self):
        while self.left:
            if self.left.pop(0):
                raise AttributeError("'NoneType' object has no attribute 'is_alive'")
            self.closed += 1

    def __next__(self):
        raise StopIteration

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


@pytest.mark.parametrize("gone", [[False, False], [True, False], [True, True, False], [False, True]])
def test_every_worker_is_stopped_even_if_some_have_failed(gone):
    workers = Workers(gone)
    close_prefetched(workers)
    assert workers.closed == gone.count(False)


def test_another_error_of_close_is_raised():
    workers = Workers([True] * 100)
    with pytest.raises(AttributeError):
        close_prefetched(workers)
    workers.left.clear()
