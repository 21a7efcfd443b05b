"""GLUE's test files without labels, and the predictions for the leaderboard."""

import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from birdie_jax.config import parse_config
from birdie_jax.errors import ConfigError, DataError
from birdie_jax.evaluation_record import EvaluatedModel, EvaluationRecord, Interval, parse_evaluation
from birdie_jax.finetuning.stages import read_stages
from birdie_jax.finetuning.task_heads import with_task_head
from birdie_jax.storage.workdir import Workdir
from birdie_jax.tasks.evaluation import NamedTask, check_kept_evaluations, check_predictions, tasks_of_flags
from birdie_jax.tasks.glue import Glue
from birdie_jax.tasks.glue_files import GLUE_DATASETS
from birdie_jax.tasks.task_model import TaskModel
from tests.forked_verbs import run_commands
from tests.tasks.glue_folders import UNLABELLED_COLUMNS, write_unlabelled
from tests.tasks.tiny_task_model import tiny_task_model
from tests.trained_workdirs import write_workdir

MICRO = runpy.run_path(str(Path(__file__).parents[1] / "finetuning" / "micro_head.py"))["get_config"]
# The leaderboard's file names for predictions.
FILES = {
    ("cola", "test"): "CoLA.tsv",
    ("sst2", "test"): "SST-2.tsv",
    ("mrpc", "test"): "MRPC.tsv",
    ("qqp", "test"): "QQP.tsv",
    ("stsb", "test"): "STS-B.tsv",
    ("mnli", "test_matched"): "MNLI-m.tsv",
    ("mnli", "test_mismatched"): "MNLI-mm.tsv",
    ("qnli", "test"): "QNLI.tsv",
    ("rte", "test"): "RTE.tsv",
    ("wnli", "test"): "WNLI.tsv",
}


@pytest.mark.parametrize(("dataset", "split"), FILES)
def test_every_row_is_predicted_in_the_format_of_the_leaderboard(tmp_path, set_head_scores, dataset, split):
    write_unlabelled(tmp_path, dataset, split)
    classes = GLUE_DATASETS[dataset].classes
    predicted = [1, 0, len(classes) - 1] if classes else [5.5, -0.25, 2.3456]
    set_head_scores(np.eye(len(classes))[predicted] if classes else [[number] for number in predicted])
    task = Glue(dataset=dataset, path=str(tmp_path), split=split)
    result = task.measure(tiny_task_model())
    shown = {
        **{"mnli": ["entailment", "contradiction", "neutral"], "stsb": ["5.000", "0.000", "2.346"]},
        **{name: ["entailment", "not_entailment", "entailment"] for name in ("qnli", "rte")},
    }.get(dataset, ["1", "0", "1"])
    lines = ["index\tprediction", *(f"{number}\t{one}" for number, one in enumerate(shown))]
    assert task.predictions(result.answers).decode() == "".join(f"{line}\n" for line in lines)
    assert task.predictions_file == FILES[dataset, split]
    assert not result.refused and not any(answer.metrics for answer in result.answers)


def test_splits_with_labels_have_scores_and_no_predictions():
    for dataset, form in GLUE_DATASETS.items():
        for split in ("", "train", *form.splits):
            assert Glue(dataset=dataset, path="x", split=split).predictions_file == ""


@pytest.mark.parametrize(
    ("indices", "texts", "message"),
    [
        (("0", "x"), ("abc", "def"), "line 3: index: found 'x'; allowed: a number of digits"),
        (("7", "7"), ("abc", "def"), "line 3: index: found 7, which {path}: line 2 has; allowed: another"),
        (("0", "1"), ("abc", " "), "line 3: sentence1: found ' '; allowed: text with more than white"),
    ],
)
def test_no_row_of_a_test_file_is_skipped(tmp_path, indices, texts, message):
    """The leaderboard requires a prediction for each row, so skip_bad_records changes nothing."""
    path = write_unlabelled(tmp_path, "rte", indices=indices, texts=texts)
    full_message = f"{path}: 1 of 2 records are bad: {message.format(path=path)}"
    with pytest.raises(DataError, match=f"^{re.escape(full_message)}"):
        Glue(dataset="rte", path=str(tmp_path), split="test", skip_bad_records=True).measure(
            tiny_task_model()
        )


def test_a_long_row_is_refused_before_prediction(tmp_path, monkeypatch):
    path = write_unlabelled(tmp_path, "sst2", texts=("abc", "abcdefghi" * 20, "jkl"))
    monkeypatch.setattr(TaskModel, "head_scores", lambda *_: pytest.fail("the model was asked"))
    task, model = Glue(dataset="sst2", path=str(tmp_path), split="test"), tiny_task_model(max_length=32)
    with pytest.raises(
        DataError, match=f"^1 of 3 are too long, the first: {re.escape(str(path))}: line 3: has"
    ):
        task.measure(model)


TEST, DEV = "glue:dataset=rte,path=x,split=test", "dev=glue:dataset=rte,path=x"


