"""Flags and config sections make tasks with checked settings."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest

from birdie_jax.errors import ConfigError
from birdie_jax.storage import Bounds
from birdie_jax.tasks import TASKS, Task, TaskResult, task_of_flag, task_of_section


@dataclass(frozen=True, kw_only=True)
class Sums(Task):
    """A task with settings of different types."""

    name: ClassVar[str] = "sums"
    main_metric: ClassVar[str] = "accuracy"

    count: Annotated[int, Bounds(at_least=1, at_most=9)] = 4
    words: tuple[str, ...] = ()
    separator: str = ", "

    def measure(self, model, progress=None):
        """Return an empty result."""
        del model, progress
        return TaskResult(())


@pytest.fixture(autouse=True)
def sums(monkeypatch):
    monkeypatch.setitem(TASKS, "sums", Sums)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("sums", Sums()),
        ("sums:count=7", Sums(count=7)),
        ("sums: count = 7 , separator=;", Sums(count=7, separator=";")),
        ('sums:separator=",",count=2', Sums(separator=",", count=2)),
        ('sums:words=["a","b,c"],count=2', Sums(words=("a", "b,c"), count=2)),
    ],
)
def test_a_flag_makes_a_task_with_settings(text, made):
    assert task_of_flag(text) == made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("products", "--task=products: task: found 'products'; allowed: "),
        ("sums:cuont=1", "--task=sums.cuont: unknown setting of sums; allowed: count, words, separator"),
        ("sums:count=0", "--task=sums.count: found 0; allowed: "),
        ("sums:count=x", "--task=sums.count: found 'x'"),
        ("sums:count", "found the setting 'count'; allowed: name=value"),
        ("sums:count=1,count=2", "found the setting 'count=2'; allowed: name=value, each once"),
    ],
)
def test_bad_flags_are_refused(text, message):
    with pytest.raises(ConfigError) as caught:
        task_of_flag(text)
    assert message in str(caught.value)


def test_a_section_makes_a_task_with_settings():
    assert task_of_section({"task": "sums", "count": 2}, "config.eval.tasks.mine") == Sums(count=2)
    for section, message in (
        ({"count": 2}, "config.eval.tasks.mine.task: missing; allowed: "),
        (3, "config.eval.tasks.mine: found 3; allowed: a section with the field task"),
        ({"task": "sums", "size": 1}, "config.eval.tasks.mine.size: unknown setting of sums"),
    ):
        with pytest.raises(ConfigError) as caught:
            task_of_section(section, "config.eval.tasks.mine")
        assert message in str(caught.value)
