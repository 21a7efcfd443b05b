"""Fine-tuning runs: killed and resumed, on other meshes and processes, and read by other verbs."""

import json
import random
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from birdie_jax.storage.workdir import Workdir
from tests.forked_verbs import run_commands
from tests.trained_workdirs import micro_config, write_workdir
from tests.whole_runs import (
    assert_same_end,
    checkpoint_arrays,
    finish,
    in_two_processes,
    metrics,
    run_environment,
    start,
)

pytestmark = pytest.mark.slow
CONFIG = Path(__file__).with_name("micro_stages.py")


def command(workdir, source, *more):
    return [
        *(sys.executable, "-m", "birdie_jax.train", f"--config={CONFIG}", f"--workdir={workdir}"),
        *(f"--config.init.from={source}", *more),
    ]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    write_workdir(folder, micro_config())
    return folder


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """The workdir and the output of an uninterrupted run."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    status, output = finish(command(workdir, source))
    assert status == 0, output
    return workdir, output


def num_steps(workdir) -> int:
    return json.loads((workdir / "summary.json").read_text())["num_steps"]


@pytest.mark.slow
def test_a_run_logs_its_stages(whole):
    workdir, output = whole
    steps = num_steps(workdir)
    assert re.search(
        r"stage 1_backward: 40 examples in \d+ rows of 64, .* 1.5 epochs in \d+ steps\n", output
    )
    assert "stage 2_words: generated examples in rows of 96; 5 steps\n" in output
    assert "loaded 14 arrays" in output and "  new " not in output
    logged = metrics(workdir)
    assert [line["step"] for line in logged] == list(range(1, steps + 1))
    for line in logged:
        stage, other = ("1_backward", "2_words") if line["step"] <= steps - 5 else ("2_words", "1_backward")
        assert line["loss"] == pytest.approx(line[f"stage/{stage}/loss"], rel=1e-6)
        assert f"stage/{other}/loss" not in line
        assert 0 < line["padding_share"] < 0.9
    # The rate warms up, then follows a cosine over the steps of all stages.
    rates = [line["learning_rate"] for line in logged]
    assert rates.index(max(rates)) == 2
    assert rates[-1] < 0.1 * max(rates)


@pytest.mark.slow
def test_a_killed_run_resumes_with_the_same_bits(whole, source, tmp_path):
    """The source of its parameters and tokenizer no longer exists at that time."""
    expected, _ = whole
    steps, run = num_steps(expected), tmp_path / "run"
    gone = tmp_path / "source"
    shutil.copytree(source, gone)
    kill_early(command(run, gone), run)
    shutil.rmtree(gone)
    status, output = finish(command(run, gone))
    assert status == 0, output
    assert_same_end(run, expected, steps)


@pytest.mark.slow
def test_a_run_that_drops_tokens_logs_both_losses_and_resumes_with_the_same_bits(source, tmp_path):
    expected = tmp_path / "expected"
    pruning = "--config.finetune.pruning.max_pruned=0.9"
    status, output = finish(command(expected, source, pruning))
    assert status == 0, output
    for line in metrics(expected):
        stage = next(name for name in ("1_backward", "2_words") if f"stage/{name}/loss" in line)
        for quantity in ("loss", "pruned_loss"):
            assert line[quantity] == pytest.approx(line[f"stage/{stage}/{quantity}"], rel=1e-6)
        assert line["surviving_share"] == pytest.approx(line[f"stage/{stage}/surviving_share"], rel=1e-6)
    assert_resumes(expected, tmp_path / "run", command(tmp_path / "run", source, pruning))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A workdir with a wider model of another mixer, and the same tokenizer."""
    folder = tmp_path_factory.mktemp("teacher")
    write_workdir(folder, micro_config(name="mamba", features=96, state=96))
    return folder


def taught_by(teacher):
    """Return the flags of a run with a teacher that trains low-rank changes of the mixers' maps."""
    return (
        *(f"--config.finetune.teacher.from={teacher}@5", "--config.finetune.teacher.hidden=0.1"),
        *("--config.finetune.lora.rank=2", "--config.finetune.lora.maps=*/mixer/*"),
    )


