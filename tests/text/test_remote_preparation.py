"""A folder prepared in a bucket is that of a disk, also after a kill; of two that write one stops."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from birdie_jax.storage import list_files, list_names, read_bytes, write_whole
from birdie_jax.text import DataError, TokenShards, load_manifest, manifest_guard, prepare
from birdie_jax.text.locations import locate
from birdie_jax.text.manifest_guard import ManifestGuard
from tests.gcs_server import BUCKET, run_gcs_server


@pytest.fixture
def corpus(tmp_path, make_texts, make_json_lines):
    return make_json_lines(tmp_path / "corpus.jsonl", make_texts(400))


@pytest.fixture
def settings(model_path):
    return {
        "tokenizer_model": str(model_path),
        "validation_fraction": 0.2,
        "shard_tokens": 2000,
        "workers": 0,
        "progress": False,
    }


@pytest.fixture
def url(gcs, tmp_path):
    return f"gs://{BUCKET}/{tmp_path.name}"


@pytest.fixture
def staging(tmp_path, monkeypatch):
    """The folder in which temporary files are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def objects(url):
    return {name: read_bytes(f"{url}/{name}") for name in list_files(url)}


def test_every_object_is_the_file_of_a_disk(corpus, settings, url, tmp_path, staging):
    expected = contents(prepare(str(corpus), tmp_path / "local", **settings))
    assert len(expected) > 10
    assert str(prepare(str(corpus), url, **settings)) == url
    assert objects(url) == expected
    assert not list(staging.iterdir())
    prepare(str(corpus), url, **settings)
    assert objects(url) == expected
    assert TokenShards(url, "train").num_tokens == TokenShards(tmp_path / "local", "train").num_tokens


def test_a_tokenizer_is_trained_as_for_a_disk(corpus, settings, url, tmp_path):
    settings |= {"tokenizer_model": "", "vocab_size": 350}
    expected = contents(prepare(str(corpus), tmp_path / "local", **settings))
    prepare(str(corpus), url, **settings)
    assert objects(url) == expected


class _Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("written", [False, True])
def test_killed_at_each_object_it_ends_with_the_same_bytes(corpus, settings, url, monkeypatch, *, written):
    """Die at every object in turn, just before or just after it is written."""
    expected = objects(prepare(str(corpus), f"{url}/whole", **settings))
    url += "/killed"
    deaths = remaining = 0

    def dying(write):
        def writing(*arguments, **keywords):
            nonlocal remaining
            if remaining == 0:
                if written:
                    write(*arguments, **keywords)
                raise _Killed
            remaining -= 1
            return write(*arguments, **keywords)

        return writing

    with monkeypatch.context() as patch:
        for name in (
            "saving.write_whole",
            "shard_pipeline._ShardOutput._upload",
            "manifest_guard._replace",
        ):
            module, _, attribute = name.partition(".")
            target = f"birdie_jax.text.{module}"
            owner = sys.modules[target]
            for part in attribute.split("."):
                found, owner = owner, getattr(owner, part)
            patch.setattr(found, attribute.rpartition(".")[2], dying(owner))
        while True:
            remaining = 1 + deaths % 6
            try:
                prepare(str(corpus), url, **settings)
            except _Killed:
                deaths += 1
                assert deaths < 200
            else:
                break
    assert deaths > 5
    assert objects(url) == expected


def _command(corpus, output, settings):
    names = {"tokenizer_model": "tokenizer"}
    flags = [f"--{names.get(name, name)}={value}" for name, value in settings.items()]
    verb = [sys.executable, "-m", "birdie_jax.prepare_data", f"--input={corpus}", f"--output={output}"]
    return [*verb, *flags]


