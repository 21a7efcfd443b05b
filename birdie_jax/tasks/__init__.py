"""Tasks: what a model is measured on, and what it may be fine-tuned on."""

from birdie_jax.tasks.lm_eval import LMEvalTask
from birdie_jax.tasks.question import LENGTH_GROUP, Question, ScoredAnswer, TaskResult
from birdie_jax.tasks.registry import (
    TASK_KEY,
    TASKS,
    make_task,
    register_task,
    task_of_flag,
    task_of_section,
)
from birdie_jax.tasks.task import ChoiceTask, GenerationTask, QuestionTask, Task
from birdie_jax.tasks.task_model import Progress, Share, TaskModel, no_progress
from birdie_jax.tasks.training_examples import (
    PROMPT_OBJECTIVE,
    GeneratedExamples,
    RecordedExamples,
    example_lengths,
    training_example,
)

__all__ = [
    "LENGTH_GROUP",
    "PROMPT_OBJECTIVE",
    "TASKS",
    "TASK_KEY",
    "ChoiceTask",
    "GeneratedExamples",
    "GenerationTask",
    "LMEvalTask",
    "Progress",
    "Question",
    "QuestionTask",
    "RecordedExamples",
    "ScoredAnswer",
    "Share",
    "Task",
    "TaskModel",
    "TaskResult",
    "example_lengths",
    "make_task",
    "no_progress",
    "register_task",
    "task_of_flag",
    "task_of_section",
    "training_example",
]
