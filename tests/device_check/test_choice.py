"""The choice of a scan: the fastest correct one, saved by the run and by the machine."""

import json

import pytest

from birdie_jax.config import parse_config
from birdie_jax.device_check import choice
from birdie_jax.device_check.choice import choose_scan, keep_scan
from birdie_jax.device_check.scans import CheckedScan
from birdie_jax.engine.coordination import Processes
from birdie_jax.errors import ConfigError
from birdie_jax.resolve import resolve_run
from birdie_jax.storage.workdir import Workdir
from tests.micro_config import get_config

XLA = CheckedScan("xla", 0.01, "", 0.02)
KERNEL = CheckedScan("pallas_interpret", 0.01, "", 0.01)
WRONG = CheckedScan("pallas_interpret", 0.5, "output is 0.5 from float32; allowed: at most 0.02", None)


@pytest.fixture(scope="module")
def run():
    return resolve_run(parse_config(get_config("fixed")), 300)


@pytest.fixture
def two(monkeypatch, tmp_path):
    """Two implementations to choose from, and a cache for this test."""
    monkeypatch.setattr(choice, "scan_candidates", lambda model, platform: ("xla", "pallas_interpret"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def workdir_of(tmp_path, name: str) -> Workdir:
    workdir = Workdir(tmp_path / name)
    workdir.make()
    return workdir


def test_the_fastest_correct_implementation_is_chosen():
    assert choose_scan([XLA, KERNEL])["implementation"] == "pallas_interpret"
    assert choose_scan([XLA, KERNEL._replace(seconds=None)])["implementation"] == "xla"
    found = choose_scan([XLA, WRONG])
    assert found["implementation"] == "xla"
    assert found["why"] == f"xla 20 ms; pallas_interpret is refused: {WRONG.problem}"


def test_a_run_keeps_its_choice_and_a_machine_its_measurements(run, two, tmp_path):
    checks = []

    def check(model, candidates, rows, length):
        checks.append((candidates, rows, length))
        return [XLA, KERNEL]

    workdir = workdir_of(tmp_path, "run")
    (first,) = keep_scan([run], workdir, Processes(), check)
    assert first.config.model.scan_implementation == first.model.config.scan_implementation
    assert "model.scan_implementation = pallas_interpret (xla 20 ms; pallas_interpret 10 ms)" in (
        first.explanation
    )
    record = json.loads(workdir.scan.read_text())
    workdir.write(workdir.scan, record | {"implementation": "xla"})
    (again,) = keep_scan([run], workdir, Processes(), check)
    assert again.config.model.scan_implementation == "xla"
    # Another run on this machine reads the measurements, except from a damaged file.
    (other,) = keep_scan([run], workdir_of(tmp_path, "other"), Processes(), check)
    assert other.config.model.scan_implementation == "pallas_interpret" and len(checks) == 1
    (cached,) = (tmp_path / "cache").rglob("*.json")
    cached.write_text("{")
    keep_scan([run], workdir_of(tmp_path, "third"), Processes(), check)
    assert len(checks) == 2 and json.loads(cached.read_text())["checked"]


def test_a_run_without_a_correct_implementation_fails(run, two, tmp_path):
    problem = WRONG._replace(implementation="xla")
    with pytest.raises(
        ConfigError, match=r"config\.model\.scan_implementation: no implementation is right"
    ):
        keep_scan([run], workdir_of(tmp_path, "run"), Processes(), lambda *_: [problem, WRONG])


def test_named_and_single_implementations_are_not_checked(run, two, tmp_path):
    named = run.with_model(scan_implementation="xla")
    assert keep_scan([named], Workdir(tmp_path / "none"), Processes()) == (named,)


def test_a_cpu_has_one_implementation(run, tmp_path):
    assert keep_scan([run], Workdir(tmp_path / "none"), Processes()) == (run,)