def test_sigkill_then_the_same_command(settings, url, tmp_path, make_texts, make_json_lines):
    corpus = make_json_lines(tmp_path / "corpus.jsonl", make_texts(2000))
    settings |= {"shard_tokens": 5000}
    expected = contents(prepare(str(corpus), tmp_path / "local", **settings))
    process = subprocess.Popen(_command(corpus, url, settings), stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while "train-00001.arrayrecord" not in list_names(url):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not load_manifest(locate(url)).complete
    done = subprocess.run(_command(corpus, url, settings), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"in {url}\n")
    assert objects(url) == expected


@pytest.mark.parametrize(("place", "guarded"), [("save", True), ("save", False), ("check", True)])
def test_of_two_writers_one_stops(corpus, settings, url, monkeypatch, *, place, guarded):
    """Whenever the other one gets in between; also where the store checks no generation."""
    expected = objects(prepare(str(corpus), f"{url}/whole", **settings))
    url += "/other"
    monkeypatch.setattr(ManifestGuard, "_is_guarded_by_store", lambda self: guarded)
    whole = getattr(ManifestGuard, place)
    calls = 0

    def overtaken(self, *manifest):
        nonlocal calls
        calls += 1
        if calls == 4:
            prepare(str(corpus), url, **settings)
        whole(self, *manifest)

    monkeypatch.setattr(ManifestGuard, place, overtaken)
    message = re.escape(f"{url}/manifest.json") + ": another prepare_data is writing there, and this one"
    with pytest.raises(DataError, match=message):
        prepare(str(corpus), url, **settings)
    assert objects(url) == expected


def test_a_manifest_that_was_written_though_the_answer_was_lost_is_ones_own(
    corpus, settings, url, monkeypatch
):
    replace = manifest_guard._replace
    lost = []

    def forgetful(path, contents, generation):
        done = replace(path, contents, generation)
        if len(lost) < 3:
            lost.append(done)
            return None
        return done

    monkeypatch.setattr(manifest_guard, "_replace", forgetful)
    prepare(str(corpus), url, **settings)
    assert len(lost) == 3
    assert load_manifest(locate(url)).complete


def test_other_settings_and_files_without_a_manifest_are_refused(corpus, settings, url):
    write_whole(f"{url}/train-00000.arrayrecord", b"x")
    with pytest.raises(DataError, match=re.escape(url) + r"/train-00000.arrayrecord: is there without a"):
        prepare(str(corpus), url, **settings)
    prepare(str(corpus), f"{url}/2", **settings)
    with pytest.raises(
        DataError, match=r"manifest\.json: the folder holds another preparation: its record"
    ):
        prepare(str(corpus), f"{url}/2", **(settings | {"record_tokens": 7}))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("gs://no-such-bucket/x", r"gs://no-such-bucket/x/manifest\.json: cannot be written: "),
        ("ftp://host/x", "ftp://host/x': found a URL that cannot be used; allowed: gs://BUCKET"),
    ],
)
def test_outputs_that_cannot_be_are_refused(gcs, corpus, settings, output, message):
    with pytest.raises(DataError, match=message):
        prepare(str(corpus), output, **settings)


_OUTAGE = """
import sys
import gcsfs.retry
from birdie_jax.storage import object_store
from birdie_jax.text import DataError, manifest_guard, prepare, shard_pipeline
object_store.REQUEST_SECONDS = 2
gcsfs.retry.min = lambda *seconds: 0.01
manifest_guard._WRITE_SECONDS = 2.0
place = {"shard": shard_pipeline._ShardOutput, "manifest": manifest_guard.ManifestGuard}[sys.argv[3]]
name = {"shard": "_upload", "manifest": "save"}[sys.argv[3]]
write, count = getattr(place, name), 0
def waiting(self, what):
    global count
    count += 1
    if count == 4:
        print("ready", flush=True)
        sys.stdin.readline()
    return write(self, what)
setattr(place, name, waiting)
try:
    prepare(sys.argv[1], "gs://bucket/x", tokenizer_model=sys.argv[2], validation_fraction=0.2,
            shard_tokens=2000, workers=0, progress=False)
except DataError as error:
    print(error, flush=True)
"""


@pytest.mark.parametrize(
    ("place", "name"), [("shard", "-0000.*arrayrecord"), ("manifest", "manifest.json")]
)
def test_an_outage_ends_in_one_line_that_names_the_object(corpus, model_path, tmp_path, place, name):
    with run_gcs_server(tmp_path) as server:
        process = subprocess.Popen(
            [sys.executable, "-c", _OUTAGE, str(corpus), str(model_path), place],
            env=os.environ | server.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    message = process.communicate("\n", timeout=150)[0]
    assert re.match(rf"gs://bucket/x/.*{name}: cannot be (written|read): ", message), message
    assert message.count("\n") == 1
    assert process.returncode == 0
