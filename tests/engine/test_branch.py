"""A branch continues from another run's checkpoint, and changes only the configured fields."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from birdie_jax.config import CheckpointConfig
from birdie_jax.engine import (
    FunctionBatches,
    HookResult,
    LossFunction,
    Workdir,
    make_step,
    mesh_of,
    sections_of,
    train,
)
from birdie_jax.engine.branch import Branch
from birdie_jax.engine.time_use import TIME_SCALARS
from tests.whole_runs import checkpoint_arrays, finish, metrics, train_command, write_corpus


class Section:
    """A hook with a section, which some runs lack; it is never due."""

    name = "section"

    def create_section(self, key):
        return {"sum": jnp.zeros(())}

    def resume(self, state):
        pass

    def is_due(self, step, num_steps):
        return False

    def run(self, state, call):
        return HookResult(state, {})

    def close(self):
        pass


def squared_error(params, batch):
    error = jnp.sum(jnp.square(batch["x"] @ params["w"]))
    return error, {"error": error}


def rows(batch):
    return jnp.float32(batch["x"].shape[0])


@pytest.fixture(scope="module")
def mesh():
    return mesh_of()


def train_small(folder, mesh, num_steps, log_every_steps=2, *, hooks=(), branch=None):
    """Train three weights; save a checkpoint every four steps."""
    step = make_step(
        lambda key: {"w": jax.random.normal(key, (3,))},
        LossFunction(squared_error, rows, rows),
        optax.sgd(0.01),
        mesh,
        sections=sections_of(hooks),
    )
    batches = FunctionBatches(lambda done: {"x": np.full((8, 3), done, np.float32)}, mesh)
    train(
        *(step, batches, hooks),
        workdir=Workdir(folder),
        num_steps=num_steps,
        log_every_steps=log_every_steps,
        checkpoint=CheckpointConfig(every_steps=4, keep=20),
        branch=branch,
    )


def test_a_warning_names_the_checkpoint_that_was_read(tmp_path, mesh, caplog):
    train_small(tmp_path / "trunk", mesh, 8, hooks=[Section()])
    train_small(tmp_path / "run", mesh, 6, branch=Branch(Workdir(tmp_path / "trunk"), 4))
    read = tmp_path / "trunk" / "checkpoints" / "00000004"
    assert f"{read}: unknown section section/sum; ignored" in caplog.text
    train_small(tmp_path / "run", mesh, 8, hooks=[Section()])
    read = tmp_path / "run" / "checkpoints" / "00000006"
    assert f"{read}: section/sum is newer than the run; it starts anew" in caplog.text


@pytest.fixture(scope="module")
def trunk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trunk")
    corpus = write_corpus(folder)
    keep = "--config.checkpoint.keep=20"
    status, output = finish(train_command(folder / "run", corpus, keep, variant="exp3s"))
    assert status == 0, output
    return folder / "run", corpus


def branch(trunk, workdir, *overrides):
    run, corpus = trunk
    begins = (f"--config.init.from={run}@12", "--config.init.optimizer=true", *overrides)
    return finish(train_command(workdir, corpus, *begins, variant="exp3s"))


def test_a_restarted_branch_counts_no_time_of_its_trunk(tmp_path, mesh):
    """The trunk ended an hour ago; the branch restarts before its first own line."""
    train_small(tmp_path / "trunk", mesh, 8)
    file = tmp_path / "trunk" / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(line["time/stepping"] < 1000 for line in lines)
    older = [
        line | {"unix_time": line["unix_time"] - 3600, "time/stepping": 7200.0, "time/hooks": 900.0}
        for line in lines
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in older))
    train_small(tmp_path / "run", mesh, 5, 10, branch=Branch(Workdir(tmp_path / "trunk"), 4))
    assert metrics(tmp_path / "run") == metrics(tmp_path / "trunk")[:2]
    train_small(tmp_path / "run", mesh, 10, 10)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 10
    assert sum(last[name] for name in TIME_SCALARS) < 600
    assert last["time/between_starts"] == last["time/hooks"] == 0
    # A line of its own counts.
    begin = last["unix_time"]
    train_small(tmp_path / "run", mesh, 20, 10)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 < last["time/between_starts"] < last["unix_time"] - begin


@pytest.mark.slow
def test_a_branch_that_changes_nothing_ends_as_its_trunk(trunk, tmp_path):
    status, output = branch(trunk, tmp_path / "run")
    assert status == 0, output
    assert f"init.from: {trunk[0]} step 12: continues with its optimizer and data position\n" in output
    assert "from step 12, to step 24" in output
    found, wanted = (checkpoint_arrays(folder, 24) for folder in (tmp_path / "run", trunk[0]))
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert metrics(tmp_path / "run") == metrics(trunk[0]), "its history is that of its trunk"


@pytest.mark.slow
def test_what_a_branch_changes_is_printed_and_done(trunk, tmp_path):
    changes = ("--config.optimizer.learning_rate=0.002", "--config.train.num_steps=16")
    status, output = branch(
        trunk, tmp_path / "run", *changes, "--config.objectives.shares_of=target_tokens"
    )
    assert status == 0, output
    for line in (
        "  config.optimizer.learning_rate: 0.01 -> 0.002\n",
        "  config.train.num_steps: 24 -> 16\n",
        "  the bandit starts anew\n",
    ):
        assert line in output
    saved = checkpoint_arrays(tmp_path / "run", 16)
    counts = {int(value) for name, value in saved.items() if name.endswith("/count") and "optim" in name}
    assert counts == {16}, "the optimizer's"
    assert saved["state/bandit/count"] == 1, "of step 15"
    rates = {line["step"]: line["learning_rate"] for line in metrics(tmp_path / "run") if "loss" in line}
    assert rates[12] > 0.002 > rates[14]
    # A branch that is killed resumes from its own checkpoint, though its trunk is gone.
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["init"]["optimizer"] is True
    status, output = branch((tmp_path / "gone", trunk[1]), tmp_path / "run", *changes)
    assert "holds a run of another configuration" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("--config.batching.rows=4", "a checkpoint of another architecture: for row_streams"),
        ("--config.optimizer.name=adafactor", "config.optimizer.name: found 'adafactor' with"),
        ("--config.data.vocab_size=310", "was trained on other data"),
    ],
)
def test_an_invalid_branch_is_refused(trunk, tmp_path, override, said):
    status, output = branch(trunk, tmp_path / "run", override)
    assert status == 2, output
    assert said in output
    assert "Traceback" not in output
