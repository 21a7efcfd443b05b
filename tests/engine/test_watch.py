"""Which process delays the others, from their published times."""

import itertools
import json
import os
import time

import pytest

from birdie_jax.engine.coordination import Processes
from birdie_jax.engine.watch import Limits, Watch
from birdie_jax.errors import ConfigError
from birdie_jax.storage.workdir import Workdir


class Three(Processes):
    """The first of three processes; the others publish what they take for a step."""

    def __init__(self, others):
        self.index, self.count, self.first = 0, 3, True
        self._others, self._own, self._serials = others, "", itertools.count(1)

    def write(self, topic, text):
        if topic == "beat":
            self._own = text

    def read(self, topic):
        if topic != "beat":
            return {}
        serial = next(self._serials)
        beats = {1 + number: [serial, 0, "", False, seconds] for number, seconds in enumerate(self._others)}
        return {0: self._own} | {index: json.dumps(beat) for index, beat in beats.items()}


@pytest.mark.parametrize(("others", "named"), [((0.9, 0.2), True), ((0.3, 0.2), False), ((0.0, 0.2), None)])
def test_the_slowest_process_is_named_where_it_costs_a_quarter_of_a_step(others, named, tmp_path, caplog):
    with Watch(Three(others), Limits(2, 600), Workdir(tmp_path), ()) as watch:
        deadline = time.monotonic() + 20
        while not (found := watch.compare_hosts(0.1, 1.0)) and time.monotonic() < deadline:
            time.sleep(0.05)
            if named is None and time.monotonic() > deadline - 19:
                break
        watch.compare_hosts(0.1, 1.0)
    if named is None:
        assert found == {}
        return
    assert found == {
        "slowest_process": 1.0,
        "slowest_host_seconds": others[0],
        "median_host_seconds": 0.2,
    }
    warnings = [record.getMessage() for record in caplog.records]
    expected = (
        "process 1 delays the others: it works 0.9 s of each step of 1 s without waiting for its devices, "
    )
    assert warnings == [expected + "the median process 0.2 s"] * named


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (SystemExit(2), 2, ""),
        (KeyboardInterrupt(), 130, "birdie_jax.train: KeyboardInterrupt\n"),
        (ConfigError("config.seed: no"), 2, "birdie_jax.train: config.seed: no\n"),
    ],
)
def test_a_process_of_several_ends_with_the_status_of_one(
    tmp_path, monkeypatch, capsys, *, error, status, said
):
    class EndedError(Exception):
        pass

    def end(found):
        raise EndedError(found)

    monkeypatch.setattr(os, "_exit", end)
    watch = Watch(Three((0.1, 0.1)), Limits(0.2, 600), Workdir(tmp_path), (ConfigError,))
    with pytest.raises(EndedError, match=f"^{status}$"), watch:
        raise error
    watch._over.set()
    assert capsys.readouterr().err == said
