"""A run with a head on a mesh and in two processes, and its use by other verbs in one or two."""

import json
import sys
from pathlib import Path

import pytest

from birdie_jax.models.encoder_config import EncoderConfig
from tests.forked_verbs import run_commands
from tests.tasks.glue_folders import write_learnable
from tests.trained_workdirs import micro_config, write_workdir
from tests.whole_runs import assert_same_end, checkpoint_arrays, in_two_processes, metrics, start

pytestmark = pytest.mark.slow
CONFIG = Path(__file__).with_name("micro_head.py")
STEPS = 4


def run(commands, devices) -> list[str]:
    """Run the processes of a command, with `devices` devices each, and return their outputs."""
    processes = [start(command, devices=devices) for command in commands]
    said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), said
    return said


def verb(name, *arguments) -> list[str]:
    return [sys.executable, "-m", f"birdie_jax.{name}", *arguments]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with an encoder's workdir `source`, and the files of RTE in `RTE`."""
    folder = tmp_path_factory.mktemp("heads")
    section = EncoderConfig(positions=128, ssm_state=8, attention_heads=2)
    write_workdir(folder / "source", micro_config(name="bigs", sections=(section,)))
    for split, count in (("train", 24), ("dev", 11)):
        write_learnable(folder / "RTE", "rte", split, count)
    return folder


def train_command(folder, workdir, *overrides) -> list[str]:
    """A few steps with dropout everywhere, measured once at their end."""
    data, stage = folder / "RTE", "--config.finetune.stages.glue"
    return verb(
        "train",
        *(f"--config={CONFIG}:rte", f"--workdir={folder / workdir}"),
        f"--config.init.from={folder / 'source'}",
        *(f"{stage}.path={data}", f"{stage}.steps={STEPS}", f"--config.eval.tasks.glue.path={data}"),
        *("--config.model.dropout=0.1", "--config.model.head_dropout=0.1"),
        "--config.model.encoder.embedding_dropout=0.1",
        *overrides,
    )


@pytest.fixture(scope="module")
def alone(folder):
    """The workdir of the run on one device."""
    run([train_command(folder, "alone")], devices=1)
    return folder / "alone"


@pytest.mark.slow
def test_two_processes_on_a_mesh_match_one_device(folder, alone):
    """Rows and dropout masks equal those of one device; results differ by rounding."""
    workdir = folder / "mesh"
    command = train_command(folder, workdir, "--config.mesh.data=2", "--config.mesh.fsdp=2")
    _, second = run(in_two_processes(command), devices=2)
    assert "step " not in second
    found, expected = metrics(workdir), metrics(alone)
    assert [line["step"] for line in found if "loss" in line] == [*range(1, STEPS + 1)]
    assert "task/glue/accuracy" in found[-1]
    for line, other in zip(found, expected, strict=True):
        assert line == pytest.approx(other, rel=1e-4, abs=1e-6)
    assert "state/params/task_head/rte/kernel" in checkpoint_arrays(workdir, STEPS)
    assert_same_end(workdir, alone, STEPS, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_two_processes_measure_the_same_as_one(folder, alone, tmp_path):
    """Samples of the head, and hidden tokens; each process measures a part on its own two devices."""
    (tmp_path / "text.txt").write_text("abc de fghij " * 40)
    tasks = (
        f"--task=rte=glue:dataset=rte,path={folder / 'RTE'}",
        f"--task=masked_text:path={tmp_path / 'text.txt'},window=20",
    )
    command = verb("evaluate", f"--workdir={alone}", *tasks, "--rows=4")
    run([[*command, f"--json={tmp_path / 'one.json'}", f"--answers={tmp_path / 'one.jsonl'}"]], devices=1)
    command += [f"--json={tmp_path / 'two.json'}", f"--answers={tmp_path / 'two.jsonl'}"]
    run(in_two_processes(command), devices=2)
    one, two = (
        json.loads((tmp_path / name).read_text())["evaluations"] for name in ("one.json", "two.json")
    )
    assert [record["name"] for record in two] == ["rte", "masked_text"]
    assert two[0]["answers"] == 11
    for record, other in zip(two, one, strict=True):
        for metric, interval in record["metrics"].items():
            assert interval == pytest.approx(other["metrics"][metric], rel=1e-4), metric
    lines, others = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("two.jsonl", "one.jsonl")
    )
    assert len(lines) > 11 + 4
    assert [line["answer"] for line in lines] == [line["answer"] for line in others]


@pytest.mark.slow
def test_other_verbs_read_a_run_with_a_head(folder, alone, tmp_path):
    exported, task = tmp_path / "exported", f"--task=rte=glue:dataset=rte,path={folder / 'RTE'}"
    by_run, export, by_folder, report, generate = run_commands(
        [
            ("evaluate", f"--workdir={alone}", task, f"--json={tmp_path / 'run.json'}"),
            ("export", f"--workdir={alone}", f"--output={exported}"),
            ("evaluate", f"--model={exported}", task, f"--json={tmp_path / 'folder.json'}"),
            ("report", f"--workdir={alone}"),
            ("generate", f"--workdir={alone}", "--prompt=abc"),
        ]
    )
    assert [done[0] for done in (by_run, export, by_folder, report)] == [0] * 4, (by_run, export, by_folder)
    (scores,), (again,) = (
        json.loads((tmp_path / name).read_text())["evaluations"] for name in ("run.json", "folder.json")
    )
    assert again["metrics"] == scores["metrics"]
    page, measured = (alone / "report.html").read_text(), metrics(alone)[-1]["task/glue/accuracy"]
    assert scores["metrics"]["accuracy"]["mean"] == pytest.approx(measured)
    # The table of `evaluate`, the figure above it, and the curve of the measurements during training.
    assert f'<td>accuracy</td><td class="n">{measured:.4g}</td>' in page
    assert "rte: accuracy" in page
    assert page.count("while training") == 2
    assert "stage/glue/loss" in page
    assert generate[0] != 0 and "'bigs', a bidirectional encoder, which cannot generate" in generate[2]
