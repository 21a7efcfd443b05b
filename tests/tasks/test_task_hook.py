"""Tasks measured during training: schedule, logged scores, errors and the stop rule."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from birdie_jax.engine import HookCall, TrainState, mesh_of
from birdie_jax.engine.coordination import Processes
from birdie_jax.engine.hook_registry import HookParts
from birdie_jax.errors import ConfigError, DataError, ScoreError, TrainingDiverged
from birdie_jax.models import build_model
from birdie_jax.objectives import Arm, make_objective
from birdie_jax.storage.workdir import Workdir
from birdie_jax.tasks import TaskModel
from birdie_jax.tasks.evaluation import NamedTask
from birdie_jax.tasks.glue import Glue
from birdie_jax.tasks.jsonl import JsonlTask
from birdie_jax.tasks.summary import mean_scores
from birdie_jax.tasks.task_hook import TaskEvaluation
from tests.tasks.toy_tasks import Lengths
from tests.trained_workdirs import micro_config, random_params, small_tokenizer

ARM = Arm("prefix_lm", make_objective("prefix_lm"), "prefix_lm")


def parts_of(config, folder):
    model = build_model(config.model, small_tokenizer().vocab_size)
    return HookParts(config, Workdir(folder), mesh_of(), model)


def make_hook(folder, every=0, stop_when=""):
    config = micro_config()
    measured = dataclasses.replace(config.eval, tasks_every_steps=every, stop_when=stop_when)
    config = dataclasses.replace(config, eval=measured)
    parts = parts_of(config, folder)
    return TaskEvaluation(parts, [NamedTask("size", Lengths())], small_tokenizer(), [ARM], Processes())


ENCODER = "the model was trained as an encoder, on masked_lm alone: it"
GO_ON = "task size: found lengths, which asks a model to"


@pytest.mark.parametrize(
    ("objectives", "message"), [(["masked_lm"], ENCODER), (["masked_lm", "prefix_lm"], GO_ON)]
)
def test_a_task_that_the_model_cannot_do_is_refused_before_training(tmp_path, objectives, message):
    config = micro_config()
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, name="bigs"))
    parts = parts_of(config, tmp_path)
    arms = [Arm(name, make_objective(name), name) for name in objectives]
    with pytest.raises(ConfigError, match=f"^config.eval.tasks: {message}"):
        TaskEvaluation(parts, [NamedTask("size", Lengths())], small_tokenizer(), arms, Processes())


def test_a_task_without_scores_is_refused_before_training(tmp_path):
    named = NamedTask("rte", Glue(dataset="rte", path="x", split="test"))
    parts = parts_of(micro_config(), tmp_path)
    message = (
        "config.eval.tasks.rte: found glue of a split without labels; allowed: a split with labels; use "
        "evaluate --predictions for one without"
    )
    with pytest.raises(ConfigError, match=f"^{message}$"):
        TaskEvaluation(parts, [named], small_tokenizer(), [ARM], Processes())


def test_bad_data_is_reported_before_training(tmp_path):
    named = [NamedTask("mine", JsonlTask(path="none.jsonl"))]
    with pytest.raises(DataError, match=r"^config\.eval\.tasks: .*none\.jsonl"):
        TaskEvaluation(parts_of(micro_config(), tmp_path), named, small_tokenizer(), [ARM], Processes())


def state_of(seed):
    params = jax.tree.map(jnp.asarray, random_params(micro_config(), small_tokenizer().vocab_size, seed))
    return TrainState(jnp.int32(4), params, {}, {})


def call(reported, *, stops=False):
    return HookCall(4, 8, True, reported.append, lambda: stops)


def test_a_run_logs_the_scores_of_its_tasks(tmp_path, capsys):
    """The hook measures new parameters, and prints skipped questions once."""
    hook = make_hook(tmp_path)
    for seed in (0, 1):
        reported, state = [], state_of(seed)
        result = hook.run(state, call(reported))
        assert result.state is state
        tokenizer = small_tokenizer()
        model = TaskModel(
            build_model(micro_config().model, tokenizer.vocab_size), state.params, tokenizer, ARM
        )
        answers = Lengths().measure(model).answers
        means = mean_scores(Lengths(), answers)
        expected = {f"task/size/{metric}": interval.mean for metric, interval in means.items()}
        assert result.scalars == expected | {
            "task/size/answers": len(answers),
            "task/size/not_asked": len(Lengths.sizes) + 1 - len(answers),
        }
        assert reported == ["size, its first questions", "size, 8 of 8 questions"]
    message = "task size: 2 skipped, the first: lengths.txt line 3: found no question\n"
    assert capsys.readouterr().out == message


def test_scores_that_are_not_finite_end_a_run(tmp_path, monkeypatch):
    """A loss that is not finite raises the same error."""

    def measure(task, model, progress):
        raise ScoreError("a.tsv: line 2: found nan among the head's scores; allowed: finite numbers")

    monkeypatch.setattr(Lengths, "measure", measure)
    message = (
        r"^step 4: task size: a\.tsv: line 2: found nan among the head's scores; allowed: finite numbers$"
    )
    with pytest.raises(TrainingDiverged, match=message):
        make_hook(tmp_path).run(state_of(0), call([]))


def test_a_stopping_run_returns_no_result(tmp_path):
    assert make_hook(tmp_path).run(state_of(0), call([], stops=True)) is None


@pytest.mark.parametrize(
    ("rule", "ends"),
    [
        ("", False),
        ("size/answers >= 1", True),
        (" size/answers<=1e6 ", True),
        ("size/answers >= 1e6", False),
        ("size/answers <= 0", False),
    ],
)
def test_a_rule_ends_a_run_when_it_is_true(tmp_path, rule, ends):
    assert make_hook(tmp_path, 4, rule).run(state_of(0), call([])).ends_run == ends


FORM = "allowed: '', or TASK/METRIC >= NUMBER or TASK/METRIC <= NUMBER, where TASK is one of size$"


@pytest.mark.parametrize(
    ("every", "rule", "message"),
    [
        (4, "answers >= 1", rf"config\.eval\.stop_when: found 'answers >= 1'; {FORM}"),
        (4, "size/answers > 1", rf"config\.eval\.stop_when: found 'size/answers > 1'; {FORM}"),
        (4, "size/answers >= x", rf"config\.eval\.stop_when: found 'size/answers >= x'; {FORM}"),
        (4, "size/answers >= nan", rf"config\.eval\.stop_when: found 'size/answers >= nan'; {FORM}"),
        (4, "other/answers >= 1", rf"config\.eval\.stop_when: found 'other/answers >= 1'; {FORM}"),
        (
            0,
            "size/answers >= 1",
            r"config\.eval\.tasks_every_steps: found 0, which measures only at the end; allowed .*",
        ),
    ],
)
def test_a_bad_rule_is_refused_before_training(tmp_path, every, rule, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        make_hook(tmp_path, every, rule)


def test_a_rule_with_an_unknown_metric_names_the_metrics(tmp_path):
    message = r"^config\.eval\.stop_when: found the metric size/nothing; allowed: size/.*size/answers"
    with pytest.raises(ConfigError, match=message):
        make_hook(tmp_path, 4, "size/nothing >= 1").run(state_of(0), call([]))


@pytest.mark.parametrize(
    ("every", "due"), [(0, [8]), (3, [3, 6, 8]), (8, [8]), (100, [8])], ids=["end", "3", "8", "100"]
)
def test_tasks_are_measured_at_regular_steps_and_at_the_end(tmp_path, every, due):
    hook = make_hook(tmp_path, every)
    assert [step for step in range(9) if hook.is_due(step, 8)] == due