@pytest.fixture(scope="module")
def taught(source, teacher, tmp_path_factory):
    """The workdir of an uninterrupted run with a teacher."""
    workdir = tmp_path_factory.mktemp("taught") / "run"
    status, output = finish(command(workdir, source, *taught_by(teacher)))
    assert status == 0, output
    assert f"finetune.teacher.from: {teacher} step 5" in output
    return workdir


@pytest.mark.slow
def test_a_run_with_a_teacher_logs_its_losses_and_resumes_with_the_same_bits(
    taught, source, teacher, tmp_path
):
    for line in metrics(taught):
        stage = next(name for name in ("1_backward", "2_words") if f"stage/{name}/loss" in line)
        for quantity in ("loss", "teacher_loss", "teacher_divergence", "teacher_relations"):
            assert line[quantity] == pytest.approx(line[f"stage/{stage}/{quantity}"], rel=1e-6)
            assert line[quantity] > 0
    run = tmp_path / "run"
    assert_resumes(taught, run, command(run, source, *taught_by(teacher)))
    saved = checkpoint_arrays(run, num_steps(run))
    assert not any("96" in str(array.shape) for array in saved.values())


@pytest.mark.slow
def test_low_rank_adaptation_only_changes_maps(taught, source):
    (first,) = Workdir(source).saved_steps()
    before = checkpoint_arrays(source, first)
    after = checkpoint_arrays(taught, num_steps(taught))
    moved = {
        name
        for name, value in after.items()
        if name.startswith("state/params") and (value != before[name]).any()
    }
    assert moved and all("/mixer/" in name and name.endswith("kernel") for name in moved)
    for name in moved:
        change = np.atleast_3d((after[name] - before[name]).astype(np.float64))
        assert np.linalg.matrix_rank(change, tol=1e-5).max() <= 2


@pytest.mark.slow
def test_two_processes_divide_a_teacher(taught, source, teacher, tmp_path):
    run = tmp_path / "run"
    divided = ("--config.mesh.data=2", "--config.mesh.fsdp=2")
    arguments = command(run, source, *taught_by(teacher), *divided)
    processes = [start(each, devices=2) for each in in_two_processes(arguments)]
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    for line, other in zip(metrics(run), metrics(taught), strict=True):
        assert line == pytest.approx(other, rel=2e-3, abs=1e-4)


@pytest.mark.slow
def test_invalid_teachers_are_refused(source, teacher, tmp_path):
    encoder = tmp_path / "encoder"
    write_workdir(encoder, micro_config(name="bigs"))
    base = ("train", f"--config={CONFIG}", f"--config.init.from={source}")
    field = "--config.finetune.teacher.from"
    cases = [
        ((f"{field}={teacher}",), f"found {teacher}, a workdir without a step; allowed: {teacher}@5"),
        ((f"{field}={teacher}@6",), f"found {teacher}@6, which holds no checkpoint"),
        ((f"{field}={encoder}@5",), f"found {encoder}@5, a bidirectional encoder"),
        ((f"{field}={teacher}@5", "--config.finetune.pruning.max_pruned=0.5"), "allowed: '' with config.f"),
    ]
    commands = [
        (*base, f"--workdir={tmp_path / str(number)}", *flags) for number, (flags, _) in enumerate(cases)
    ]
    for (status, _, errors), (_, said) in zip(run_commands(commands), cases, strict=True):
        assert status == 2, errors
        assert "config.finetune.teacher.from: " in errors and said in errors, errors


def copy_to_step_4(expected, run) -> None:
    """Copy a run as if it had been killed after its fourth step."""
    shutil.copytree(expected, run)
    for folder in (run / "checkpoints").iterdir():
        if int(folder.name) > 4:
            shutil.rmtree(folder)


