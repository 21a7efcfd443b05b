"""`check_data` reports bad data of a task without a model."""

import dataclasses
import inspect
import sys

import pytest

from birdie_jax.errors import ConfigError, DataError
from birdie_jax.tasks import TASKS
from birdie_jax.tasks.agreement import Agreement
from birdie_jax.tasks.contract_nli import ContractNLI
from birdie_jax.tasks.glue import Glue
from birdie_jax.tasks.instructions import Instructions
from birdie_jax.tasks.jsonl import JsonlTask
from birdie_jax.tasks.labelled_text import LabelledText
from birdie_jax.tasks.masked_text import MaskedText
from birdie_jax.tasks.perplexity import Perplexity
from birdie_jax.tasks.quality import Quality
from birdie_jax.tasks.squad import Squad
from birdie_jax.tasks.squad_spans import SquadSpans
from birdie_jax.tasks.task import Task
from tests.tasks.glue_folders import row
from tests.trained_workdirs import small_tokenizer

GOOD = "\t".join(row("rte", 0, "a b", "c d", "entailment"))
BAD = "\t".join(row("rte", 1, "a b", "c d", "maybe"))
HEADER = "index\tsentence1\tsentence2\tlabel"
CONTRACT = '{"id": "1", "input": "a\\n\\nb", "output": "Entailed"}'


@pytest.mark.parametrize(
    ("make", "content", "message"),
    [
        (Agreement, "{", "line 1"),
        (ContractNLI, CONTRACT, "line 1: output: found 'Entailed'"),
        (Instructions, '{"prompt": "a"}', "line 1"),
        (JsonlTask, '{"prompt": 3}', "line 1"),
        (lambda path: LabelledText(path=path, classes=("a", "b")), '{"text": "x", "label": "c"}', "line 1"),
        (Quality, '{"article": "a", "questions": []}', "holds no question"),
        (Squad, "{}", "data"),
        (SquadSpans, "{}", "data"),
        (Perplexity, "", "holds no"),
        (MaskedText, "", "holds no"),
    ],
)
def test_a_bad_file_is_reported(tmp_path, make, content, message):
    path = tmp_path / ("data.txt" if make in {Perplexity, MaskedText} else "data.jsonl")
    task = make(path=str(path))
    with pytest.raises(DataError, match=r"data\.(txt|jsonl)"):
        task.check_data(small_tokenizer())
    path.write_text(content)
    with pytest.raises(DataError) as error:
        task.check_data(small_tokenizer())
    assert str(path) in str(error.value) and message in str(error.value)


def test_glue_reads_the_split_and_the_annotations(tmp_path):
    for name, rows in (("train", (GOOD,)), ("dev", (GOOD, BAD))):
        (tmp_path / f"{name}.tsv").write_text("\n".join((HEADER, *rows)) + "\n")
    task = Glue(dataset="rte", path=str(tmp_path))
    with pytest.raises(DataError, match=r"dev\.tsv: .*line 3: label: found 'maybe'"):
        task.check_data(small_tokenizer())
    dataclasses.replace(task, split="train").check_data(small_tokenizer())
    dataclasses.replace(task, skip_bad_records=True).check_data(small_tokenizer())
    with pytest.raises(DataError, match=r"test\.tsv"):
        dataclasses.replace(task, split="test").check_data(small_tokenizer())
    (tmp_path / "dev.tsv").write_text("\t".join(row("cola", 0, "a b", "", "1")) + "\n")
    cola = Glue(dataset="cola", path=str(tmp_path), phenomena=str(tmp_path / "annotated.tsv"))
    with pytest.raises(DataError, match=r"annotated\.tsv"):
        cola.check_data(small_tokenizer())


def test_a_missing_prepared_folder_is_refused(tmp_path):
    for task in (Perplexity(prepared=str(tmp_path)), MaskedText(prepared=str(tmp_path))):
        with pytest.raises(DataError, match=str(tmp_path)):
            task.check_data(small_tokenizer())


def test_documents_beyond_the_limit_are_not_read(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text('{"text": "abc"}\n{"text": 3}\n')
    with pytest.raises(DataError, match="text"):
        Perplexity(path=str(path)).check_data(small_tokenizer())
    Perplexity(path=str(path), max_documents=1).check_data(small_tokenizer())


def test_a_missing_harness_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(ConfigError, match="the task lm_eval needs the package lm_eval"):
        TASKS["lm_eval"](tasks=("boolq",)).check_data(small_tokenizer())


def test_every_task_with_a_file_checks_it():
    """The test finds new tasks that do not override `check_data`."""
    for name, task in TASKS.items():
        fields = {field.name for field in dataclasses.fields(task)}
        if fields & {"path", "prepared", "include_path"}:
            assert inspect.getattr_static(task, "check_data") is not Task.__dict__["check_data"], name
