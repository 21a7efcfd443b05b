"""A run by URL ends like one on a disk: killed, on another mesh, and in two processes."""

import json
import os
import re
import signal
import time

import fsspec
import numpy as np
import pytest

from birdie_jax.config import CheckpointConfig
from birdie_jax.engine.checkpoint import Checkpoints
from birdie_jax.errors import CheckpointError
from birdie_jax.storage import list_files, make_path, read_bytes, upload
from birdie_jax.storage.workdir import Workdir
from tests.engine.test_checkpoint import POSITION, make_state
from tests.engine.test_several_processes import STEPS, check_same, start
from tests.failing_proxy import run_failing_proxy
from tests.forked_verbs import run_commands
from tests.gcs_server import BUCKET, gcs_environment, run_gcs_server
from tests.whole_runs import checkpoint_arrays, fetch_workdir, metrics, write_corpus

pytestmark = pytest.mark.slow
TEXT = f"gs://{BUCKET}/text"
BY_URL = [f"--config.data.prepared={TEXT}"]
ONE_DEVICE = ["--config.mesh.data=1", "--config.mesh.fsdp=1"]


@pytest.fixture(scope="module", autouse=True)
def proxy(tmp_path_factory):
    """A proxy that knows every request to the server that the libraries find here and in children."""
    folder = tmp_path_factory.mktemp("gcs")
    with (
        run_failing_proxy() as proxy,
        run_gcs_server(folder, public_host=proxy.host) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        proxy.upstream = server.host
        for name, value in gcs_environment(f"http://{proxy.host}").items():
            patch.setenv(name, value)
        fsspec.filesystem("gcs").clear_instance_cache()
        yield proxy
        fsspec.filesystem("gcs").clear_instance_cache()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def on_disk(proxy, corpus, tmp_path_factory):
    """The workdir of a run on a disk that nothing disturbed; its text is in the bucket, too."""
    workdir = tmp_path_factory.mktemp("disk")
    job = start(workdir, corpus, 1, devices=1, overrides=ONE_DEVICE)
    assert job.statuses() == [0]
    (prepared,) = (corpus.parent / "prepared").iterdir()
    put(prepared, TEXT)
    assert proxy.requests_outside("text/") == []
    return workdir


@pytest.fixture(scope="module")
def killed(proxy, on_disk, corpus):
    """The workdir of a run that was killed; it asks for nothing but itself and its text."""
    workdir = Workdir(f"gs://{BUCKET}/killed")
    others = len(proxy.requests_outside("killed/", "text/"))
    options = [*BY_URL, *ONE_DEVICE]
    job = start(str(workdir), corpus, 1, devices=1, overrides=options)
    wait_for_checkpoint(workdir, 4, job)
    job.processes[0].kill()
    assert job.statuses() == [-signal.SIGKILL]
    job = start(str(workdir), corpus, 1, devices=1, overrides=options, preparations=())
    assert job.statuses() == [0]
    assert f"report: {workdir}/report.html" in job.output[0]
    assert len(proxy.requests) > 300
    assert proxy.requests_outside("killed/", "text/")[others:] == []
    return workdir


def put(folder, url):
    """Copy a folder into the bucket."""
    for name in list_files(folder):
        upload(folder / name, make_path(url) / name)


def wait_for_checkpoint(workdir, step, job):
    deadline = time.monotonic() + 200
    while not any(saved >= step for saved in workdir.saved_steps()):
        assert time.monotonic() < deadline, job.output
        assert job.processes[0].poll() is None, job.output
        time.sleep(0.05)


@pytest.mark.slow
def test_killed_it_ends_bit_for_bit_like_one_on_a_disk(killed, on_disk, tmp_path):
    copied = fetch_workdir(killed, tmp_path)
    assert metrics(copied) == metrics(on_disk)
    found, expected = (checkpoint_arrays(folder, STEPS) for folder in (copied, on_disk))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_it_resumes_in_two_processes_and_on_another_mesh(proxy, on_disk, corpus, tmp_path):
    """From a run on a disk that was copied into the bucket after its fourth step."""
    workdir = Workdir(f"gs://{BUCKET}/moved")
    others = len(proxy.requests_outside("moved/", "text/"))
    for name in list_files(on_disk):
        step = re.match(r"checkpoints/(\d+)/", name)
        if step is None or int(step.group(1)) <= 4:
            upload(on_disk / name, workdir.root / name)
    assert workdir.saved_steps() == [2, 4]
    job = start(str(workdir), corpus, 2, devices=2, overrides=BY_URL)
    job.wait_for_step(6)
    job.processes[1].send_signal(signal.SIGTERM)
    assert job.statuses() == [143, 143]
    assert "resumes from step 4," in job.output[0]
    step = workdir.saved_steps()[-1]
    assert 6 <= step < STEPS
    other_mesh = ["--config.mesh.data=2", "--config.mesh.fsdp=1"]
    job = start(str(workdir), corpus, 1, devices=2, overrides=[*BY_URL, *other_mesh])
    assert job.statuses() == [0]
    assert f"resumes from step {step}," in job.output[0]
    assert proxy.requests_outside("moved/", "text/")[others:] == []
    check_same(fetch_workdir(workdir, tmp_path), on_disk)


def test_everything_that_a_run_names_may_be_a_url(proxy, killed, corpus, tmp_path, monkeypatch):
    """Text, its cache, the parameters it begins with, compiled programs, and a trace."""
    url, prefixes = f"gs://{BUCKET}", ("second/", "corpus/", "cache/", "killed/", "compiled/")
    upload(corpus, make_path(f"{url}/corpus/{corpus.name}"))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", f"{url}/compiled")
    others = len(proxy.requests_outside(*prefixes))
    workdir = Workdir(f"{url}/second")
    overrides = [
        *ONE_DEVICE,
        f"--config.data.source={url}/corpus/{corpus.name}",
        f"--config.data.cache_dir={url}/cache",
        f"--config.init.from={killed}",
        "--config.train.profile=2:3",
        # The parameters stay what they were.
        *("--config.optimizer.learning_rate=1e-30", "--config.optimizer.final_learning_rate=1e-30"),
    ]
    job = start(str(workdir), corpus, 1, devices=1, overrides=overrides)
    assert job.statuses() == [0]
    assert f"init.from: {killed} step {STEPS}: loaded" in job.output[0]
    assert proxy.requests_outside(*prefixes)[others:] == []
    assert any(name.endswith("-cache") for name in list_files(make_path(f"{url}/compiled")))
    assert any(name.endswith(".xplane.pb") for name in list_files(workdir.tensorboard))
    assert any(name.endswith("manifest.json") for name in list_files(make_path(f"{url}/cache")))
    first, second = (json.loads(read_bytes(each.text))["sha256"] for each in (killed, workdir))
    assert first == second
    folders = [fetch_workdir(each, tmp_path / each.root.name) for each in (killed, workdir)]
    source, found = (checkpoint_arrays(folder, STEPS) for folder in folders)
    for name, value in source.items():
        if name.startswith("state/params/"):
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-20, err_msg=name)
    assert not os.path.exists("gs:")


