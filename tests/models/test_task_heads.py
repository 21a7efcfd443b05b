"""Tests heads for fine-tuning against float64 loops, in packed rows, and the token types of text pairs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from birdie_jax.batching import pack_rows
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models import build_model
from birdie_jax.models.choice_head import RIGHT_CHOICE, WRONG_CHOICE
from birdie_jax.models.layout import packed_layout
from birdie_jax.models.parameters import collect_policies
from birdie_jax.models.regression_head import label_of_number
from birdie_jax.models.sample_scores import sample_losses, score_samples, token_types
from birdie_jax.models.span_head import MAX_SPAN_POSITIONS, label_of_span
from birdie_jax.models.task_head import HEADS, Samples, head_type
from birdie_jax.tasks.head_task import labelled_example
from birdie_jax.vocabulary import MASKED_LM, SEPARATOR
from tests.models.conftest import tiered
from tests.quick_jit import quick_jit
from tests.trained_workdirs import micro_config

FEATURES = 6
# Two samples with padding between and after them, and a row of one sample.
SEGMENTS = np.array([[1, 1, 1, 0, 2, 2, 2, 2, 0], [1, 1, 1, 1, 1, 0, 0, 0, 0]], np.int32)
SAMPLES = {(0, 0): (0, 3), (0, 1): (4, 8), (1, 0): (0, 5)}
FIRST = np.array([[0, 4], [0, 1]], np.int32)


def config_of(kind, outputs=1, **more):
    settings = {"features": FEATURES, "head": kind, "head_name": "topic", "head_outputs": outputs} | more
    return dataclasses.replace(ModelConfig(), **settings)


def scores_of(config, row_keys=None):
    """Return the head's scores of random activations, and the activations, parameters and samples."""
    random = np.random.default_rng(0)
    x = random.normal(size=(*SEGMENTS.shape, FEATURES)).astype(np.float32)
    head, samples = head_type(config)(config), Samples(jnp.asarray(SEGMENTS), jnp.asarray(FIRST))
    shapes = jax.eval_shape(head.init, jax.random.key(0), x, samples)["params"]
    params = jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype(np.float32), shapes)
    arrays = jax.tree.map(jnp.asarray, params)
    scores = head.apply({"params": arrays}, jnp.asarray(x), samples, row_keys)
    return scores, x.astype(np.float64), params, samples


def pooled_scores(x, params):
    """Return the scores of each sample, computed one at a time."""
    found = {}
    for (row, number), (begin, end) in SAMPLES.items():
        mean = sum(x[row, place] for place in range(begin, end)) / (end - begin)
        pooled = np.tanh(mean @ params["pooler"]["kernel"] + params["pooler"]["bias"])
        found[row, number] = pooled @ params["topic"]["kernel"] + params["topic"]["bias"]
    return found


def test_classification_reads_the_mean_of_a_sample():
    config = config_of("classification", 3)
    scores, x, params, samples = scores_of(config)
    labels = jnp.asarray([[2, 3], [1, 0]])
    found = head_type(config).losses(config, scores, labels, samples)
    for place, wanted in pooled_scores(x, params).items():
        np.testing.assert_allclose(scores[place], wanted, rtol=1e-5, atol=1e-5)
        label = int(labels[place]) - 1
        assert found.losses[place] == pytest.approx(logsumexp(wanted) - wanted[label], abs=1e-5)
        assert found.correct[place] == (wanted.argmax() == label)


def test_regression_labels_keep_three_decimals():
    config = config_of("regression")
    scores, x, params, samples = scores_of(config)
    numbers = np.array([[2.333, 0.0], [5.0, 0.0]])
    labels = jnp.asarray([[label_of_number(number) for number in row] for row in numbers.tolist()])
    found = head_type(config).losses(config, scores, labels, samples)
    for place, wanted in pooled_scores(x, params).items():
        assert found.losses[place] == pytest.approx((wanted[0] - numbers[place]) ** 2, abs=1e-4)
    for wrong in (-0.001, 1e6 + 1, float("nan")):
        with pytest.raises(ValueError, match="allowed: a number from 0 to 1,000,000"):
            label_of_number(wrong)


def test_a_choice_head_scores_each_choice():
    config = config_of("choice", 2)
    scores, x, params, samples = scores_of(config)
    labels = jnp.asarray([[WRONG_CHOICE, RIGHT_CHOICE], [0, 0]])
    found = head_type(config).losses(config, scores, labels, samples)
    wanted = np.array([pooled_scores(x, params)[0, number][0] for number in range(2)])
    np.testing.assert_allclose(found.losses[0], logsumexp(wanted) - wanted[1], rtol=1e-5)
    np.testing.assert_array_equal(found.correct[0], wanted.argmax() == 1)


@pytest.mark.parametrize("spans", [((0, 0), (1, 3), (4, 4)), ((1, 2), (0, 0), (0, 4))])
def test_a_span_begins_and_ends_within_its_sample(spans):
    config = config_of("spans")
    scores, x, params, samples = scores_of(config)
    labels = np.zeros((2, 2), np.int32)
    for place, span in zip(SAMPLES, spans, strict=True):
        labels[place] = label_of_span(*span)
    found = head_type(config).losses(config, scores, jnp.asarray(labels), samples)
    each = x @ params["topic"]["kernel"] + params["topic"]["bias"]
    for place, span in zip(SAMPLES, spans, strict=True):
        begin, end = SAMPLES[place]
        of_sample = each[place[0], begin:end]
        losses = [logsumexp(of_sample[:, side]) - of_sample[span[side], side] for side in range(2)]
        assert found.losses[place] == pytest.approx(np.mean(losses), abs=1e-5)
        assert found.correct[place] == (tuple(of_sample.argmax(axis=0)) == span)


