"""The files of a run in a bucket: one trainer, metrics past kills, checkpoints that are whole."""

import json
import os
import random
import re

import numpy as np
import pytest

from birdie_jax.compiled_programs import cache_compiled_programs
from birdie_jax.config import CheckpointConfig
from birdie_jax.engine import Workdir
from birdie_jax.engine.checkpoint import Checkpoints
from birdie_jax.engine.lease import Lease
from birdie_jax.engine.metrics_file import STEP_LINE_KEY, MetricsFile
from birdie_jax.engine.profiler_trace import ProfilerTrace
from birdie_jax.engine.protocols import HookCall
from birdie_jax.errors import ConfigError
from birdie_jax.storage import list_files, make_path, read_bytes, remove, write_whole
from birdie_jax.storage.metric_lines import read_metric_lines
from tests.engine.test_checkpoint import make_state, restore, save
from tests.pages.verbs import parsed
from tests.whole_runs import train_command

CLOCK = {STEP_LINE_KEY: 0.1}


@pytest.fixture
def workdir(bucket_url):
    return Workdir(bucket_url)


def test_no_such_bucket(gcs_server):
    with pytest.raises(ConfigError, match="there is no bucket nowhere"), Lease(Workdir("gs://nowhere/run")):
        pass


def starts(numbers: random.Random):
    """Return starts of a run: the step from which each resumes, hooks again, what it logs, its end."""
    first, done = 0, 0
    for _ in range(4):
        again = numbers.random() < 0.5
        steps = range(first + 1, first + 1 + numbers.randrange(6))
        yield first, again, steps, numbers.choice(["killed", "flushed", "closed"])
        done = max([first, *steps])
        first = numbers.randint(0, done)
    yield first, False, range(first + 1, done + 3), "finished"


@pytest.mark.parametrize("seed", range(6))
def test_metrics_of_a_killed_run_read_like_those_on_a_disk(workdir, tmp_path, seed):
    """What a kill leaves unsaved in a bucket is of steps that are run again."""
    here = Workdir(tmp_path)
    killed = []
    for first, again, steps, end in starts(random.Random(seed)):
        files = [MetricsFile(one, first, again) for one in (here, workdir)]
        assert files[0].kept == files[1].kept
        for file in files:
            for step in steps:
                file.write(step, {"loss": step + first / 10, **CLOCK})
                if step % 2 == 0:
                    file.write(step, {"task/accuracy": float(first)})
                # As before a checkpoint: a run resumes only from a checkpoint.
                file.flush()
            if end == "finished":
                file.finish()
            killed.append(file) if end == "killed" else file.close()
    assert read_bytes(workdir.metrics) == read_bytes(here.metrics)
    assert b"".join(read_metric_lines(workdir)) == read_bytes(here.metrics)
    assert list_files(workdir.tensorboard)
    for file in killed:
        file.close()


def test_a_start_that_logs_nothing_changes_no_metrics(workdir):
    file = MetricsFile(workdir, 0)
    file.write(1, {"loss": 1.0, **CLOCK})
    file.flush()
    before = list_files(workdir.metrics_parts)
    MetricsFile(workdir, 0).close()
    file.close()
    assert list_files(workdir.metrics_parts) == before


