"""Runs over several corpora: exact shares, two processes, a resumed run, epochs and a branch."""

import json
import shutil
import sys

import numpy as np
import pytest

from tests.whole_runs import (
    assert_same_end,
    checkpoint_arrays,
    finish,
    in_two_processes,
    metrics,
    start,
    write_corpus,
)

pytestmark = pytest.mark.slow

STEPS, HALF = 16, 8
WEIGHTS = {"a": 5.0, "b": 3.0, "c": 2.0}
_FILE = """
from tests.micro_config import get_config as micro

def get_config():
    config = micro("fixed")
    config.data.corpora = {corpora}
    config.data.cache_dir = {cache!r}
    config.data.vocab_size = 400
    config.batching.rows = 4
    config.train.num_steps = {steps}
    config.train.log_every_steps = 4
    config.checkpoint.every_steps = {half}
    config.eval.rows = 4
    return config
"""


class Files:
    """Corpora, and commands that train on some of them."""

    def __init__(self, folder):
        self.folder = folder
        self.sources = {}
        for number, name in enumerate([*WEIGHTS, "d"]):
            (folder / name).mkdir()
            self.sources[name] = str(write_corpus(folder / name, documents=12 + 6 * number))

    def command_of_arms(self, workdir, *overrides, name="own", **fields):
        """An arm for corpus a, one for b, and one for all, as classes of a bandit."""
        arms = {"a_lm": "a", "b_lm": "b", "all": ()}
        lines = {name: {"objective": "causal_lm", "corpora": corpora} for name, corpora in arms.items()}
        lines["all"].pop("corpora")
        command = self.command(workdir, "abc", *overrides, **fields)
        body = (self.folder / f"abc{len(fields)}.py").read_text()
        path = self.folder / f"{name}.py"
        path.write_text(
            body.replace("    return config", f"    config.objectives.arms = {lines}\n    return config")
        )
        return [*command[:3], f"--config={path}", *command[4:]]

    def command(self, workdir, names="abc", *overrides, **fields):
        corpora = {
            name: {"source": self.sources[name], "weight": WEIGHTS.get(name, 10.0)} | fields
            for name in names
        }
        path = self.folder / f"{names}{len(fields)}.py"
        cache = str(self.folder / "cache")
        path.write_text(_FILE.format(corpora=corpora, cache=cache, steps=STEPS, half=HALF))
        verb = [sys.executable, "-m", "birdie_jax.train"]
        return [*verb, f"--config={path}", f"--workdir={workdir}", *overrides]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("corpora"))


@pytest.fixture(scope="module")
def trained(files):
    """An uninterrupted run of one process with four devices, and its output."""
    status, output = finish(files.command(files.folder / "run"), devices=4)
    assert status == 0, output
    return files.folder / "run", output


def totals(workdir, quantity):
    return {
        name: sum(line[f"corpus/{name}/{quantity}"] for line in metrics(workdir) if "loss" in line)
        for name in WEIGHTS
    }


def test_shares_equal_the_weights(trained):
    workdir, output = trained
    positions = totals(workdir, "positions")
    # The tolerance is a few examples in each of four rows of 128 positions.
    for name, weight in WEIGHTS.items():
        assert positions[name] == pytest.approx(sum(positions.values()) * weight / 10, abs=4 * 128)
    arms = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    of_arms = sum(
        value
        for line in arms
        for key, value in line.items()
        if key.startswith("arm/") and "positions" in key
    )
    assert of_arms == sum(positions.values())
    corpora = json.loads((workdir / "corpora.json").read_text())
    assert [each["share"] for each in corpora.values()] == pytest.approx([0.5, 0.3, 0.2])
    assert "corpora: a 50.0% of " in output and "; c 20.0% of " in output
    assert {tuple(arm["corpora"]) for arm in json.loads((workdir / "arms.json").read_text())} == {
        ("a", "b", "c")
    }


def test_each_corpus_is_validated_and_has_the_expected_epochs(trained):
    workdir, _ = trained
    last = [line for line in metrics(workdir) if "corpus/a/validation_loss" in line][-1]
    assert last["step"] == STEPS
    corpora = json.loads((workdir / "corpora.json").read_text())
    for name in WEIGHTS:
        assert 0 < last[f"corpus/{name}/validation_loss"] < 8
        assert last[f"corpus/{name}/epochs"] == pytest.approx(
            corpora[name]["expected_epochs"], rel=0.5, abs=0.2
        )


