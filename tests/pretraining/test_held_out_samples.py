"""Samples at the end of a run: the context, the correct tokens, and the model's predictions."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.batch import Batch
from birdie_jax.batching import pack_rows
from birdie_jax.models import build_model
from birdie_jax.models.layout import batch_layout
from birdie_jax.models.predictions import Predictions, predict_targets
from birdie_jax.objectives import Example, make_mixture
from birdie_jax.pretraining.held_out_samples import _with_first_targets, describe_sample
from tests.quick_jit import quick_jit
from tests.trained_workdirs import micro_config, random_params, small_tokenizer

LENGTH, PLACES = 64, 16


@pytest.fixture(scope="module")
def predicted():
    """A copying example, an empty row, and the predictions of a random model for the example."""
    tokenizer = small_tokenizer()
    context = np.array(tokenizer.encode("abc def ghi"), np.int32)
    target = np.array(tokenizer.encode("abc def"), np.int32)
    batch = pack_rows([[Example(context, target)], []], LENGTH, 2)
    config = micro_config()
    model = build_model(config.model, tokenizer.vocab_size)
    params = jax.tree.map(jnp.asarray, random_params(config, tokenizer.vocab_size, 0))
    found = quick_jit(lambda params, batch: predict_targets(model, PLACES, params, batch))(
        params, Batch(*map(jnp.asarray, batch))
    )
    arm = next(arm for arm in make_mixture("tiny", LENGTH).arms if not arm.objective.in_place)
    sample = describe_sample(arm, 0, batch, Predictions(*map(np.asarray, found)), tokenizer)
    return SimpleNamespace(
        tokenizer=tokenizer,
        context=context,
        target=target,
        batch=batch,
        model=model,
        params=params,
        sample=sample,
    )


def test_a_sample_has_the_context_and_the_correct_tokens(predicted):
    sample, decode = predicted.sample, predicted.tokenizer.decode
    assert sample["in_place"] is False
    assert sample["texts"] == [f"{decode(predicted.context)}[BEGIN]", *[""] * len(predicted.target)]
    assert [one["token"] for one in sample["hidden"]] == [
        decode([token]) for token in predicted.target.tolist()
    ]
    assert {one["shown"] for one in sample["hidden"]} == {""}
    json.dumps(sample)


def test_predictions_equal_those_of_the_whole_row(predicted):
    """The expected values come from the logits before each target, without `loss_mask`."""
    batch = Batch(*map(jnp.asarray, predicted.batch))
    variables = {"params": predicted.params}
    hidden, _ = predicted.model.apply(variables, batch.tokens, batch_layout(batch), method="encode")
    hidden = predicted.model.apply(variables, hidden, method="transform")
    table = predicted.model.apply(variables, method="head_table")
    logits = np.asarray(hidden[0] @ table.T, np.float64)
    first = len(predicted.context)
    for number, (token, one) in enumerate(zip(predicted.target, predicted.sample["hidden"], strict=True)):
        row = logits[first + number] - logits[first + number].max()
        probabilities = np.exp(row) / np.exp(row).sum()
        assert one["probability"] == pytest.approx(probabilities.max(), rel=1e-3)
        assert one["loss"] == pytest.approx(-np.log(probabilities[token]), rel=1e-3, abs=1e-4)
        assert one["is_right"] == (probabilities.argmax() == token)


def test_only_the_first_targets_and_all_labels_in_place_are_kept():
    count = 80
    tokens = np.arange(count, dtype=np.int32)
    written = Example(tokens[:3], tokens)
    in_place = Example(tokens, tokens[:0], labels=tokens + 1)
    batch = pack_rows([[written], [in_place], []], 128, 2)
    arms = [make_mixture(name, 128).arms[0] for name in ("tiny", "masked_lm")]
    assert [arm.objective.in_place for arm in arms] == [False, True]
    kept = _with_first_targets(batch, arms).loss_mask
    assert kept.sum(axis=1).tolist() == [64, count, 0]
    assert np.flatnonzero(kept[0]).tolist() == np.flatnonzero(batch.loss_mask[0])[:64].tolist()
