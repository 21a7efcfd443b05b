"""The code of docs/library.md trains, and resumes bit for bit."""

import os
import re
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.config import CheckpointConfig
from birdie_jax.engine import (
    FunctionBatches,
    HookResult,
    LossFunction,
    Workdir,
    make_step,
    sections_of,
    train,
)
from birdie_jax.engine.coordination import Processes
from birdie_jax.engine.sharded_step import check_section_names
from birdie_jax.engine.watch import Limits, Watch
from birdie_jax.errors import CheckpointError, ConfigError, TrainingDiverged
from tests.whole_runs import REPOSITORY, checkpoint_arrays, metrics

BLOCKS = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "library.md").read_text(), re.DOTALL)


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Run a code block of the page in an empty folder; return what it defines."""
    monkeypatch.chdir(tmp_path)
    np.save("tokens.npy", np.tile(np.arange(300, 340, dtype=np.int32), 30))

    def run(number, names=None):
        names = {} if names is None else names
        exec(compile(BLOCKS[number], f"library.md block {number}", "exec"), names)
        return names

    return run


def assert_same_arrays(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_the_regression_learns_its_weights(page, tmp_path):
    names = page(0)
    assert names["outcome"].completed
    saved = checkpoint_arrays(tmp_path / "runs/regression", 200)
    np.testing.assert_allclose(saved["state/params/w"], names["WEIGHTS"], atol=0.05)
    logged = metrics(tmp_path / "runs/regression")
    assert [line["step"] for line in logged] == [50, 100, 150, 200]
    assert logged[-1]["loss"] < 0.01 < logged[0]["loss"]
    assert logged[-1]["squared_error"] == pytest.approx(logged[-1]["loss"], rel=1e-3)


def test_the_language_model_learns_to_count(page, tmp_path):
    page(1)
    logged = metrics(tmp_path / "runs/own_tokens")
    assert logged[-1]["loss"] < 0.5 * logged[0]["loss"]


def test_a_run_with_a_hook_that_is_cut_off_ends_where_it_would_have_ended(page, tmp_path):
    names = page(0)
    hooks = [page(2, names)["BestLoss"]()]
    mesh, make_batch = names["mesh"], names["make_batch"]
    step = make_step(
        lambda key: {"w": jax.random.normal(key, (3,))},
        LossFunction(names["squared_error"], names["count"], names["count"]),
        names["optax"].adam(0.05),
        mesh,
        sections=sections_of(hooks),
    )

    def run(folder, make):
        return train(
            step,
            FunctionBatches(make, mesh),
            hooks,
            workdir=Workdir(tmp_path / folder),
            num_steps=120,
            log_every_steps=5,
            checkpoint=CheckpointConfig(every_steps=25),
        )

    def cut_off(number):
        if number == 60:
            raise KeyboardInterrupt
        return make_batch(number)

    run("whole", make_batch)
    with pytest.raises(KeyboardInterrupt):
        run("cut", cut_off)
    run("cut", make_batch)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert_same_arrays(checkpoint_arrays(cut, 120), checkpoint_arrays(whole, 120))
    assert metrics(cut) == metrics(whole)
    held_out = [line["step"] for line in metrics(whole) if "held_out/best" in line]
    assert held_out == [0, 50, 100, 120]
    assert checkpoint_arrays(whole, 120)["state/best/error"] < 1


@pytest.mark.parametrize(("number", "stopped_by"), [(1, "SIGTERM"), (2, None)])
def test_a_signal_in_the_last_step_does_not_stop_a_complete_run(page, tmp_path, number, stopped_by):
    names = page(0)

    def make(current):
        if current == number:
            os.kill(os.getpid(), signal.SIGTERM)
        return names["make_batch"](current)

    outcome = train(
        names["step"], FunctionBatches(make, names["mesh"]), workdir=tmp_path / "stopped", num_steps=3
    )
    assert (outcome.step, outcome.stopped_by) == (number + 1, stopped_by)


class Divider:
    """A hook that keeps nothing."""

    name = "divider"

    def create_section(self, key):
        return {}

    def resume(self, state):
        pass

    def is_due(self, step, num_steps):
        return step == 2

    def run(self, state, call):
        return HookResult(state.replace(params=jax.tree.map(lambda w: w / 0, state.params)), {})

    def close(self):
        pass


class Diverging(Divider):
    """A hook that finds that the run has diverged."""

    def run(self, state, call):
        raise TrainingDiverged(f"step {call.step}: found nan")


class Measuring(Divider):
    """A hook that measures NaN."""

    def run(self, state, call):
        return HookResult(state, {"recall": 0.5, "error": jnp.float32("nan"), "bits": float("inf")})


class Forgetful(Divider):
    """A hook that returns nothing."""

    def run(self, state, call):
        return None


class Ending(Divider):
    """A hook that ends a run."""

    def run(self, state, call):
        return HookResult(state, {"found": 1.0}, ends_run=True)


class AtEnd(Divider):
    """A hook that is due at the end alone."""

    name = "at_end"

    def is_due(self, step, num_steps):
        return step == num_steps

    def run(self, state, call):
        assert call.is_last
        return HookResult(state, {"end": float(call.num_steps)})


def train_on_page(names, tmp_path, hooks, **settings):
    batches = FunctionBatches(names["make_batch"], names["mesh"])
    workdir = Workdir(tmp_path / "run")
    return train(names["step"], batches, hooks, workdir=workdir, num_steps=4, **settings)


@pytest.mark.parametrize("saved_every", [1, 3])
def test_a_run_that_a_hook_ends_has_ended(page, tmp_path, saved_every):
    """It is saved there, what is due at the end follows, and starting again gives the same."""
    names, cadence = page(0), {"log_every_steps": 1, "checkpoint": CheckpointConfig(saved_every)}
    found = []
    for _ in range(2):
        outcome = train_on_page(names, tmp_path, [AtEnd(), Ending()], **cadence)
        assert (outcome.step, outcome.num_steps, outcome.completed) == (2, 2, True)
        found.append((metrics(tmp_path / "run"), checkpoint_arrays(tmp_path / "run", 2)))
    (first, saved), (second, again) = found
    assert first == second
    assert_same_arrays(again, saved)
    last = {name: value for line in first if line["step"] == 2 for name, value in line.items()}
    assert (last["found"], last["end"]) == (1.0, 2.0)
    outcome = train_on_page(names, tmp_path, [AtEnd()], **cadence)
    assert outcome.step == 4, "without the rule the run continues"


def test_a_summary_is_removed_only_when_the_run_becomes_longer(page, tmp_path):
    names, workdir = page(0), Workdir(tmp_path / "run")
    seen = []

    class Looking(Divider):
        def run(self, state, call):
            seen.append(workdir.summary.exists())
            return HookResult(state, {})

        def is_due(self, step, num_steps):
            return step == 4

    def run(num_steps):
        batches = FunctionBatches(names["make_batch"], names["mesh"])
        train(names["step"], batches, [Looking()], workdir=workdir, num_steps=num_steps)

    run(4)
    workdir.write(workdir.summary, {"completed": True})
    run(4)
    with pytest.raises(ConfigError, match="num_steps: found 3; allowed: at least 4"):
        run(3)
    assert workdir.summary.exists(), "nothing was trained"
    run(5)
    assert seen == [False, False]
    assert not workdir.summary.exists()


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (Divider(), "step 4: a parameter became NaN or infinite"),
        (Diverging(), "step 2: found nan"),
        (Measuring(), "step 2: hook 'divider' measured error nan, bits inf"),
    ],
)
def test_what_a_hook_finds_or_makes_nan_ends_a_run_before_anything_is_saved(page, tmp_path, hook, said):
    with pytest.raises(TrainingDiverged, match=f"^{said}; last good checkpoint: there is no checkpoint$"):
        train_on_page(page(0), tmp_path, [hook])


def test_hooks_that_cannot_be_used_are_named(page, tmp_path):
    with pytest.raises(ConfigError, match="hook 'divider': run returned None; allowed: a HookResult"):
        train_on_page(page(0), tmp_path, [Forgetful()])
    with pytest.raises(ValueError, match="found 2 with the name 'divider'"):
        train_on_page(page(0), tmp_path, [Divider(), Divider()])
    for name in ("params", "step", "a/b", ""):
        with pytest.raises(ValueError, match="hook: found the name "):
            check_section_names({name: None})


def test_the_workdir_of_something_else_is_refused(page, tmp_path):
    names = page(0)
    other = make_step(
        lambda key: {"v": jnp.zeros(3)},
        LossFunction(lambda params, batch: (jnp.sum(params["v"]), {}), names["count"], names["count"]),
        names["optax"].sgd(0.1),
        names["mesh"],
    )
    batches = FunctionBatches(names["make_batch"], names["mesh"])
    with pytest.raises(CheckpointError, match="another architecture"):
        train(other, batches, workdir=Workdir(tmp_path / "runs/regression"), num_steps=300)


def test_a_batch_of_another_shape_may_have_to_be_compiled_for(page, tmp_path):
    """A process that compiles has more time before it counts as one that hangs."""
    names, reported = page(0), []

    class Recording(Watch):
        def heartbeat(self, step, phase, *, compiles=False):
            if phase == "computing":
                reported.append((step, compiles))

    workdir = Workdir(tmp_path / "run")

    def make(step):
        rows = 32 if step in {0, 1, 4} else 16
        return {name: value[:rows] for name, value in names["make_batch"](step).items()}

    batches = FunctionBatches(make, names["mesh"])
    watch = Recording(Processes(), Limits(30, 600), workdir, ())
    train(names["step"], batches, workdir=workdir, num_steps=5, watch=watch)
    assert reported == [(1, True), (2, False), (3, True), (4, False), (5, True)]
