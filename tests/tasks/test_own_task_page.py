"""The files and flags of docs/own_task.md work as printed."""

import re
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from birdie_jax.tasks import QuestionTask, task_of_flag
from birdie_jax.tasks.jsonl import METRICS, JsonlTask
from birdie_jax.tasks.perplexity import Perplexity
from birdie_jax.tasks.story_filter import filter_stories, read_stories
from tests.docs.pages import REPOSITORY
from tests.pages.page_commands import commands_of_page
from tests.trained_workdirs import small_tokenizer

PAGE = (REPOSITORY / "docs/own_task.md").read_text()
FLAGS = [
    argument.removeprefix("--task=")
    for command in commands_of_page("docs/own_task.md", PAGE)
    for argument in command.arguments
    if argument.startswith("--task=")
]


def write_files():
    files = dict(re.findall(r"`(\w+\.jsonl)`:\n\n```json\n(.*?)```", PAGE, re.DOTALL))
    for name, contents in files.items():
        with open(name, "w") as file:
            file.write(contents)
    return list(files)


def test_the_files_of_the_page_are_questions_of_its_tasks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert write_files() == ["questions.jsonl", "choices.jsonl", "all.jsonl"]
    kept, _ = filter_stories(read_stories("all.jsonl"), None, "", 0.85)
    assert [story.name for story in kept] == ["rain"]
    (tmp_path / "stories.jsonl").write_text((tmp_path / "all.jsonl").read_text())
    counts = {}
    for flag in FLAGS:
        task = task_of_flag(flag)
        assert isinstance(task, QuestionTask | Perplexity)
        if isinstance(task, QuestionTask) and not flag.startswith("squad"):
            questions, refused = task.questions(small_tokenizer())
            assert refused == []
            counts[flag] = len(questions)
    assert sorted(counts.values()) == [1, 2, 2, 2]
    assert len(FLAGS) == 7
    program = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert program is not None
    trained = SimpleNamespace(tokenizer=small_tokenizer())
    monkeypatch.setattr("birdie_jax.trained_model.model_of_workdir", lambda _: trained)
    names: dict[str, Any] = {}
    exec(program[1], names)
    assert len(names["examples"]) == 2


def test_the_page_has_every_setting_and_metric():
    for name in (*METRICS, *(field.name for field in fields(JsonlTask))):
        assert f"`{name}`" in PAGE, name
