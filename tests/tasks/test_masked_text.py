"""The task masked_text: scores, windows, arms and errors."""

import json
import re
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax import vocabulary
from birdie_jax.batching import layout_example
from birdie_jax.config import Config
from birdie_jax.config_sections import ModelConfig
from birdie_jax.errors import ConfigError, DataError, PromptError
from birdie_jax.objectives import NO_LABEL, make_mixture, make_objective, mixture_from_arms
from birdie_jax.tasks import task_of_flag
from birdie_jax.tasks.evaluation import AskedArms, NamedTask, arms_of_tasks, check_tasks
from birdie_jax.tasks.masked_text import MaskedText
from birdie_jax.tasks.task_model import FoundTokens, TaskModel
from tests.quick_jit import quick_jit
from tests.tasks.tiny_task_model import tiny_model_parts, tiny_task_model


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "held-out.txt"
    path.write_text("abc de fgh ijk lmno abcd " * 8)
    return path


def test_scores_match_the_models_logits(path):
    """The reference reads one window at a time and uses logits in float64."""
    task = MaskedText(path=str(path), window=30)
    answers = task.measure(tiny_task_model(rows=4)).answers
    model, params, tokenizer = tiny_model_parts()
    tokens = tokenizer.encode(path.read_text())
    objective = make_objective("masked_lm", num_pieces=tokenizer.num_pieces)
    starts = [start for start in range(0, len(tokens), 30) if len(tokens) - start >= 8]
    assert len(answers) == len(starts) > 3
    apply = quick_jit(model.apply)
    for start, answer in zip(starts, answers, strict=True):
        example = objective.build(tokens[start : start + 30], np.random.default_rng((0, 0, start)))
        row = layout_example(example)
        padded = type(row)(*(jnp.asarray(np.pad(field, (0, 32 - len(field))))[None] for field in row))
        logits = np.asarray(apply({"params": params}, padded)[0], np.float64)
        (places,) = np.nonzero(example.labels != NO_LABEL)
        labels = example.labels[places]
        losses = np.log(np.exp(logits[places]).sum(-1)) - logits[places, labels]
        assert answer.metrics["loss"] == pytest.approx(losses.mean(), rel=1e-5)
        assert answer.metrics["accuracy"] == (logits[places].argmax(-1) == labels).mean()
        assert answer.weight == len(labels)
    assert task.derived_metrics({"loss": 2.0}) == {"perplexity": pytest.approx(np.exp(2))}
    # JSON has no infinity.
    assert task.derived_metrics({"loss": 1e4}) == {"perplexity": sys.float_info.max}


def test_a_window_that_is_too_long_or_too_short_is_refused(path):
    for window, message in ((63, "at most 62: the longest rows"), (7, "at least 8, the fewest tokens")):
        with pytest.raises(
            ConfigError, match=f"task masked_text: window: found {window}; allowed: {message}"
        ):
            MaskedText(path=str(path), window=window).measure(tiny_task_model(max_length=64))
    (arm,) = mixture_from_arms({"hide": {"objective": "masked_lm", "min_length": 7}}).arms
    MaskedText(path=str(path), window=7).check_length(arm, 64)


def test_short_texts_are_reported(tmp_path):
    """The report includes short texts, and the rest of a text after its last whole window."""
    path = tmp_path / "held-out.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("xyz", "abcd " * 9, "pq")))
    tokens = [len(tiny_model_parts()[2].encode(text)) for text in ("xyz", "abcd " * 9, "pq")]
    window = next(size for size in range(8, tokens[1]) if 0 < tokens[1] % size < 8)
    result = MaskedText(path=str(path), window=window).measure(tiny_task_model())
    assert len(result.answers) == tokens[1] // window
    whole = tokens[1] - tokens[1] % window
    assert result.refused == tuple(
        f"{path}: {number} from {start}: masked_lm: the text has {count} tokens; it needs at least 8"
        for number, start, count in ((0, 0, tokens[0]), (1, whole, tokens[1] % window), (2, 0, tokens[2]))
    )
    path.write_text(json.dumps({"text": "xyz"}))
    with pytest.raises(DataError) as raised:
        MaskedText(path=str(path)).measure(tiny_task_model())
    assert str(raised.value) == f"{path}: holds no text of 8 tokens; allowed: at least one"


