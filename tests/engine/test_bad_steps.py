"""A bad step changes nothing, is counted and named, and does not end the run."""

import json
import re
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from birdie_jax.config import CheckpointConfig
from birdie_jax.config_sections import TrainConfig
from birdie_jax.engine import BadStepRule, FunctionBatches, LossFunction, Workdir, make_step, mesh_of, train
from birdie_jax.engine.bad_steps import (
    ARMED,
    LARGEST_KEPT,
    LEAST_DEVIATION,
    SECTION,
    WINDOW,
    bad_step_rule,
    check_skip_batches,
    create_recent_steps,
)
from birdie_jax.engine.lease import claimed
from birdie_jax.errors import ConfigError, TrainingDiverged
from tests.whole_runs import checkpoint_arrays, metrics

SECTION_NAMES = {f"state/{SECTION}/{name}" for name in create_recent_steps()._fields}


def oracle(values, deviations, left_out, max_in_a_row):
    """Return which (loss, norm) are skipped, and whether the run ends, in plain Python."""
    finite, skipped, in_a_row, ended = [], [], 0, False
    for number, pair in enumerate(values, 1):
        recent = np.array(finite[-WINDOW:], np.float64)
        bad = not np.isfinite(pair).all()
        cut = np.minimum(pair, 1e15)
        if len(recent) >= ARMED:
            mean = recent.mean(axis=0)
            spread = np.maximum(recent.std(axis=0), LEAST_DEVIATION * np.abs(mean))
            bad |= bool(deviations and (np.array(pair) > mean + deviations * spread).any())
            cut = np.minimum(cut, mean + LARGEST_KEPT * spread)
        is_left_out = any(first <= number <= last for first, last in left_out)
        if np.isfinite(pair).all():
            finite.append(cut)
        skipped.append(bad or is_left_out)
        in_a_row = in_a_row + (bad and not is_left_out) if skipped[-1] else 0
        ended |= in_a_row > max_in_a_row
    return skipped, ended


def judged(rule, values):
    def step(carried, pair):
        number, recent = carried
        skipped, recent = rule.judge(recent, number, *pair)
        return (number + 1, recent), (skipped, recent.bad_in_a_row > rule.max_in_a_row)

    start = (jnp.zeros((), jnp.int32), create_recent_steps())
    (_, recent), (skipped, ends) = jax.lax.scan(step, start, jnp.asarray(values, jnp.float32))
    return recent, np.asarray(skipped).tolist(), bool(np.asarray(ends).any())


@settings(max_examples=30, deadline=None)
# A spike of the size to which those of before are cut.
@example(seed=0, length=100, bad=[(1, 1e20), (3, 1e20), (65, 1e20)], deviations=6.0)
@given(
    seed=st.integers(0, 2**31),
    length=st.sampled_from([3, 100, 300]),
    bad=st.lists(
        st.tuples(st.integers(0, 299), st.sampled_from([np.nan, np.inf, 40.0, 1e20])), max_size=12
    ),
    deviations=st.sampled_from([0.0, 6.0]),
)
def test_the_verdict_equals_plain_python(seed, length, bad, deviations):
    values = np.random.default_rng(seed).normal(2, 0.1, (length, 2)).astype(np.float32)
    for place, value in bad:
        values[place % length, place % 2] = value
    rule = BadStepRule(deviations, 2, ((5, 6), (90, 95)))
    recent, skipped, ended = judged(rule, values)
    expected, expected_end = oracle(values.tolist(), deviations, rule.left_out, rule.max_in_a_row)
    assert (skipped, ended) == (expected, expected_end)
    assert int(recent.skipped) == sum(expected)
    assert np.isfinite(recent.losses).all() and np.isfinite(recent.grad_norms).all()


@pytest.mark.parametrize(("deviations", "most"), [(4.0, 9), (6.0, 4)])
@pytest.mark.parametrize("rise", [0.5, 3, 10])
def test_a_lasting_rise_is_accepted_after_few_steps(deviations, most, rise):
    """A decision of a bandit may move the loss for good."""
    values = np.random.default_rng(0).normal(1, 0.05, (300, 2))
    values[200:] += rise
    _, skipped, ended = judged(BadStepRule(deviations), values)
    assert 1 <= sum(skipped) <= most and not any(skipped[:200]) and not ended


def test_a_spike_does_not_hide_the_next():
    values = np.random.default_rng(0).normal(1, 0.05, (200, 2))
    values[100, 1], values[110, 1] = 1e20, 1e3
    assert np.flatnonzero(judged(BadStepRule(6.0), values)[1]).tolist() == [100, 110]