def test_impossible_spans_are_refused():
    for begin, end in ((-1, 2), (3, 2), (0, MAX_SPAN_POSITIONS)):
        with pytest.raises(ValueError, match=f"found {begin} to {end}; allowed: 0 <= begin <= end <"):
            label_of_span(begin, end)


def test_dropout_differs_between_samples_and_is_scaled():
    config = config_of("classification", 3, head_dropout=0.5)
    keys = jax.random.split(jax.random.key(1), 2)
    scores, x, params, _ = scores_of(config, keys)
    wanted, kept = pooled_scores(x, params), []
    for (row, number), (begin, end) in SAMPLES.items():
        pooled = np.tanh(
            x[row, begin:end].mean(axis=0) @ params["pooler"]["kernel"] + params["pooler"]["bias"]
        )
        terms = 2 * pooled[:, None] * params["topic"]["kernel"]
        masks = np.array(list(np.ndindex(*(2,) * FEATURES)))
        distance = np.abs(masks @ terms + params["topic"]["bias"] - scores[row, number]).max(axis=1)
        assert distance.min() < 1e-4 < np.abs(wanted[row, number] - scores[row, number]).max()
        kept.append(tuple(masks[distance.argmin()]))
    assert len(set(kept)) == 3


@pytest.mark.parametrize("kind", HEADS)
def test_the_parameters_of_a_head_have_policies(kind):
    config = config_of(kind, 3, dtype="bfloat16")
    samples = Samples(jnp.asarray(SEGMENTS), jnp.asarray(FIRST))
    x = jnp.zeros((*SEGMENTS.shape, FEATURES))
    policies = collect_policies(head_type(config)(config), x, samples)
    assert sorted(policies) == (["topic"] if kind == "spans" else ["pooler", "topic"])
    assert policies["topic"]["kernel"].weight_decay and not policies["topic"]["bias"].weight_decay
    assert {policy.compute_dtype for policy in jax.tree.leaves(policies)} == {jnp.dtype("float32")}


def sample(*texts, label=1):
    parts = [MASKED_LM]
    for text in texts:
        parts += [*text, SEPARATOR]
    return labelled_example(np.array(parts, np.int32), label)


PAIR, SINGLE = sample([300, 301, 302], [303, 304], label=2), sample([305, 306], label=1)


def test_the_type_of_a_token_is_the_number_of_its_text():
    batch = pack_rows([[SINGLE, PAIR, SINGLE], [PAIR]], 20, 1)
    layout = packed_layout(jnp.asarray(batch.segment_ids), jnp.asarray(batch.bidirectional))
    config = micro_config(name="stack_attention").model
    types = np.asarray(token_types(config, jnp.asarray(batch.tokens), layout))
    pair, single = [0] * 5 + [1] * 3, [0] * 4
    assert types[0].tolist()[:4] == single and types[0].tolist()[5:13] == pair
    assert types[0].tolist()[14:18] == single and types[1].tolist()[:8] == pair
    assert token_types(micro_config().model, jnp.asarray(batch.tokens), layout) is None


@pytest.mark.parametrize("name", tiered({"gated_ssm"}, ["bigs", "gated_ssm"]))
def test_the_loss_of_a_sample_does_not_depend_on_its_row(name):
    """Tests a sample alone, as in evaluation, packed with others, and with more padding."""
    config = micro_config(name=name, head="classification", head_name="topic", head_outputs=2).model
    model = build_model(config, 384)
    rows = [[PAIR, SINGLE], [SINGLE], []]
    batch = jax.tree.map(jnp.asarray, pack_rows(rows, 24, 4))
    params = quick_jit(model.init)(jax.random.key(0), batch)["params"]
    assert set(params["task_head"]) == {"pooler", "topic"}
    losses = quick_jit(lambda room, batch: sample_losses(model, room, params, batch), static_argnums=0)
    packed = losses(3, batch)
    assert packed.given.tolist() == [[True, True, False], [True, False, False], [False] * 3]
    np.testing.assert_allclose(packed.found.losses[1, 0], packed.found.losses[0, 1], rtol=1e-5)
    assert (packed.found.losses[~packed.given] == 0).all()
    alone = jax.tree.map(jnp.asarray, pack_rows([[PAIR], [SINGLE], []], 24, 4))
    scores = np.asarray(quick_jit(lambda batch: score_samples(model, params, batch))(alone), np.float64)
    for row, label in enumerate((1, 0)):
        wanted = logsumexp(scores[row, 0]) - scores[row, 0, label]
        assert packed.found.losses[0, row] == pytest.approx(wanted, rel=1e-5)
    # A row with too many samples has NaN losses, so no sample is ignored silently.
    crowded = losses(1, batch)
    assert np.isnan(crowded.found.losses[0]).all() and np.isfinite(crowded.found.losses[1:]).all()
