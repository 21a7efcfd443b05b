"""A folder prepared in a bucket equals one on a disk, even after a kill; a second writer waits."""

import contextlib
import functools
import itertools
import json
import re
import signal
import subprocess
import time

import pytest

from birdie_jax.errors import DataError, OvertakenError, exit_status
from birdie_jax.storage import generations, list_names, write_whole
from birdie_jax.text import TokenShards, load_manifest, manifest_guard, preparation, prepare
from birdie_jax.text.locations import locate
from birdie_jax.text.manifest_guard import ManifestGuard
from tests.text.prepared_folders import command, contents, message_after_outage


@pytest.fixture
def url(bucket_url):
    return bucket_url


@pytest.fixture
def staging(tmp_path, monkeypatch):
    """The folder of temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.mark.parametrize("changes", [{}, {"tokenizer_model": "", "vocab_size": 350}])
def test_every_object_equals_the_file_on_a_disk(corpus, settings, url, tmp_path, staging, *, changes):
    settings |= changes
    expected = contents(prepare(str(corpus), tmp_path / "local", **settings))
    assert len(expected) > 10
    for _ in range(2):
        assert str(prepare(str(corpus), url, **settings)) == url
        assert contents(url) == expected
        assert not list(staging.iterdir())
    assert TokenShards(url, "train").num_tokens == TokenShards(tmp_path / "local", "train").num_tokens


class _Killed(BaseException):
    """Simulates a kill of the process."""


@pytest.mark.parametrize("written", [False, True])
def test_a_preparation_killed_at_each_object_ends_with_the_same_bytes(
    corpus, settings, url, monkeypatch, *, written
):
    """Die at every object in turn, just before or just after it is written."""
    settings |= {"shard_tokens": 5000}
    expected = contents(prepare(str(corpus), f"{url}/whole", **settings))
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
        patch.setattr(manifest_guard, "replace_at", dying(generations.replace_at))
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
    assert contents(url) == expected


def test_the_same_command_resumes_after_sigkill(settings, url, tmp_path, make_texts, make_json_lines):
    corpus = make_json_lines(tmp_path / "corpus.jsonl", make_texts(2000))
    settings |= {"shard_tokens": 5000}
    expected = contents(prepare(str(corpus), tmp_path / "local", **settings))
    process = subprocess.Popen(command(corpus, url, settings), stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while "train-00001.arrayrecord" not in list_names(url):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not load_manifest(locate(url)).complete
    done = subprocess.run(command(corpus, url, settings), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"in {url}\n")
    assert contents(url) == expected


OTHERS = {
    "other text of the same name": {"other_text": True},
    "other settings": {"record_tokens": 64},
    "the same text, and a tokenizer of its own": {"tokenizer_model": "", "vocab_size": 300},
}


class _Overtaken:
    """Replaces `replace_at`; before one of its writes, another preparation writes the same folder."""

    def __init__(self, prepare_other, number):
        self._prepare_other, self._number = prepare_other, number
        self.writes = 0

    def replace_at(self, path, generation, contents):
        self.writes += 1
        if self.writes == self._number:
            _either(self._prepare_other)
        return generations.replace_at(path, generation, contents)


@pytest.mark.parametrize("other", OTHERS)
def test_one_of_two_writers_waits_and_overwrites_nothing(corpus, settings, url, monkeypatch, other):
    """The other writer may start before any write of any file."""
    changes = dict(OTHERS[other])
    text = corpus.read_bytes()[:20_000].rpartition(b"\n")[0]
    other_text = text.replace(b"river", b"lake") if changes.pop("other_text", False) else text
    folders = {"own": (text, {}), "other": (other_text, changes)}
    for name, (its_text, _) in folders.items():
        (corpus.parent / name).mkdir()
        (corpus.parent / name / "corpus.jsonl").write_bytes(its_text)

    def prepare_in(name, target):
        # As on two machines, where the same path may have another text.
        with contextlib.chdir(corpus.parent / name):
            prepare("corpus.jsonl", target, **(settings | folders[name][1]))

    wholes = []
    for name in folders:
        prepare_in(name, f"{url}/{name}")
        wholes.append(_without_times(f"{url}/{name}"))
    stopped = []
    for number in itertools.count(1):
        target = f"{url}/{number}"
        overtaken = _Overtaken(functools.partial(prepare_in, "other", target), number)
        monkeypatch.setattr(manifest_guard, "replace_at", overtaken.replace_at)
        error = _either(functools.partial(prepare_in, "own", target))
        if overtaken.writes < number:
            break
        stopped.append(error is not None)
        assert _without_times(target) == wholes[error is not None]
        # It waited, and then rejected the other settings or source.
        assert error is None or re.search("holds another preparation|has changed since", str(error))
    assert len(stopped) > 8
    assert any(stopped), "the other one never won"


def _either(prepares):
    """Return the error that stops a preparation, or None."""
    try:
        prepares()
    except DataError as error:
        return error
    return None


def _without_times(folder):
    """Return a folder's contents, with only the hashes of the source record."""
    found = contents(folder)
    record = [json.loads(line) for line in found.pop("source_files.jsonl").splitlines()]
    return found | {"source": [line["sha256"] for line in record]}