def test_steps_to_skip_are_read_from_the_configuration():
    rule = bad_step_rule(TrainConfig(skip_batches="4:6, 9:9", bad_steps=3, outlier_deviations=6.0))
    assert rule == BadStepRule(6.0, 3, ((4, 6), (9, 9)))
    for text in ("4", "6:4", "0:3", "4:6:8", "a:b", "4-6"):
        with pytest.raises(ConfigError, match=r"config\.train\.skip_batches: found .*allowed: first:last"):
            bad_step_rule(TrainConfig(skip_batches=text))


@pytest.mark.parametrize(
    ("value", "before", "allowed"),
    [
        *(("7:9", "", ""), ("2:3,7:7", "2:3", ""), ("2:8", "2:4,5:6", ""), ("", "2:3", "")),
        *(("2:3", "", "batches after step 6"), ("6:9", "", "batches after step 6")),
        *(("2:8", "2:3,5:6", "batches after step 6"), ("7:8,2:4", "2:3", "batches after step 6")),
        *(
            ("12:12", "", ""),
            ("12:90", "", ""),
            ("13:90", "13:90", "steps of the run, whose last one is 12$"),
        ),
    ],
)
def test_ranges_without_effect_are_refused(value, before, allowed):
    message = rf"config\.train\.skip_batches: found \d+:\d+; allowed: {allowed}"
    with pytest.raises(ConfigError, match=message) if allowed else nullcontext():
        check_skip_batches(value, 12, done=6, before=before)


@pytest.mark.parametrize(("value", "status"), [("4:6", 0), ("2:3", 0), ("3:3", 0), ("1:2", 2), ("5:8", 0)])
def test_a_run_that_resumes_records_only_ranges_that_it_skips(tmp_path, value, status):
    def config(value):
        return {name: {} for name in ("batching", "data", "model", "optimizer")} | {
            "train": {"skip_batches": value}
        }

    workdir = Workdir(tmp_path)
    with claimed(workdir, config("2:3"), config("")):
        (workdir.checkpoints / "00000003").mkdir(parents=True)
    refused = pytest.raises(ConfigError, match="found 1:2; allowed: batches after step 3, ")
    with refused if status else nullcontext(), claimed(workdir, config(value), config("")):
        pass
    saved = json.loads(workdir.config.read_text())
    assert saved["train"]["skip_batches"] == ("2:3" if status else value)


POISONED = 6


def make_batch(done, poisoned=(POISONED,)):
    step = done + 1
    x = np.random.default_rng(step).normal(size=(8, 3)).astype(np.float32)
    y = x.sum(axis=1) * (np.nan if step in poisoned else 1)
    return {"x": x, "y": y}


def squared_error(params, batch):
    error = jnp.sum(jnp.square(batch["x"] @ params["w"] - batch["y"]))
    return error, {"error": error}


def rows(batch):
    return jnp.float32(batch["x"].shape[0])


@pytest.fixture(scope="module")
def mesh():
    return mesh_of()


def run(folder, mesh, make=make_batch, num_steps=12, *, parts=1, **rule):
    step = make_step(
        lambda key: {"w": jax.random.normal(key, (3,))},
        LossFunction(squared_error, rows, rows),
        optax.adamw(optax.linear_schedule(0.1, 0, 20)),
        mesh,
        accumulation_steps=parts,
        rule=BadStepRule(**rule),
    )
    saving = CheckpointConfig(every_steps=2, keep=20)
    batches = FunctionBatches(make, mesh)
    return train(
        step, batches, workdir=Workdir(folder), num_steps=num_steps, log_every_steps=3, checkpoint=saving
    )


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory, mesh):
    folder = tmp_path_factory.mktemp("poisoned") / "run"
    run(folder, mesh)
    return folder


def same_arrays(found, wanted, *, but=()):
    assert found.keys() == wanted.keys()
    for name in found.keys() - but:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


def test_a_poisoned_batch_changes_neither_parameters_nor_moments(poisoned):
    before, after = checkpoint_arrays(poisoned, 4), checkpoint_arrays(poisoned, 6)
    assert not np.array_equal(before["state/params/w"], after["state/params/w"]), "step 5 is a step"
    assert after["state/step"] == 6
    moments = [name for name in after if re.search("/(mu|nu)/", name)]
    counts = {name: int(after[name]) for name in after if name.endswith("/count")}
    assert moments and sorted(counts.values()) == [5, 6], "Adam's steps, and those of the schedule"
    assert all(np.isfinite(after[name]).all() for name in moments)
    logged = metrics(poisoned)
    assert [line["skipped_steps"] for line in logged] == [0, 1, 1, 1]
    assert all(np.isfinite(line["loss"]) for line in logged)
    assert logged[1]["tokens_seen"] == 48
    assert logged[1]["loss"] == pytest.approx(logged[1]["error"])