def assert_resumes(expected, run, arguments) -> None:
    """Check that the command ends a copy of the run's first steps with the same bits."""
    copy_to_step_4(expected, run)
    status, output = finish(arguments)
    assert status == 0, output
    assert "resumes from step 4," in output
    assert_same_end(run, expected, num_steps(expected))


def kill_early(arguments, run) -> None:
    """Start a run and kill it soon after its first checkpoint."""
    process = start(arguments)
    deadline = time.monotonic() + 200
    while process.poll() is None and not Workdir(run).saved_steps():
        assert time.monotonic() < deadline, "training did not get under way"
        time.sleep(0.02)
    time.sleep(random.Random(3).uniform(0.0, 0.2))
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
def test_two_processes_resume_the_run_of_one_on_another_mesh(whole, source, tmp_path):
    """Rows and dropout masks equal those of one device; results differ by rounding."""
    expected, _ = whole
    steps, run = num_steps(expected), tmp_path / "run"
    copy_to_step_4(expected, run)
    processes = [start(one, devices=2) for one in in_two_processes(command(run, source))]
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "resumes from step 4," in outputs[0]
    assert "step " not in outputs[1]
    for line, other in zip(metrics(run), metrics(expected), strict=True):
        assert line == pytest.approx(other, rel=1e-3, abs=1e-5)
    assert_same_end(run, expected, steps, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_other_verbs_read_a_fine_tuned_run(whole, tmp_path):
    workdir, _ = whole
    folder = tmp_path / "exported"
    prompt = ("--prompt=abc", "--max_tokens=4")
    by_arm, exported, by_folder, report, otherwise = run_commands(
        [
            ("generate", f"--workdir={workdir}", *prompt),
            ("export", f"--workdir={workdir}", f"--output={folder}"),
            ("generate", f"--model={folder}", *prompt),
            ("report", f"--workdir={workdir}"),
            ("generate", f"--workdir={workdir}", "--objective=copying", *prompt),
        ]
    )
    assert by_arm[0] == 0 and "prompt form: prefix_lm" in by_arm[2]
    assert exported[0] == 0, exported
    assert by_folder[:2] == by_arm[:2]
    assert report[0] == 0 and (workdir / "report.html").is_file()
    assert "stage/1 backward/loss" in (workdir / "report.html").read_text()
    assert otherwise[0] == 2
    assert "this model was not trained on it; allowed: prefix_lm" in otherwise[2]


@pytest.mark.slow
def test_invalid_sources_are_refused(source, tmp_path):
    base = ("train", f"--config={CONFIG}", f"--workdir={tmp_path / 'run'}")
    other = (
        "train",
        f"--config={CONFIG}",
        f"--workdir={tmp_path / 'other'}",
        f"--config.init.from={source}",
    )
    nothing, wider, computed, plan, rows = run_commands(
        [
            base,
            (*other, "--config.model.layers=2"),
            # In the workdir of the refused run.
            (*other, "--config.model.norm_epsilon=1e-5"),
            ("plan", f"--config={CONFIG}", "--topology=cpu:2", "--largest_batch=skip"),
            (*base, "--config.finetune.stages.2_words.rows=3", "--config.mesh.data=2"),
        ],
        XLA_FLAGS=run_environment(2)["XLA_FLAGS"],
    )
    assert nothing[0] == wider[0] == computed[0] == rows[0] == 2
    assert "config.init.from: found ''; allowed: with config.finetune.stages a workdir" in nothing[2]
    assert not (tmp_path / "run").exists()
    assert re.search(r"init\.from: found \S+, which lacks blocks/mixer/.* float32\[2, ", wider[2]), wider[2]
    assert (
        f"config.init.from: found {source}, a model of another architecture: config.model.norm_epsilon: it "
        "has 1e-06, this run 1e-05; allowed: a model of the same config.model"
    ) in computed[2]
    assert "config.finetune.stages.2_words.rows: found 3; allowed: a multiple of" in rows[2]
    assert plan[0] == 0, plan
    assert "stage 2_words, which has the most positions per batch" in plan[1]