# Where one array cannot be read the event loop ends, and TensorStore still calls it for the others.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Exception ignored in. None:pytest.PytestUnraisableExceptionWarning")
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_used(workdir):
    checkpoints = Checkpoints(workdir, CheckpointConfig(keep=3))
    state = make_state()
    save(checkpoints, state, 4)
    save(checkpoints, state, 8)
    sizes = list_files(workdir.checkpoints / "00000008/state")
    largest = max((name for name in sizes if "d/" in name), key=sizes.__getitem__)
    path = workdir.checkpoints / "00000008/state" / largest
    contents = np.frombuffer(read_bytes(path), np.uint8).copy()
    contents[len(contents) // 4 : -len(contents) // 4] ^= 1
    write_whole(path, contents.tobytes())
    files = set(list_files(workdir.checkpoints / "00000008"))
    restored = restore(checkpoints, state)
    assert checkpoints.last_good == 4
    assert np.array_equal(restored.state.params["scale"], state.params["scale"])
    assert workdir.saved_steps() == [4]
    assert set(list_files(workdir.damaged_checkpoints / "00000008")) == files
    save(checkpoints, state, 8)
    assert workdir.saved_steps() == [4, 8]
    checkpoints.close()


@pytest.mark.slow
def test_a_checkpoint_counts_when_it_is_marked_whole(workdir):
    checkpoints = Checkpoints(workdir, CheckpointConfig(keep=3))
    save(checkpoints, make_state(), 4)
    write_whole(workdir.checkpoints / "00000008/state/d/half", b"half")
    assert workdir.saved_steps() == [4]
    checkpoints.close()
    again = Checkpoints(workdir, CheckpointConfig(keep=3))
    assert int(restore(again).state.step) == 7
    assert again.last_good == 4
    save(again, make_state(), 8)
    assert workdir.saved_steps() == [4, 8]
    again.close()


@pytest.mark.sampled
@pytest.mark.parametrize("left", [("commit_success.txt",), ("commit_success.txt", "metadata")])
def test_a_checkpoint_that_is_marked_whole_and_is_not_is_damaged(workdir, left):
    """As it is left where old checkpoints are deleted by name, or a copy of a workdir ended early."""
    checkpoints = Checkpoints(workdir, CheckpointConfig(keep=3))
    save(checkpoints, make_state(), 4)
    save(checkpoints, make_state(), 8)
    newest = workdir.checkpoints / "00000008"
    for name in list_files(newest):
        if name.rsplit("/", 1)[-1] not in left:
            remove(newest / name)
    assert workdir.saved_steps() == [4, 8]
    restore(checkpoints)
    assert checkpoints.last_good == 4
    assert workdir.saved_steps() == [4]
    checkpoints.close()


@pytest.mark.parametrize("copied", ["from a disk", "to a disk"])
def test_metrics_stay_where_a_workdir_is_copied(workdir, tmp_path, copied):
    here = Workdir(tmp_path)
    one, other = (here, workdir) if copied == "from a disk" else (workdir, here)
    before = MetricsFile(one, 0)
    for step in (1, 2, 3):
        before.write(step, {"loss": step / 2, **CLOCK})
    before.flush()
    for name in list_files(one.root):
        (other.root / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(other.root / name, read_bytes(one.root / name))
    before.close()
    MetricsFile(other, 2).close()
    after = MetricsFile(other, 2)
    assert after.kept == {"step": 2, "loss": 1.0, **CLOCK}
    after.write(3, {"loss": 7.0, **CLOCK})
    after.flush()
    lines = [json.loads(line) for line in read_metric_lines(other)]
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 0.5), (2, 1.0), (3, 7.0)]
    after.finish()
    after.close()
    assert read_bytes(other.metrics) == b"".join(read_metric_lines(other))
    assert copied == "from a disk" or not list_files(other.metrics_parts)


def test_lines_after_a_stop_and_a_resume_stay_in_a_copy(workdir, tmp_path):
    """A run that a signal stopped has written one file, which the next start leaves behind."""
    stopped = MetricsFile(workdir, 0)
    stopped.write(1, {"loss": 0.5, **CLOCK})
    stopped.finish()
    stopped.close()
    killed = MetricsFile(workdir, 1)
    killed.write(2, {"loss": 1.0, **CLOCK})
    # An error closes the file without a flush.
    killed.close()
    for name in list_files(workdir.root):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(tmp_path / name, read_bytes(workdir.root / name))
    here = Workdir(tmp_path)
    resumed = MetricsFile(here, 2)
    resumed.close()
    assert [json.loads(line)["step"] for line in read_metric_lines(here)] == [1, 2]


@pytest.mark.slow
def test_a_trace_is_brought_to_the_bucket(workdir):
    state = make_state()
    first = 5
    hook = ProfilerTrace(workdir, first + 1, first + 3)
    hook.resume(state)
    assert [step for step in range(first + 9) if hook.is_due(step, first + 3)] == [first, first + 3]
    for step in (first, first + 3):
        assert list_files(workdir.tensorboard) == {}
        hook.run(state, HookCall(step, first + 3, step == first, lambda phase: None, lambda: False))
    (name,) = [name for name in list_files(workdir.tensorboard) if name.endswith(".xplane.pb")]
    assert name.startswith("plugins/profile/")
    before = list_files(workdir.root)
    hook.close()
    assert list_files(workdir.root) == before
    assert not os.path.exists("gs:")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://bucket/run", "orbax"),
        ("az://bucket/run", "allowed: gs://BUCKET/"),
        ("gs://", "allowed: gs://BUCKET/"),
    ],
)
def test_an_invalid_workdir_is_refused_in_one_line(tmp_path, url, said):
    with (
        parsed("train", train_command(url, tmp_path)[3:], whole=True) as verb,
        pytest.raises(ConfigError, match=f"^.*{re.escape(said)}.*$"),
    ):
        verb.main(["train"])


def test_compiled_programs_are_kept_where_the_variable_says(workdir, monkeypatch):
    updated = {}
    monkeypatch.setattr("jax.config.update", updated.__setitem__)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", f"{workdir}/")
    cache_compiled_programs()
    assert updated["jax_compilation_cache_dir"] == str(workdir)
    # XLA's own caches are of disks alone.
    assert updated["jax_persistent_cache_enable_xla_caches"] == ""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "gs:/bucket/compiled")
    with pytest.raises(ConfigError, match="JAX_COMPILATION_CACHE_DIR: 'gs:/bucket/compiled': found one"):
        cache_compiled_programs()


def test_paths_of_buckets_stay_urls():
    assert str(make_path("gs://bucket/run/") / "a") == "gs://bucket/run/a"
