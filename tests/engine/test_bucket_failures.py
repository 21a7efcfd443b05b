"""Runs in a bucket of a failing store print one line of error, lose no saved step, and end the same."""

import re
import secrets
import threading
from typing import NamedTuple

import numpy as np
import pytest

from birdie_jax.engine import Workdir
from birdie_jax.engine.lease import Lease
from birdie_jax.errors import ConfigError
from birdie_jax.storage import download, is_remote, list_files, list_names, make_path, upload
from birdie_jax.text import prepare
from tests.at_once import run_at_once
from tests.failing_proxy import FailingProxy, run_failing_proxy
from tests.forked_verbs import ForkedVerbs
from tests.gcs_server import BUCKET, GcsServer, gcs_environment, run_gcs_server
from tests.whole_runs import CONFIG, checkpoint_arrays, metrics, write_corpus

pytestmark = pytest.mark.slow

STEPS = 8
SECRET = "s3cretvalue0"
SAID = f"sa@x has no access: token={SECRET}, Bearer {SECRET}, ya29.{SECRET}"
# The last one is of tensorstore, which looks for credentials once.
_WARNINGS = (
    r"cannot be given up|is read record by record|takes its place|cannot be copied|cannot be renewed"
    r"|is not recorded|google_auth_provider"
)


class Store(NamedTuple):
    """A bucket with text, seen through a proxy, and commands that use it.

    Attributes:
        proxy: where its clients connect to.
        server: the server itself.
        verbs: runs commands, whose requests have short limits.
        text: the prepared text in the bucket.
        local_text: the same on a disk.
    """

    proxy: FailingProxy
    server: GcsServer
    verbs: ForkedVerbs
    text: str
    local_text: str

    def train(self, workdir, *more):
        """Return exit status, stdout and stderr of a run."""
        return self.verbs.run(
            "train", *arguments(self.text if is_remote(workdir) else self.local_text, workdir), *more
        )

    def fails(self, workdir, *faults, more=()):
        """Return the line that a run ends with while the store fails."""
        for fault, *given in faults:
            getattr(self.proxy, fault)(*given)
        status, stdout, stderr = self.train(workdir, *more)
        self.proxy.heal()
        assert status == 1, stdout + stderr
        assert "Traceback" not in stdout + stderr and SECRET not in stdout + stderr
        return error_line("train", stderr)


def error_line(verb, stderr):
    """Return the last line of a command's output, which may follow only warnings of one line each."""
    *others, line = stderr.splitlines()
    assert line.startswith(f"birdie_jax.{verb}: ") and len(line) < 1000
    assert all(re.search(_WARNINGS, other) for other in others), others
    return line


def arguments(text, workdir):
    return [
        *(f"--config={CONFIG}:fixed", f"--workdir={workdir}", f"--config.data.prepared={text}"),
        *(f"--config.train.num_steps={STEPS}", "--config.data.mirror_gib=1"),
    ]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    settings = {"vocab_size": 300, "record_tokens": 512, "validation_fraction": 0.3}
    local = prepare(str(write_corpus(folder)), folder / "text", workers=0, progress=False, **settings)
    with (
        pytest.MonkeyPatch.context() as patch,
        run_failing_proxy() as proxy,
        run_gcs_server(folder, public_host=proxy.host) as server,
    ):
        proxy.upstream = server.host
        proxy.reason = SAID
        for name, value in gcs_environment(f"http://{proxy.host}").items():
            patch.setenv(name, value)
        text = f"gs://{BUCKET}/text"
        for name in list_files(local):
            upload(local / name, make_path(text) / name)
        environment = {"XDG_CACHE_HOME": str(folder / "cache")}
        verbs = ForkedVerbs("tests.short_retries", "tests.without_reports", **environment)
        yield Store(proxy, server, verbs, text, str(local))


@pytest.fixture
def url(store):
    yield f"gs://{BUCKET}/{secrets.token_hex(8)}"
    store.proxy.heal()


@pytest.fixture(scope="module")
def undisturbed(store, tmp_path_factory):
    """A run on a disk."""
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    status, stdout, stderr = store.train(workdir)
    assert status == 0, stdout + stderr
    return workdir


def check_same_end(url, workdir, folder):
    """Compare a run in a bucket with one on a disk, bit for bit."""
    for name in list_files(url):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        download(f"{url}/{name}", folder / name)
    assert metrics(folder) == metrics(workdir)
    expected = checkpoint_arrays(workdir, STEPS)
    found = checkpoint_arrays(folder, STEPS)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_temporary_failures_change_nothing(store, undisturbed, url, tmp_path):
    """Bursts of them, from the first request to the last."""
    proxy = store.proxy
    before = len(proxy.requests)
    for place in ("text/manifest.json", "config.json", "metrics.jsonl", "metrics/", "summary.json"):
        proxy.answer(503, "*", place, 2)
        proxy.reset_answer("*", place, 1)
        proxy.answer(429, "*", place, 1)
        proxy.reset_request("*", place, 1)
    for number in (4, 8):
        proxy.answer(503, "*", f"checkpoints/0000{number:04}", 3)
        proxy.answer(429, "*", f"checkpoints/0000{number:04}/state", 2)
        proxy.reset_request("*", f"checkpoints/0000{number:04}/batches", 1)
        proxy.reset_answer("*", f"checkpoints/0000{number:04}/meta", 1)
    proxy.answer(503, "*", "arrayrecord", 2)
    proxy.reset_answer("*", "lease.json", 1)
    proxy.hang("*", "tokenizer.model", 1)
    proxy.delay(0.05, "*", "", 100)
    status, stdout, stderr = store.train(url)
    assert status == 0, stdout + stderr
    failed = [each.status for each in proxy.requests[before:] if each.status in {0, 429, 503}]
    assert min(map(failed.count, (0, 429, 503))) >= 5
    check_same_end(url, undisturbed, tmp_path)


