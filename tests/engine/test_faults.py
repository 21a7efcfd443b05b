"""Divergence, a full disk and wrong input end a run with a clear message, and lose nothing."""

import re
import shutil
import signal
import time
from functools import partial

import pytest

from tests import whole_runs
from tests.whole_runs import checkpoint_arrays, finish, start, write_corpus

pytestmark = pytest.mark.slow
# A bandit's programs take a third of the time of a run.
train_command = partial(whole_runs.train_command, variant="fixed")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("faults"))


def steps_saved(workdir):
    folder = workdir / "checkpoints"
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def test_divergence_stops_the_run_and_names_the_last_good_checkpoint(corpus, tmp_path):
    overrides = ("--config.optimizer.learning_rate=100.0", "--config.checkpoint.every_steps=1")
    status, output = finish(
        train_command(tmp_path / "run", corpus, *overrides, "--config.optimizer.warmup_steps=0")
    )
    assert status == 1, output
    last = output.strip().splitlines()[-1]
    assert last.startswith("birdie_jax.train: step "), output
    assert re.search(r"step \d+: the loss is .*(nan|inf).*; losses: arm/\w+ ", last), output
    saved = steps_saved(tmp_path / "run")
    assert saved
    assert f"last good checkpoint: {tmp_path / 'run' / 'checkpoints'} step {saved[-1]}" in last


def test_full_disk_keeps_what_was_saved(corpus, tmp_path):
    command = train_command(tmp_path / "run", corpus)
    process = start(command)
    while process.poll() is None and not (tmp_path / "run/checkpoints/00000004").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    saved = steps_saved(tmp_path / "run")
    before = checkpoint_arrays(tmp_path / "run", saved[-1])

    # No file may grow beyond 32 KiB: for this process this is the same as a full disk.
    status, output = finish(command, max_file_bytes=32 << 10)
    assert status == 1, output
    assert "could not be written" in output
    assert f"Last good checkpoint: step {saved[-1]}" in output
    assert "Traceback" not in output
    assert len(output.splitlines()) < 20
    assert saved[-1] in steps_saved(tmp_path / "run")
    after = checkpoint_arrays(tmp_path / "run", saved[-1])
    assert all((after[name] == before[name]).all() for name in before)
    status, output = finish(command)
    assert status == 0, output


def test_wrong_input_is_told_without_a_traceback(corpus, tmp_path):
    status, output = finish(train_command(tmp_path / "run", corpus, "--config.data.source=/nowhere/*.txt"))
    assert status == 2
    assert "/nowhere/*.txt" in output
    assert "Traceback" not in output


def test_a_corrected_command_takes_the_workdir_of_one_that_made_no_step(corpus, tmp_path):
    run, fixed = tmp_path / "run", ("--config.train.num_steps=1", "--config.eval.rows=1")
    # Killed before its first step, with a tokenizer of its own, which that of the right text is not.
    process = start(train_command(run, corpus, *fixed, "--config.data.vocab_size=290"))
    while process.poll() is None and not (run / "tokenizer.model").exists():
        time.sleep(0.02)
    process.kill()
    process.communicate(timeout=120)
    assert (run / "tokenizer.model").exists()
    status, output = finish(train_command(run, corpus, *fixed))
    assert status == 0, output
    assert "held a run of another configuration that ended before its first step" in output


def test_shards_of_another_tokenizer(corpus, tmp_path):
    command = train_command(tmp_path / "run", corpus, "--config.train.num_steps=1")
    (tmp_path / "run").mkdir()
    status, output = finish(command)
    assert status == 0, output
    (tmp_path / "run/config.json").unlink()
    shutil.rmtree(tmp_path / "run/checkpoints")
    status, output = finish([*command, "--config.data.vocab_size=290"])
    assert status == 2
    assert "tokenizer" in output
    assert "Traceback" not in output
