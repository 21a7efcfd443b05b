"""A run of an encoder: resume, several processes, the report, evaluation and refusals."""

import json
import shutil

import numpy as np
import pytest

from tests.forked_verbs import run_commands
from tests.whole_runs import assert_same_end, in_two_processes, metrics, start, train_command, write_corpus

pytestmark = pytest.mark.slow

STEPS, HALF = 8, 4
OPTIONS = (
    "--config.objectives.mixture=masked_lm",
    "--config.bandit.policy=fixed",
    "--config.bandit.every_steps=4",
    "--config.batching.rows=4",
    "--config.model.name=bigs",
    "--config.model.encoder.attention_heads=4",
    "--config.model.encoder.ssm_state=4",
    "--config.model.encoder.embedding_dropout=0.1",
    "--config.model.dropout=0.2",
    "--config.optimizer.schedule=linear",
    "--config.optimizer.clip_norm=0.0",
    f"--config.train.num_steps={STEPS}",
    f"--config.checkpoint.every_steps={HALF}",
    "--config.mesh.data=1",
    "--config.mesh.fsdp=2",
    "--config.mesh.tensor=2",
)


def train(commands, devices, **options):
    """Run the processes of a run until they end; pass options to `start`."""
    processes = [start(command, devices=devices, **options) for command in commands]
    outputs = [process.communicate(timeout=400)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    return outputs


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The workdir of a run of one process with four devices, and its text."""
    folder = tmp_path_factory.mktemp("masked")
    corpus = write_corpus(folder)
    train([train_command(folder / "run", corpus, *OPTIONS)], devices=4, preparations=())
    return folder / "run", corpus


def resumable_copy(workdir, folder):
    """Return a copy of a run, as if it had been killed after its first checkpoint."""
    shutil.copytree(workdir, folder)
    shutil.rmtree(folder / "checkpoints" / f"{STEPS:08d}")
    (folder / "samples.json").unlink()
    return folder


@pytest.mark.slow
def test_a_killed_run_with_dropout_ends_bit_for_bit_where_it_would_have_ended(trained, tmp_path):
    workdir, corpus = trained
    again = resumable_copy(workdir, tmp_path / "run")
    (output,) = train([train_command(again, corpus, *OPTIONS)], devices=4)
    assert f"resumes from step {HALF}" in output
    assert_same_end(again, workdir, STEPS)
    assert samples_of(again) == samples_of(workdir)


@pytest.mark.slow
def test_two_processes_train_on_the_same_batches(trained, tmp_path):
    """The masks of tokens and of dropout are the same too: the losses differ only by rounding."""
    workdir, corpus = trained
    again = resumable_copy(workdir, tmp_path / "run")
    train(in_two_processes(train_command(again, corpus, *OPTIONS)), devices=2)
    assert_same_end(again, workdir, STEPS, rtol=1e-4, atol=1e-5)
    for line, other in zip(metrics(again), metrics(workdir), strict=True):
        assert line == pytest.approx(other, rel=1e-4, abs=1e-6)
    texts = [[sample["texts"] for sample in samples_of(one)["samples"]] for one in (again, workdir)]
    assert texts[0] == texts[1]


def samples_of(workdir):
    return json.loads((workdir / "samples.json").read_text())


def test_the_validation_of_the_arm_is_logged(trained):
    logged = metrics(trained[0])
    measured = [line for line in logged if "arm/masked_lm/validation_loss" in line]
    assert [line["step"] for line in measured] == [0, 4, 8]
    assert all(0 <= line["arm/masked_lm/validation_accuracy"] <= 1 for line in measured)


def test_the_report_shows_masked_and_predicted_tokens(trained):
    workdir, corpus = trained
    record = samples_of(workdir)
    assert record["step"] == STEPS
    assert len(record["samples"]) == 4
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    for sample in record["samples"]:
        tokens = [hidden["token"] for hidden in sample["hidden"]]
        whole = "".join(text + token for text, token in zip(sample["texts"], [*tokens, ""], strict=True))
        # A token that is decoded alone loses its leading space.
        bare = whole.removeprefix("[MASKED_LM]").removesuffix("[SEP]").replace(" ", "")
        assert any(bare in text.replace(" ", "") for text in texts)
        for hidden in sample["hidden"]:
            assert 0 < hidden["probability"] <= 1
            assert hidden["is_right"] == (hidden["token"] == hidden["found"]) or hidden["token"] == ""
            if hidden["is_right"]:
                assert hidden["loss"] == pytest.approx(-np.log(hidden["probability"]), abs=1e-4)
    page = (workdir / "report.html").read_text()
    count = sum(len(sample["hidden"]) for sample in record["samples"])
    assert '<section id="masked">' in page
    assert f"of {count} tokens." in page
    # The arm's example shows the labels instead of a target.
    assert " · " in json.loads((workdir / "arms.json").read_text())[0]["examples"][0]["target"]


@pytest.mark.slow
def test_an_encoder_and_its_export_are_evaluated(trained, tmp_path):
    workdir, _ = trained
    (tmp_path / "text.txt").write_text("abc de fghij " * 40)
    text, model = f"path={tmp_path}/text.txt", tmp_path / "exported"
    found = run_commands(
        [
            ("evaluate", f"--workdir={workdir}", f"--task=masked_text:{text}", f"--json={tmp_path}/a.json"),
            ("evaluate", f"--workdir={workdir}", f"--task=perplexity:{text}"),
            ("export", f"--workdir={workdir}", f"--output={model}"),
            ("evaluate", f"--model={model}", f"--task=masked_text:{text}", f"--json={tmp_path}/b.json"),
        ]
    )
    status, _, errors = found.pop(1)
    assert status != 0
    assert "evaluate: the model was trained as an encoder, on masked_lm alone: it names hidden" in errors
    for status, _, errors in found:
        assert status == 0, errors
    (scores,), (of_export,) = (
        json.loads((tmp_path / name).read_text())["evaluations"] for name in ("a.json", "b.json")
    )
    assert of_export["metrics"] == scores["metrics"]
    assert set(scores["metrics"]) == {"accuracy", "loss", "perplexity"}
    assert 0 < scores["metrics"]["loss"]["mean"] < 10