def test_outages_lose_no_saved_step(store, undisturbed, url, tmp_path):
    """Each start of the run is ended by another failure, except the last one."""
    workdir = Workdir(url)
    line = store.fails(url, ("refuse_from", "GET", "text/manifest.json"))
    assert re.match(f"birdie_jax.train: {store.text}/manifest.json: cannot be read: .*Cannot connect", line)

    in_place = ["--config.data.mirror_gib=0"]
    line = store.fails(url, ("refuse_from", "*", "train-00000.arrayrecord"), more=in_place)
    assert re.match(f"birdie_jax.train: {store.text}/train-00000.arrayrecord: ", line)

    line = store.fails(url, ("answer", 403, "POST", "checkpoints/"), ("answer", 403, "PUT", "checkpoints/"))
    assert "the checkpoint of step 4 could not be written (" in line and "sa@x has no access" in line
    assert workdir.saved_steps() == []

    line = store.fails(url, ("refuse_from", "POST", "checkpoints/00000008"))
    assert f"{url}/checkpoints: the checkpoint of step 8 could not be written (" in line
    assert "run the same command, which resumes from it" in line
    assert workdir.saved_steps() == [4]

    line = store.fails(url, ("answer", 403, "GET", "run/config.json|/config.json"))
    assert re.match(
        f"birdie_jax.train: {url}/config.json: cannot be used: .*no permission: sa@x has no", line
    )

    line = store.fails(url, ("refuse_from", "GET", "checkpoints/00000004/state"))
    assert f"{url}/checkpoints/00000004" in line and "damaged" not in line
    assert (workdir.saved_steps(), list_names(workdir.damaged_checkpoints)) == ([4], [])

    line = store.fails(url, ("refuse_from", "POST", "summary.json"))
    assert f"{url}/summary.json" in line
    assert workdir.saved_steps() == [4, 8]

    status, stdout, stderr = store.train(url)
    assert status == 0, stdout + stderr
    check_same_end(url, undisturbed, tmp_path)


NOWHERE = "gs://no-such-bucket-1"


@pytest.mark.parametrize(
    ("verb", "flags"),
    [
        ("report", [f"--workdir={NOWHERE}/run"]),
        ("generate", [f"--workdir={NOWHERE}/run", "--prompt=a"]),
        ("generate", [f"--model={NOWHERE}/model", "--prompt=a"]),
        ("export", [f"--workdir={NOWHERE}/run", "--output=/nowhere/x"]),
        ("train", arguments(f"{NOWHERE}/text", "{url}")),
        ("train", arguments("{text}", f"{NOWHERE}/run")),
        ("train", [*arguments("", "{url}"), f"--config.data.source={NOWHERE}/text/*.jsonl"]),
        ("prepare_data", [f"--input={NOWHERE}/text", "--output={url}"]),
        ("prepare_data", ["--input=stdlib", f"--output={NOWHERE}/text"]),
    ],
)
def test_a_bucket_that_is_not_there_is_named_by_every_command(store, url, verb, flags):
    given = [flag.format(url=url, text=store.text) for flag in flags]
    status, stdout, stderr = store.verbs.run(verb, *given)
    assert status == 2, stdout + stderr
    line = error_line(verb, stderr)
    assert NOWHERE in line and "there is no bucket no-such-bucket-1" in line


@pytest.mark.parametrize("lost", ["reset_answer", "reset_request"])
def test_one_of_two_simultaneous_starts_trains(store, url, lost):
    """Also where the store loses its first answers, so that one claims again what it has claimed."""
    getattr(store.proxy, lost)("POST", "lease.json", 2)
    ended, outcomes = threading.Event(), []

    def start(number):
        try:
            with Lease(Workdir(url)):
                outcomes.append("trains")
                ended.wait(30)
        except ConfigError as error:
            outcomes.append(str(error))
            ended.set()

    run_at_once(2, start)
    assert outcomes.count("trains") == 1
    assert any("is in use: process" in outcome for outcome in outcomes)


def test_what_another_process_saves_and_deletes_is_seen(store, url):
    """fsspec's cache of listings would hide these changes."""
    workdir = Workdir(url)
    mark = f"{url}/checkpoints/00000004/commit_success.txt".partition("://")[2].partition("/")[2]
    assert (workdir.saved_steps(), workdir.last_good()) == ([], "none")
    name = mark.replace("/", "%2F")
    store.server.request("POST", f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}", "x")
    assert (workdir.saved_steps(), workdir.last_good()) == ([4], "step 4")
    store.server.request("DELETE", f"/storage/v1/b/{BUCKET}/o/{name}")
    assert workdir.saved_steps() == []