@pytest.mark.parametrize("place", ["save", "check"])
def test_one_of_two_writers_waits_without_generations(corpus, settings, url, monkeypatch, capfd, *, place):
    expected = contents(prepare(str(corpus), f"{url}/whole", **settings))
    url += "/other"
    monkeypatch.setattr(ManifestGuard, "_is_guarded_by_store", lambda self: False)
    whole = getattr(ManifestGuard, place)
    calls = 0

    def overtaken(self, *manifest):
        nonlocal calls
        calls += 1
        if calls == 4:
            prepare(str(corpus), url, **settings)
        whole(self, *manifest)

    monkeypatch.setattr(ManifestGuard, place, overtaken)
    prepare(str(corpus), url, **settings)
    message = f"{url}: another prepare_data is writing there; waiting until it ends\n"
    assert capfd.readouterr().err == message
    assert contents(url) == expected


def test_waiting_for_a_dead_process_ends(corpus, settings, url, monkeypatch):
    """The wait ends after an hour without a shard; the same command then takes over."""
    monkeypatch.setattr(preparation, "_STANDSTILL_SECONDS", 0.0)
    monkeypatch.setattr(preparation, "_POLL_SECONDS", 0.01)
    save, saved = ManifestGuard.save, 0

    def overtaken(self, manifest):
        nonlocal saved
        saved += 1
        save(self, manifest)
        if saved == 3:
            raise OvertakenError("as by a process that is killed now")

    with monkeypatch.context() as patch:
        patch.setattr(ManifestGuard, "save", overtaken)
        with pytest.raises(
            OvertakenError, match=f"^{url}: the other prepare_data .* finished no shard for"
        ):
            prepare(str(corpus), url, **settings)
    assert exit_status(OvertakenError("")) == 1
    assert load_manifest(locate(prepare(str(corpus), url, **settings))).complete


def test_shards_missing_from_the_manifest_are_removed(corpus, settings, url, monkeypatch):
    """Shards of a stopped preparation are removed when the next one starts; others when it ends."""
    expected = contents(prepare(str(corpus), f"{url}/whole", **settings))
    url += "/left"
    save, saved = ManifestGuard.save, 0

    def dying(self, manifest):
        nonlocal saved
        saved += 1
        if saved == 4:
            raise _Killed
        save(self, manifest)

    with monkeypatch.context() as patch:
        patch.setattr(ManifestGuard, "save", dying)
        with pytest.raises(_Killed):
            prepare(str(corpus), url, **settings)
    named = {shard.name for shard in load_manifest(locate(url)).train}
    assert {name for name in list_names(url) if name.startswith("train-")} > named
    write_whole(f"{url}/train-00077.arrayrecord", b"of another")
    seen = []

    def looking(self, manifest):
        save(self, manifest)
        seen.append([name for name in list_names(url) if name.startswith("train-")])
        if manifest.complete:
            write_whole(f"{url}/validation-00088.arrayrecord", b"of another")

    monkeypatch.setattr(ManifestGuard, "save", looking)
    prepare(str(corpus), url, **settings)
    assert "train-00077.arrayrecord" in seen[0] and "train-00077.arrayrecord" not in seen[1]
    assert contents(url) == expected


def test_a_write_with_a_lost_response_succeeds(corpus, settings, url, monkeypatch):
    """The client retries, and the store rejects the retry because the first write succeeded."""
    from google.api_core.exceptions import PreconditionFailed
    from google.cloud.storage import Blob

    lost = []

    def forgetful(upload):
        def uploading(self, *arguments, **keywords):
            upload(self, *arguments, **keywords)
            lost.append(self.name)
            if len(lost) % 2:
                raise PreconditionFailed("as the second try of a lost answer")

        return uploading

    for name in ("upload_from_string", "upload_from_filename"):
        monkeypatch.setattr(Blob, name, forgetful(getattr(Blob, name)))
    prepare(str(corpus), url, **settings)
    assert len(lost) > 10
    assert load_manifest(locate(url)).complete


def test_other_settings_and_files_without_a_manifest_are_refused(corpus, settings, url):
    write_whole(f"{url}/train-00000.arrayrecord", b"x")
    with pytest.raises(DataError, match=re.escape(url) + r"/train-00000.arrayrecord: exists without a"):
        prepare(str(corpus), url, **settings)
    prepare(str(corpus), f"{url}/2", **settings)
    with pytest.raises(
        DataError, match=r"manifest\.json: the folder holds another preparation: its record"
    ):
        prepare(str(corpus), f"{url}/2", **(settings | {"record_tokens": 7}))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            "gs://no-such-bucket/x",
            r"no-such-bucket/x/manifest\.json: cannot be read: there is no bucket no-such",
        ),
        ("ftp://host/x", "ftp://host/x': found a URL that cannot be used; allowed: gs://BUCKET"),
    ],
)
def test_unusable_outputs_are_refused(gcs_server, corpus, settings, output, message):
    with pytest.raises(DataError, match=message):
        prepare(str(corpus), output, **settings)


_FAILING_LATER = """
from birdie_jax.text import manifest_guard, prepare, shard_pipeline
place = {"_upload": shard_pipeline._ShardOutput, "save": manifest_guard.ManifestGuard}[sys.argv[3]]
write, calls = getattr(place, sys.argv[3]), []
def waiting(self, what):
    calls.append(what)
    if len(calls) == 4:
        wait()
    return write(self, what)
setattr(place, sys.argv[3], waiting)
prepare(sys.argv[1], "gs://bucket/x", tokenizer_model=sys.argv[2], validation_fraction=0.2,
        shard_tokens=2000, workers=0, progress=False)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("write", "name"), [("_upload", "-0000.*arrayrecord"), ("save", "manifest.json")])
def test_an_outage_prints_one_line_that_names_the_object(corpus, model_path, tmp_path, write, name):
    message = message_after_outage(tmp_path, _FAILING_LATER, corpus, model_path, write)
    assert re.match(rf"gs://bucket/x/.*{name}: cannot be (written|read): ", message), message
