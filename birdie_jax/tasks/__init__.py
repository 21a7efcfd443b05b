"""Tasks for evaluation and fine-tuning."""

# Importing a task's module registers the task. To add a task, add its module to this list.
from birdie_jax.tasks import (
    agreement,
    associative_recall,
    contract_nli,
    glue,
    infilling,
    instructions,
    jsonl,
    labelled_text,
    masked_text,
    noisy_recall,
    objective_by_length,
    perplexity,
    phonebook,
    quality,
    squad,
    squad_spans,
)
from birdie_jax.tasks.head_task import HeadTask
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
from birdie_jax.tasks.task import ChoiceTask, GenerationTask, QuestionTask, Task, TokenTask
from birdie_jax.tasks.task_model import Progress, Share, TaskModel, no_progress
from birdie_jax.tasks.training_examples import (
    PROMPT_OBJECTIVE,
    GeneratedExamples,
    PartialExamples,
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
    "HeadTask",
    "LMEvalTask",
    "PartialExamples",
    "Progress",
    "Question",
    "QuestionTask",
    "RecordedExamples",
    "ScoredAnswer",
    "Share",
    "Task",
    "TaskModel",
    "TaskResult",
    "TokenTask",
    "agreement",
    "associative_recall",
    "contract_nli",
    "example_lengths",
    "glue",
    "infilling",
    "instructions",
    "jsonl",
    "labelled_text",
    "make_task",
    "masked_text",
    "no_progress",
    "noisy_recall",
    "objective_by_length",
    "perplexity",
    "phonebook",
    "quality",
    "register_task",
    "squad",
    "squad_spans",
    "task_of_flag",
    "task_of_section",
    "training_example",
]
