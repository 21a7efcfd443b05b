"""Trackers receive what a run logs; whatever they do, the run continues."""

import os
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

from birdie_jax.config import Config, TrainConfig
from birdie_jax.engine.metrics_file import MetricsFile
from birdie_jax.engine.trackers import register_tracker, sending, tracker_names
from birdie_jax.engine.trackers.mlflow_runs import MlflowRuns
from birdie_jax.engine.trackers.registry import TRACKERS, TrackedRun
from birdie_jax.errors import ConfigError
from birdie_jax.storage.workdir import Workdir

CONFIG = {"data": {"source": "gs://bucket/text"}, "seed": 3}


class Recorder:
    """Keeps its calls; fails, ends the interpreter or waits at those that are named."""

    def __init__(self, calls, fails_at=None, waits_at=None):
        self.calls, self.fails_at, self.waits_at = calls, fails_at, waits_at
        if fails_at == "make":
            self._called("make")

    def _called(self, name, *values):
        if name == self.fails_at:
            raise SystemExit(f"{name}: no route to https://me:secret@host")
        if name == self.waits_at:
            threading.Event().wait()
        self.calls.append((name, *values))

    def start(self, run):
        self._called("start", run)

    def log(self, step, scalars):
        self._called("log", step, scalars)

    def finish(self, *, succeeded):
        self._called("finish", succeeded)


@pytest.fixture
def recorded(monkeypatch):
    """Return a function that registers a recorder and returns its calls."""
    monkeypatch.setattr(TRACKERS, "register", TRACKERS.__setitem__)
    added = []

    def add(name, **behaviour):
        calls = []
        register_tracker(name, lambda: Recorder(calls, **behaviour))
        added.append(name)
        return calls

    yield add
    for name in added:
        del TRACKERS[name]


def test_a_tracker_has_the_lines_of_the_metrics_and_one_identity(tmp_path, recorded):
    calls = recorded("recorder")
    workdir = Workdir(tmp_path)
    for _ in range(2):
        with sending(["recorder"], workdir, CONFIG) as on_scalars:
            file = MetricsFile(workdir, 0, on_scalars=on_scalars)
            file.write(1, {"loss": 2.0, "error": float("nan")})
            file.close()
    (_, run), *rest = calls[:3]
    assert rest == [("log", 1, {"loss": 2.0}), ("finish", True)]
    assert run.name == tmp_path.name
    assert run.config["seed"] == 3
    assert calls[3][1].identity == run.identity
    assert Workdir(tmp_path).run_id.read_text().strip() == run.identity


@pytest.mark.parametrize("behaviour", [{"fails_at": at} for at in ("make", "start", "log", "finish")])
def test_only_the_failing_tracker_is_left_out(tmp_path, recorded, behaviour, caplog):
    recorded("failing", **behaviour)
    calls = recorded("recorder")
    with sending(["failing", "recorder"], Workdir(tmp_path), CONFIG) as on_scalars:
        assert on_scalars is not None
        for step in range(5):
            on_scalars(step, {"loss": 1.0})
    assert [name for name, *_ in calls] == ["start", *["log"] * 5, "finish"]
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"tracker failing: {behaviour['fails_at']}: no route to")
    assert "secret" not in warning


@pytest.mark.parametrize("waits_at", ["start", "log", "finish"])
def test_a_hanging_tracker_delays_nothing(tmp_path, recorded, waits_at, caplog, monkeypatch):
    monkeypatch.setattr(sys.modules[sending.__module__], "_FINISHING_SECONDS", 0.2)
    monkeypatch.setattr(sys.modules[sending.__module__], "_MAX_WAITING", 3)
    recorded("hanging", waits_at=waits_at)
    with sending(["hanging"], Workdir(tmp_path), CONFIG) as on_scalars:
        assert on_scalars is not None
        for step in range(3 if waits_at == "finish" else 9):
            on_scalars(step, {"loss": 1.0})
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings[-1] == "tracker hanging: does not end; it may miss the last lines"
    assert len(warnings) == (1 if waits_at == "finish" else 2)


def test_a_failed_run_is_reported_to_the_tracker(tmp_path, recorded):
    calls = recorded("recorder")
    with pytest.raises(ZeroDivisionError), sending(["recorder"], Workdir(tmp_path), CONFIG):
        raise ZeroDivisionError
    assert calls[-1] == ("finish", False)


def test_names_are_checked():
    def names(text):
        return tracker_names(Config(train=TrainConfig(trackers=text)))

    assert names("") == []
    for wrong in ("comet", "mlflow,mlflow"):
        with pytest.raises(
            ConfigError, match=rf"config\.train\.trackers: found '{wrong}'; allowed: .*mlflow"
        ):
            names(wrong)
    with pytest.raises(ConfigError, match=r"mlflow needs mlflow, .*: pip install 'birdie-jax\[mlflow\]'"):
        names("mlflow")


def test_mlflow_finds_its_run_again(monkeypatch):
    """With a stand-in for the library: what it is asked for, in the forms that it takes."""
    asked, runs = [], []

    class Client:
        def __getattr__(self, name):
            def call(*values, **named):
                asked.append((name, values, named))
                if name == "search_runs":
                    return [types.SimpleNamespace(info=types.SimpleNamespace(run_id=run)) for run in runs]
                if name == "create_run":
                    runs.append("r1")
                return types.SimpleNamespace(experiment_id="7", info=types.SimpleNamespace(run_id="r1"))

            return call

    entities = types.ModuleType("mlflow.entities")
    entities.Metric = lambda name, value, timestamp, step: (name, value, step)  # pyright: ignore[reportAttributeAccessIssue]
    library = types.ModuleType("mlflow")
    library.MlflowClient = Client  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "mlflow", library)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    for _ in range(2):
        tracker = MlflowRuns()
        tracker.start(TrackedRun("run", "0123456789abcdef", "/tmp", {"seed": 3}))
        tracker.log(4, {f"arm/a,{number}/loss": 1.0 for number in range(1500)})
        tracker.finish(succeeded=True)
    assert [name for name, _, _ in asked].count("create_run") == 1
    batches = [named["metrics"] for name, _, named in asked if name == "log_batch"]
    assert [len(batch) for batch in batches] == [1000, 500] * 2
    assert batches[0][0] == ("arm/a_0/loss", 1.0, 4)


@pytest.mark.slow
def test_weights_and_biases_offline(tmp_path):
    """With the library itself; a resumed run has the identity of the first."""
    packages = os.environ.get("BIRDIE_TRACKERS", "")
    if not packages:
        pytest.skip("BIRDIE_TRACKERS is not set; tests/run.sh sets it")
    program = """
from birdie_jax.engine.trackers import sending
from birdie_jax.storage.workdir import Workdir
with sending(["wandb"], Workdir("run"), {"seed": 3}) as on_scalars:
    on_scalars(1, {"arm/copying/loss": 1.0})
"""
    (tmp_path / "run").mkdir()
    ours = {"PYTHONPATH": os.pathsep.join([packages, *sys.path]), "WANDB_MODE": "offline"}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            cwd=tmp_path,
            env=os.environ | ours,
            capture_output=True,
            text=True,
        )
        assert "nothing more is sent" not in done.stderr
    identity = (tmp_path / "run" / "run_id").read_text().strip()
    written = sorted(Path(tmp_path, "run", "wandb").glob(f"offline-run-*-{identity}/*.wandb"))
    assert len(written) in (1, 2)  # Both starts may fall within a second.
    assert b"arm/copying/loss" in written[0].read_bytes()
