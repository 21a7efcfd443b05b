"""The task of hidden tokens: what it hides, what it scores, and which models it asks."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.batching import layout_example
from birdie_jax.config_errors import ConfigError
from birdie_jax.generation import PromptError
from birdie_jax.objectives import NO_LABEL, make_mixture, make_objective, mixture_from_arms
from birdie_jax.tasks import task_of_flag
from birdie_jax.tasks.evaluation import NamedTask, arm_of_tasks
from birdie_jax.tasks.masked_text import MaskedText
from birdie_jax.text import DataError
from tests.quick_jit import quick_jit
from tests.tasks.tiny_task_model import tiny_model_parts, tiny_task_model


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "held-out.txt"
    path.write_text("abc de fgh ijk lmno abcd " * 8)
    return path


def test_scores_are_those_of_the_models_logits(path):
    """Window by window, each alone, from all logits in float64."""
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


def test_a_window_that_is_too_long_or_too_short(path):
    with pytest.raises(ConfigError) as error:
        MaskedText(path=str(path), window=63).measure(tiny_task_model(max_length=64))
    assert str(error.value) == (
        "task masked_text: window: found 63; allowed: at most 62: the longest rows that the model has "
        "learned have 64 positions"
    )
    with pytest.raises(DataError) as error:
        MaskedText(path=str(path), window=5).measure(tiny_task_model())
    assert str(error.value) == f"{path}: holds no text of 8 tokens; allowed: at least one"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("masked_text", "--task=masked_text: found path='' and prepared=''; allowed: one of them"),
        (
            "masked_text:path=a,mask_share=0.9,random_share=0.2",
            "--task=masked_text: masked_lm: random_share: found 0.2; allowed: at most 1 - mask_share = 0.1",
        ),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        task_of_flag(settings)


def test_which_arm_tasks_ask_in():
    masked = NamedTask("a", MaskedText(path="x"))
    asking = NamedTask("b", task_of_flag("perplexity:path=x"))
    encoder = make_mixture("masked_lm", 128).arms
    both = mixture_from_arms({"hide": {"objective": "masked_lm"}, "go_on": {"objective": "prefix_lm"}}).arms
    assert arm_of_tasks(encoder, None, [masked]) is encoder[0]
    assert arm_of_tasks(both, None, [masked]).name == "hide"
    assert arm_of_tasks(both, None, [masked, asking]).name == "go_on"
    with pytest.raises(PromptError, match=r"^the model was trained as an encoder, on masked_lm alone: "):
        arm_of_tasks(encoder, None, [masked, asking])
    message = (
        "task masked_text: the model was trained on prefix_lm; allowed: one that has learned to name "
        "hidden tokens, by masked_lm"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        arm_of_tasks(both[1:], None, [masked])