def test_verbs_read_and_write_a_run_by_its_url(proxy, killed):
    url, prefixes = f"gs://{BUCKET}", ("killed/", "exported/", "programs/")
    others = len(proxy.requests_outside(*prefixes))
    answer = ["--prompt=ab", "--max_tokens=4"]
    questions = "phonebook:min_entries=2,max_entries=2,max_numbers=1,number_format=####,num_questions=2"
    cache = {
        "JAX_COMPILATION_CACHE_DIR": f"{url}/programs",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    }
    commands = [
        ["export", f"--workdir={killed}", f"--output={url}/exported"],
        ["generate", f"--model={url}/exported", *answer],
        ["generate", f"--workdir={killed}", *answer],
        ["evaluate", f"--workdir={killed}", f"--task={questions}", f"--json={url}/exported/scores.json"],
        ["report", f"--workdir={killed}"],
    ]
    done = run_commands(commands, **cache)
    assert [status for status, _, _ in done] == [0] * len(commands), done
    assert done[1][1] == done[2][1]
    (score,) = json.loads(read_bytes(f"{url}/exported/scores.json"))["evaluations"]
    kept = killed.evaluation(score["model"]["step"], "phonebook")
    assert json.loads(read_bytes(kept))["metrics"] == score["metrics"]
    assert proxy.requests_outside(*prefixes)[others:] == []
    programs = [each for each in proxy.requests if each.object_name.endswith("-cache")]
    mine = [each for each in programs if each.object_name.startswith("programs/")]
    written = {each.object_name for each in mine if each.method == "POST"}
    read = {each.object_name for each in mine if each.path.startswith("/download/")}
    # The second answer takes what the first one compiled; their checksums are programs of one each.
    assert any("prefill" in name for name in read)
    assert read <= written


def test_a_pending_checkpoint_delays_nothing_and_its_failure_is_reported(proxy):
    workdir = Workdir(f"gs://{BUCKET}/slow")
    checkpoints = Checkpoints(workdir, CheckpointConfig())
    before = len(proxy.requests)
    proxy.hang(method="POST", path="_CHECKPOINT_METADATA")
    checkpoints.save(make_state(), POSITION, 4)
    while not any(each.status == 0 for each in proxy.requests[before:]):
        checkpoints.check()
    checkpoints.check()
    assert workdir.saved_steps() == []
    # Otherwise this has waited until the store was given up, and its request was made anew.
    assert sum(each.status == 0 for each in proxy.requests[before:]) == 1
    proxy.heal()
    checkpoints.wait()
    assert workdir.saved_steps() == [4]
    proxy.answer(403, method="POST", path="00000008.*commit_success")
    checkpoints.save(make_state(), POSITION, 8)
    deadline = time.monotonic() + 60
    with pytest.raises(CheckpointError, match="the checkpoint of step 8 could not be written"):
        while time.monotonic() < deadline:
            checkpoints.check()
    proxy.heal()
    assert workdir.saved_steps() == [4]
    checkpoints.close()