def test_each_task_gets_its_arm():
    masked = NamedTask("a", MaskedText(path="x"))
    prompted = NamedTask("b", task_of_flag("perplexity:path=x"))
    encoder = make_mixture("masked_lm", 128).arms
    both = mixture_from_arms({"hide": {"objective": "masked_lm"}, "go_on": {"objective": "prefix_lm"}}).arms
    hide, go_on = both
    assert arms_of_tasks(encoder, None, [masked]) == AskedArms(encoder[0], encoder[0])
    assert arms_of_tasks(both, None, [masked]) == AskedArms(hide, hide)
    assert arms_of_tasks(both, None, [prompted]) == AskedArms(go_on, None)
    arms = arms_of_tasks(both, None, [masked, prompted])
    assert arms == AskedArms(go_on, hide)
    assert (arms.of(masked.task), arms.of(prompted.task)) == (hide, go_on)
    with pytest.raises(PromptError, match=r"^the model was trained as an encoder, on masked_lm alone: "):
        arms_of_tasks(encoder, None, [masked, prompted])
    with pytest.raises(ConfigError, match="task masked_text: found a model trained on prefix_lm; allowed"):
        arms_of_tasks(both[1:], None, [masked])


def test_the_named_arm_is_used(path, monkeypatch):
    """Examples have the marker of the arm and the shares of the task."""
    markers = {"first": vocabulary.MASKED_LM, "second": vocabulary.COPYING, "third": None}
    fields = {"objective": "masked_lm", "rate": 0.5}
    arms = mixture_from_arms({name: fields | {"marker": of} for name, of in markers.items()}).arms
    task = MaskedText(path=str(path), window=30)
    given = []

    def keep(model, examples, progress):
        del model, progress
        given.append([example.context.tolist() for example in examples])
        counts = [int((example.labels != NO_LABEL).sum()) for example in examples]
        return [FoundTokens(np.full(count, 256, np.int32), np.ones(count, np.float32)) for count in counts]

    monkeypatch.setattr(TaskModel, "fill_in", keep)
    for arm in arms:
        task_arms = arms_of_tasks(arms, arm.name, [NamedTask("a", task)])
        assert task_arms == AskedArms(arm, arm)
        task.measure(tiny_task_model(arm_in_place=task_arms.in_place))
    first, second, bare = given
    assert [text[1:] for text in first] == [text[1:] for text in second] == bare
    assert {text[0] for text in first} == {vocabulary.MASKED_LM}
    assert {text[0] for text in second} == {vocabulary.COPYING}
    task.measure(tiny_task_model())
    assert given[-1] == first
    markers, form = "its arms have different markers", "tasks in place cannot take its form"
    for name, why in (("masked_lm", markers), ("copying", form)):
        message = f"objective {name!r}: {why}; allowed: the name of an arm that hides tokens: first, second"
        with pytest.raises(PromptError, match=f"^{message}, third$"):
            arms_of_tasks(arms, name, [NamedTask("a", task)])


def test_unusable_tasks_are_refused_before_the_model_runs():
    both = mixture_from_arms({"hide": {"objective": "masked_lm"}, "go_on": {"objective": "prefix_lm"}}).arms
    prompted = [NamedTask("text", task_of_flag("perplexity:path=x"))]
    long = [NamedTask("long", MaskedText(path="x", window=63))]
    encoder = Config(model=ModelConfig(name="bigs"))
    check_tasks(prompted, arms_of_tasks(both, None, prompted), Config(), None)
    check_tasks(long, arms_of_tasks(both, None, long), encoder, 65)
    for tasks, message in (
        (prompted, "task text: found perplexity, which asks a model to"),
        (long, "task masked_text: window: found 63; allowed: at most 62: the longest rows that the model"),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
            check_tasks(tasks, arms_of_tasks(both, None, tasks), encoder, 64)