@pytest.mark.parametrize("last", [5, 6])
def test_killed_on_either_side_of_it_a_run_ends_as_undisturbed(poisoned, tmp_path, mesh, last):
    run(tmp_path / "run", mesh, num_steps=last)
    run(tmp_path / "run", mesh)
    same_arrays(checkpoint_arrays(tmp_path / "run", 12), checkpoint_arrays(poisoned, 12))
    assert metrics(tmp_path / "run") == metrics(poisoned), "also of the lines that it was killed between"


def test_a_checkpoint_without_bad_steps_resumes(poisoned, tmp_path, mesh, caplog):
    """The checkpoint has no section of bad steps, so the window starts empty."""
    step = make_step(
        lambda key: {"w": jax.random.normal(key, (3,))},
        LossFunction(squared_error, rows, rows),
        optax.adamw(optax.linear_schedule(0.1, 0, 20)),
        mesh,
    )
    old = step._replace(
        abstract_state=step.abstract_state.replace(sections={}),
        create=lambda: step.create_state().replace(sections={}),
        sections=dict,
        update=lambda state, batch: without_section(step, state, batch),
    )
    batches = FunctionBatches(make_batch, mesh)
    saving = CheckpointConfig(every_steps=2, keep=20)
    train(old, batches, workdir=Workdir(tmp_path / "run"), num_steps=4, checkpoint=saving)
    assert not SECTION_NAMES & checkpoint_arrays(tmp_path / "run", 4).keys()
    run(tmp_path / "run", mesh)
    assert "bad_steps/losses is newer than the run; it starts anew" in caplog.text
    found = checkpoint_arrays(tmp_path / "run", 12)
    same_arrays(found, checkpoint_arrays(poisoned, 12), but=SECTION_NAMES)


def without_section(step, state, batch):
    state = state.with_section(SECTION, step.create_sections()[SECTION])
    state, metrics = step.update(state, batch)
    return state.replace(sections={}), metrics.replace(skipped=False)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_batch_that_is_to_be_skipped_changes_as_little(poisoned, tmp_path, mesh, parts, caplog):
    def clean(done):
        return make_batch(done, poisoned=())

    run(tmp_path / "run", mesh, clean, left_out=((POISONED, POISONED),), parts=parts)
    assert "step 6: the loss is" in caplog.text and "skipped" in caplog.text
    found, wanted = (checkpoint_arrays(folder, 12) for folder in (tmp_path / "run", poisoned))
    for name in found.keys() - SECTION_NAMES:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, err_msg=name)


def test_an_outlier_is_skipped(tmp_path, mesh, caplog):
    def spiked(done):
        batch = make_batch(done, poisoned=())
        return batch | {"y": batch["y"] + (100 if done + 1 == ARMED + 4 else 10)}

    run(tmp_path / "run", mesh, spiked, ARMED + 6, outlier_deviations=6.0)
    assert f"step {ARMED + 4}: the loss is" in caplog.text
    assert caplog.text.count("skipped") == 1


def test_too_many_in_a_row_end_the_run(tmp_path, mesh, caplog):
    def broken(done):
        return make_batch(done, poisoned=range(6, 100))

    with pytest.raises(
        TrainingDiverged, match=r"^step 9: .* add 9:9 to config\.train\.skip_batches"
    ) as ended:
        run(tmp_path / "run", mesh, broken, max_in_a_row=3)
    assert "step 8" in str(ended.value), "what was saved is as good as before the first"
    assert caplog.text.count("skipped") == 3
    saved = checkpoint_arrays(tmp_path / "run", 8)
    assert np.isfinite(saved["state/params/w"]).all()
    # With the batches left out it gets past them.
    assert run(tmp_path / "run", mesh, broken, 16, max_in_a_row=3, left_out=((9, 16),)).completed


def test_without_a_rule_that_skips_the_first_ends_the_run(tmp_path, mesh):
    with pytest.raises(TrainingDiverged, match=r"^step 6: the loss is nan"):
        run(tmp_path / "run", mesh, max_in_a_row=0)