def test_two_processes_resume_a_killed_run_with_the_same_end(trained, files, tmp_path):
    workdir, _ = trained
    again = tmp_path / "run"
    shutil.copytree(workdir, again)
    shutil.rmtree(again / "checkpoints" / f"{STEPS:08d}")
    processes = [start(one, devices=2) for one in in_two_processes(files.command(again))]
    outputs = [process.communicate(timeout=400)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert_same_end(again, workdir, STEPS, rtol=1e-4, atol=1e-5)
    assert totals(again, "positions") == totals(workdir, "positions")
    for line, other in zip(metrics(again), metrics(workdir), strict=True):
        assert line == pytest.approx(other, rel=1e-4, abs=1e-6)


def test_a_bandit_of_corpora_resumes_bit_for_bit(files, tmp_path):
    steered = ("--config.bandit.policy=exp3s", "--config.bandit.every_steps=4")
    status, output = finish(files.command_of_arms(tmp_path / "run", *steered), devices=4)
    assert status == 0, output
    again = tmp_path / "again"
    shutil.copytree(tmp_path / "run", again)
    shutil.rmtree(again / "checkpoints" / f"{STEPS:08d}")
    status, output = finish(files.command_of_arms(again, *steered), devices=4)
    assert status == 0, output
    assert_same_end(again, tmp_path / "run", STEPS)
    shares = [line["arm/a_lm/probability"] for line in metrics(again) if "arm/a_lm/probability" in line]
    assert len(set(shares)) > 1


def test_epochs_are_expected_over_all_stages(files, tmp_path):
    """The first stage alone would read corpus a 0.3 times; all read it 0.55 times."""
    staged = ("--config.bandit.policy=staged", "--config.bandit.stages=0: causal_lm=1; 0.25: a_lm=1")
    staged += ("--config.bandit.every_steps=4",)
    status, output = finish(
        files.command_of_arms(tmp_path / "run", *staged, name="capped", max_epochs=0.45)
    )
    assert status == 2, output
    assert "config.data.corpora.a.max_epochs: the run is expected to read its" in output
    assert "Traceback" not in output and not (tmp_path / "run").exists()


def test_a_branch_adds_a_corpus_and_continues_the_others(trained, files, tmp_path):
    workdir, _ = trained
    begins = (f"--config.init.from={workdir}@{HALF}", "--config.init.optimizer=true")
    tokenizer = f"--config.data.tokenizer={workdir}/tokenizer.model"
    status, output = finish(files.command(tmp_path / "run", "abcd", *begins, tokenizer), devices=4)
    assert status == 0, output
    assert "config.data.corpora.d.weight: None -> 10.0" in output
    lines = [line for line in metrics(tmp_path / "run") if line["step"] > HALF and "loss" in line]
    positions = {name: sum(line[f"corpus/{name}/positions"] for line in lines) for name in "abcd"}
    assert positions["d"] == pytest.approx(sum(positions.values()) / 2, abs=4 * 128)
    # The branch does not read again what its first run has read of the others.
    before, after = (
        checkpoint_arrays(one, HALF if one == workdir else STEPS) for one in (workdir, tmp_path / "run")
    )
    (name,) = (name for name in before if name.startswith("batches/"))
    assert np.all(after[name][:, 1:7:2] >= before[name][:, 1:7:2])


def test_a_branch_with_other_rows_is_refused(trained, files, tmp_path):
    workdir, _ = trained
    begins = (f"--config.init.from={workdir}@{HALF}", "--config.init.optimizer=true")
    others = (f"--config.data.tokenizer={workdir}/tokenizer.model", "--config.batching.rows=8")
    status, output = finish(files.command(tmp_path / "run", "abcd", *begins, *others), devices=4)
    assert status == 2, output
    assert "a checkpoint of another architecture: for row_streams" in output and "Traceback" not in output


def test_a_branch_with_another_tokenizer_is_refused(trained, files, tmp_path):
    begins = (f"--config.init.from={trained[0]}@{HALF}", "--config.init.optimizer=true")
    status, output = finish(files.command(tmp_path / "run", "abcd", *begins), devices=4)
    assert status == 2, output
    assert "config.init.from: found a run with another tokenizer" in output and "Traceback" not in output


def test_an_arm_of_an_unknown_corpus_is_refused(files, tmp_path):
    path = tmp_path / "own.py"
    command = files.command(tmp_path / "run")
    body = (files.folder / "abc0.py").read_text()
    arms = "    config.objectives.arms = {'lm': {'objective': 'causal_lm', 'corpora': ['a', 'z']}}\n"
    path.write_text(body.replace("    return config", f"{arms}    return config"))
    status, output = finish([*command[:3], f"--config={path}", command[4]])
    assert status == 2, output
    assert "arm 'lm' reads the corpus 'z'; allowed: a, b, c" in output
