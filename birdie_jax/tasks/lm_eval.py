"""Multiple-choice tasks of the LM Evaluation Harness, as a task of `evaluate`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from birdie_jax.errors import ConfigError, shown
from birdie_jax.storage import Bounds
from birdie_jax.tasks.question import Question, ScoredAnswer, TaskResult
from birdie_jax.tasks.records import OptionalDataPath
from birdie_jax.tasks.registry import register_task
from birdie_jax.tasks.task import Task
from birdie_jax.tasks.task_model import Progress, TaskModel, no_progress
from birdie_jax.text import Tokenizer

if TYPE_CHECKING:
    from birdie_jax.tasks.lm_harness import HarnessModel

_Count = Annotated[int, Bounds(at_least=0, at_most=2**31)]
# The harness's accuracy, which compares total log-likelihoods.
_ACCURACY = "acc"


@register_task
@dataclass(frozen=True, kw_only=True)
class LMEvalTask(Task):
    """Multiple-choice tasks of the harness that have the metric `acc`.

    Each document of the harness is a question with two scores:

    - `accuracy`: the harness's `acc`, which compares the sum of the log-likelihoods of each choice's
      tokens.
    - `accuracy_per_token`: `acc` with the mean log-likelihood per token instead (Birdie paper, Table 8).

    Each name in `tasks` has the same weight in the mean, for any number of documents. So the mean over
    `lm_harness.PAPER_TASKS` is the average of Table 2 of the paper. For harness tasks with perplexities or
    generated answers, use `python -m birdie_jax.lm_eval`.

    Attributes:
        tasks: the names of tasks, groups or tags of the harness.
        include_path: a folder with more tasks as YAML files, relative to the current folder; empty = none.
        limit: the largest number of documents of each task; 0 = all.
        num_fewshot: the number of solved examples before each question; None = the default of each task.
    """

    name: ClassVar[str] = "lm_eval"
    main_metric: ClassVar[str] = "accuracy_per_token"

    tasks: tuple[str, ...]
    include_path: OptionalDataPath = ""
    limit: _Count = 0
    num_fewshot: _Count | None = None

    def __post_init__(self):
        if not self.tasks:
            raise ValueError("tasks: found none; allowed: one or more names of tasks of the harness")

    def check_data(self, tokenizer: Tokenizer) -> None:
        """Check that the harness is installed and has the tasks, without downloading documents."""
        del tokenizer
        self._manager()

    def measure(self, model: TaskModel, progress: Progress = no_progress) -> TaskResult:
        """Run the harness on the model.

        Raises:
            ConfigError: the harness is not installed or does not have a task, or a task has no accuracy.
        """
        manager = self._manager()
        from lm_eval.evaluator import evaluate  # pyright: ignore[reportMissingImports]

        from birdie_jax.tasks.lm_harness import HarnessModel

        parts = {name: manager.load([name]) for name in self.tasks}
        loaded = {
            kind: {key: value for part in parts.values() for key, value in part[kind].items()}
            for kind in ("tasks", "groups", "group_map")
        }
        for name, task in loaded["tasks"].items():
            if task.OUTPUT_TYPE != "multiple_choice" or _ACCURACY not in task.aggregation():
                raise ConfigError(
                    f"lm_eval.tasks: found {name}, which has no {_ACCURACY} of multiple choice; allowed: "
                    "multiple-choice tasks; run the others with python -m birdie_jax.lm_eval"
                )
            if self.num_fewshot is not None:
                task.set_config(key="num_fewshot", value=self.num_fewshot)
        harness = HarnessModel(model)
        results = evaluate(harness, loaded, limit=self.limit or None, bootstrap_iters=0)
        answers, given = [], set()
        for part in parts.values():
            own = [name for name in part["tasks"] if name not in given]
            given.update(own)
            samples = [(name, sample) for name in own for sample in results["samples"][name]]
            answers += [
                _scored(name, loaded["tasks"][name], sample, 1 / len(samples), harness)
                for name, sample in samples
            ]
        progress(len(answers), len(answers))
        return TaskResult(tuple(answers))

    def _manager(self) -> Any:
        """Return a task manager of the harness that has the tasks."""
        try:
            from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

            from birdie_jax.tasks.lm_harness import HarnessModel  # noqa: F401
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"the task lm_eval needs the package {error.name}; allowed: pip install "
                "'birdie-jax[lm_eval]'"
            ) from error
        # Try without the harness's own tasks first: indexing thousands of tasks takes seconds.
        manager = TaskManager(include_path=self.include_path or None, include_defaults=False)
        if not all(manager.match_tasks([name]) for name in self.tasks):
            manager = TaskManager(include_path=self.include_path or None)
        for name in self.tasks:
            if not manager.match_tasks([name]):
                raise ConfigError(
                    f"lm_eval.tasks: found {shown(name)}; allowed: the names that `lm_eval ls tasks` "
                    "gives, and those of include_path"
                )
        return manager


def _scored(
    name: str, task: Any, sample: Mapping[str, Any], weight: float, harness: "HarnessModel"
) -> ScoredAnswer:
    """Return the scored answer of a document of the harness.

    For `accuracy_per_token`, the harness scores the document again with mean log-likelihoods per token.
    """
    pairs: Sequence[tuple[str, str]] = sample["arguments"]
    found = [tuple(response) for response in sample["filtered_resps"]]
    tokens = [max(harness.count_tokens(context, continuation), 1) for context, continuation in pairs]
    per_token = [(total / count, greedy) for (total, greedy), count in zip(found, tokens, strict=True)]
    normalised = task.process_results(sample["doc"], per_token)
    best = max(range(len(pairs)), key=lambda number: per_token[number][0])
    choices = tuple(continuation for _, continuation in pairs)
    return ScoredAnswer(
        Question(
            name=f"{name}/{sample['doc_id']}",
            prompt=pairs[0][0],
            references=(str(sample["target"]),),
            choices=choices,
        ),
        choices[best],
        {"accuracy": float(sample[_ACCURACY]), "accuracy_per_token": float(normalised[_ACCURACY])},
        weight=weight,
        details={"log_likelihoods": [total for total, _ in found], "tokens": tokens},
    )
