"""The command `search_mixture` trains proxies, resumes, fits a law and writes a usable configuration."""

import json
import signal
import sys
import time

import pytest

from birdie_jax.config_flag import load_config
from tests.forked_verbs import run_commands
from tests.whole_runs import CONFIG, finish, start, write_corpus

pytestmark = pytest.mark.slow

PROXIES = 3


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    return [
        f"--config={CONFIG}:fixed",
        f"--workdir={folder}/search",
        f"--proxies={PROXIES}",
        f"--config.data.source={write_corpus(folder)}",
        f"--config.data.cache_dir={folder}/prepared",
        "--config.train.num_steps=6",
    ]


@pytest.fixture(scope="module")
def folder(arguments, tmp_path_factory):
    """The folder of a search that stopped in its second proxy, resumed, and finished."""
    folder = tmp_path_factory.getbasetemp() / arguments[1].removeprefix("--workdir=")
    command = [sys.executable, "-m", "birdie_jax.search_mixture", *arguments]
    process = start(command)
    deadline = time.monotonic() + 240
    while not (folder / "proxies/001/metrics.jsonl").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate()
    assert process.returncode == 143 and "proxies have results" not in output, output
    assert not (folder / "mixture.json").exists() and not (folder / "proxies/002").exists()
    first = (folder / "proxies/000/metrics.jsonl").read_bytes()
    status, output = finish(command)
    assert status == 0, output
    assert (folder / "proxies/000/metrics.jsonl").read_bytes() == first
    assert "proxy 0" not in output and "proxy 2, 3 of 3: 0: " in output
    assert "3 of 3 proxies have results\n" in output
    assert f"train on the found mixture: python -m birdie_jax.train --config={folder}/found.py" in output
    return folder


def test_a_search_writes_results_page_and_configuration(folder):
    results = json.loads((folder / "mixture.json").read_text())
    assert [one["number"] for one in results["proxies"]] == [0, 1, 2]
    assert results["warnings"][0].startswith("3 proxies are few for 8 shares; 27 or more")
    assert (folder / "index.html").read_text().count("<svg ") == 2 + 8
    found = load_config(str(folder / "found.py"))
    assert (found.train.num_steps, found.bandit.policy) == (6, "staged")
    assert found.bandit.stages == results["found_stages"]


def test_a_finished_search_trains_nothing(folder, arguments):
    first = (folder / "mixture.json").read_text()
    command = ("train", f"--config={folder}/found.py", f"--workdir={folder}/never", "--check")
    again, only, copying, check = run_commands(
        [
            ("search_mixture", *arguments),
            ("search_mixture", *arguments, "--only=1"),
            ("search_mixture", *arguments, "--objective=copying=1"),
            command,
        ]
    )
    assert [one[0] for one in (again, only, copying, check)] == [0] * 4, (again, only, copying, check)
    assert again == only and "proxy" not in again[2]
    assert again[1] != copying[1]
    assert json.loads(first)["objective"]["causal_lm"] == 1 / 8
    assert json.loads((folder / "mixture.json").read_text())["objective"]["causal_lm"] == 0


def test_wrong_input_is_refused_in_one_line(folder, arguments):
    cases = [
        (
            ("--seed=1",),
            f"{folder}: holds another search; use another --workdir, or its values: --seed: fo",
        ),
        (("--config.train.num_steps=7",), "config.train.num_steps: found 7; allowed: 6"),
        (("--only=3",), "--only: found '3'; allowed: a proxy such as 3, or a range such as 0:8"),
        (("--proxies=2",), "flag --proxies=2: 2 is not an integer in the range [3, 10000]"),
        (("--stages=9",), "flag --stages=9: 9 is not an integer in the range [1, 8]"),
        (("--objective=copyin=1",), "--objective: found the class 'copyin'; allowed: copying, "),
        (("--config.bandit.policy=birdie",), "config.bandit.policy: found 'birdie'; allowed: fixed"),
        ((f"--workdir={folder}/proxies/000",), "holds a run; allowed: a folder of its own"),
        ((f"--workdir={folder}/found.py",), "--workdir="),
        (("--workdir=gs://a/b",), "--workdir: found 'gs://a/b'; allowed: a folder"),
        (("--workdir=",), "found ''; allowed: the name of a file or folder"),
    ]
    results = run_commands([("search_mixture", *arguments, *more) for more, _ in cases])
    for (more, message), (status, output, errors) in zip(cases, results, strict=True):
        assert (status, output) == (2, ""), (more, output, errors)
        (line,) = errors.splitlines()
        assert line.startswith("birdie_jax.search_mixture: ") and message in line, line