@pytest.mark.parametrize(
    ("tasks", "folder", "others", "message"),
    [
        ([TEST, DEV], None, [], "--predictions: missing; allowed with --task glue, whose answers are"),
        ([DEV], "out", [], "--predictions: found out; allowed: only with a --task whose answers are"),
        ([TEST, f"again={TEST}"], "out", [], "--task: glue and again both write RTE.tsv; allowed: one of"),
        ([TEST], "out", ["runs/b"], "--compare: found runs/b; allowed with --task glue: none, because its"),
    ],
)
def test_predictions_without_their_own_file_are_refused(tasks, folder, others, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        check_predictions(tasks_of_flags(tasks), folder, others)


@pytest.mark.slow
def test_evaluate_writes_predictions_and_scores(tmp_path):
    data = tmp_path / "data"
    write_unlabelled(data, "rte", indices=("4", "5", "6"))
    columns = (*UNLABELLED_COLUMNS["rte"], "label")
    rows = [columns, ("0", "abc", "def", "entailment"), ("1", "ghi", "def", "not_entailment")]
    (data / "dev.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    config = MICRO("rte")
    config.finetune.stages.glue.path = config.eval.tasks.glue.path = str(data)
    parsed = parse_config(config)
    run, out = tmp_path / "run", tmp_path / "deep" / "out"
    write_workdir(run, with_task_head(parsed, read_stages(parsed)))
    (run / "metrics.jsonl").write_text('{"step": 5, "loss": 1.0}\n')
    task = f"glue:dataset=rte,path={data}"
    first, refused, in_place_of_scores, in_place_of_predictions, report = run_commands(
        [
            (
                *("evaluate", f"--workdir={run}", f"--task={task}", f"--task=test={task},split=test"),
                f"--predictions={out}",
            ),
            ("evaluate", f"--workdir={run}", f"--task=test={task},split=test"),
            ("evaluate", f"--workdir={run}", f"--task={task},split=test", f"--predictions={out}"),
            ("evaluate", f"--workdir={run}", f"--task=test={task}"),
            ("report", f"--workdir={run}"),
        ]
    )
    assert first[0] == 0, first
    assert re.search(r"^test +none +3$", first[1], re.M), first[1]
    assert f"test: 3 predictions in {out}/RTE.tsv" in first[2]
    assert [path.name for path in out.iterdir()] == ["RTE.tsv"]
    head, *lines = (out / "RTE.tsv").read_text().splitlines()
    assert head == "index\tprediction"
    assert [line.split("\t")[0] for line in lines] == ["4", "5", "6"]
    assert {line.split("\t")[1] for line in lines} <= {"entailment", "not_entailment"}
    kept = run / "evaluations" / "00000005"
    record = parse_evaluation((kept / "test.json").read_bytes(), "test.json")
    assert (record.answers, record.metrics, record.groups, record.categories) == (3, {}, {}, {})
    answers = [json.loads(line) for line in (kept / "test.jsonl").read_text().splitlines()]
    assert [(answer["name"], answer["answer"]) for answer in answers] == [
        tuple(row.split("\t")) for row in lines
    ]
    assert refused[0] == 2 and "--predictions: missing; allowed with --task test" in refused[2]
    for (status, _, errors), name, stored, new in (
        (in_place_of_scores, "glue", "scores", "predictions"),
        (in_place_of_predictions, "test", "predictions", "scores"),
    ):
        message = (
            f"--task: found the name {name}, for which {kept / name}.json has {stored}; allowed for "
            f"{new}: another name, as in --task=NAME=glue:setting=value"
        )
        assert status == 2 and message in errors, errors
    assert parse_evaluation((kept / "glue.json").read_bytes(), "glue.json").metrics.keys() == {"accuracy"}
    assert len((kept / "glue.jsonl").read_text().splitlines()) == 2
    assert report[0] == 0, report


def kept_record(workdir, answers, metrics):
    files = Workdir(workdir)
    model = EvaluatedModel("runs/a", 5, "c", "p", "masked_lm")
    record = EvaluationRecord(
        *(1, "rte", "glue", {}, "accuracy", model, answers, [], metrics, {}), seconds=1.0
    )
    path = files.evaluation(5, "rte")
    files.make_folder(path.parent)
    files.write(path, record.to_json())
    return files, path


@pytest.mark.parametrize(
    ("answers", "metrics", "allowed"),
    [(2, {"accuracy": Interval(0.5, 0.0, 1.0)}, "scores"), (2, {}, "predictions"), (0, {}, "either")],
)
def test_scores_and_predictions_do_not_overwrite_each_other(tmp_path, answers, metrics, allowed):
    files, _ = kept_record(tmp_path, answers, metrics)
    for new, flag in (("scores", f"rte={DEV[4:]}"), ("predictions", f"rte={TEST}")):
        tasks = tasks_of_flags([flag])
        # There is no stored evaluation for another step or another name.
        check_kept_evaluations(files, 6, tasks)
        check_kept_evaluations(files, 5, [NamedTask("other", tasks[0].task)])
        if allowed in (new, "either"):
            check_kept_evaluations(files, 5, tasks)
        else:
            with pytest.raises(ConfigError, match=f"has {allowed}; allowed for {new}: another name"):
                check_kept_evaluations(files, 5, tasks)


def test_a_damaged_evaluation_is_not_replaced(tmp_path):
    files, path = kept_record(tmp_path, 0, {})
    path.write_text("{")
    with pytest.raises(ConfigError, match=f"^{re.escape(str(path))}: found no JSON"):
        check_kept_evaluations(files, 5, tasks_of_flags([f"rte={TEST}"]))
