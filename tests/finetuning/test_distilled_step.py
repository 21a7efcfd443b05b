"""Distillation: losses of both models against NumPy, weights of the parts, gradients."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.batching import pack_rows
from birdie_jax.config_sections import FinetuneTeacherConfig
from birdie_jax.finetuning.distilled_step import distilled_loss, relation_losses
from birdie_jax.models.layout import batch_layout
from birdie_jax.objectives import Example
from birdie_jax.pretraining.language_model_step import language_model_loss
from tests.generation.conftest import VOCAB, small_model
from tests.quick_jit import quick_jit

LENGTH = 24
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@cache
def models():
    """Return a student and a teacher with another mixer and width, with their parameters."""
    return *small_model("gated_ssm"), *small_model("mamba", features=32, state=32)


@cache
def batch():
    random = np.random.default_rng(0)

    def example(context, target, arm):
        tokens = random.integers(256, VOCAB, context + target).astype(np.int32)
        return Example(tokens[:context], tokens[context:], arm)

    rows = [[example(0, 13, 0), example(2, 5, 1)], [example(8, 5, 1), example(0, 3, 0)]]
    return jax.tree.map(jnp.asarray, pack_rows(rows, LENGTH, 1))


@cache
def taught(chunk=LENGTH, **settings):
    """Return the loss, its sums, and its gradients for student and teacher."""
    model, params, teacher, teacher_params = models()
    settings = FinetuneTeacherConfig("teacher", **settings)

    @quick_jit
    def run(params, teacher_params):
        def loss(params, teacher_params):
            return distilled_loss(model, teacher, 2, chunk, settings, teacher_params).sums(params, batch())

        return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, teacher_params)

    return run(params, teacher_params)


def float64(array):
    return np.asarray(array, np.float64)


def log_softmax(scores):
    scores = scores - scores.max(axis=-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))


def by_arm(losses):
    given, arms = np.asarray(batch().loss_mask), np.asarray(batch().arm_ids)
    return [losses[given & (arms == arm)].sum() for arm in range(2)]


def test_losses_match_whole_distributions_in_float64():
    model, params, teacher, teacher_params = models()
    scores, goal = (
        float64(one.apply({"params": of}, batch()))
        for one, of in ((model, params), (teacher, teacher_params))
    )
    targets = np.asarray(batch().targets)[..., None]
    loss, teacher_loss = (
        -np.take_along_axis(log_softmax(each), targets, -1)[..., 0] for each in (scores, goal)
    )
    own, theirs = (log_softmax(each / 2.0) for each in (scores, goal))
    divergence = (np.exp(theirs) * (theirs - own)).sum(axis=-1)
    (total, sums), _ = taught(logits=0.3, temperature=2.0)
    np.testing.assert_allclose(sums["loss"], by_arm(loss), **CLOSE)
    np.testing.assert_allclose(sums["teacher_loss"], by_arm(teacher_loss), **CLOSE)
    np.testing.assert_allclose(sums["divergence"], by_arm(divergence), **CLOSE)
    expected = 0.7 * sum(by_arm(loss)) + 0.3 * 4.0 * sum(by_arm(divergence))
    assert float(total) == pytest.approx(expected, rel=1e-4)
    np.testing.assert_array_equal(sums["relations"], 0)


def test_tokens_that_the_student_bars_do_not_count():
    model, params, teacher, teacher_params = models()
    own, theirs = (
        log_softmax(float64(one.apply({"params": of}, batch()))[..., 256:])
        for one, of in ((model, params), (teacher, teacher_params))
    )
    divergence = (np.exp(theirs) * (theirs - own)).sum(axis=-1)
    barring = model.clone(config=dataclasses.replace(model.config, min_predicted_id=256))
    settings = FinetuneTeacherConfig("teacher")
    loss = distilled_loss(barring, teacher, 2, LENGTH, settings, teacher_params)
    _, sums = quick_jit(loss.sums)(params, batch())
    np.testing.assert_allclose(sums["divergence"], by_arm(divergence), **CLOSE)


def test_relation_losses_match_loops():
    model, params, teacher, teacher_params = models()
    own, theirs = (
        one.apply({"params": of}, batch().tokens, batch_layout(batch()), method="hidden")[0]
        for one, of in ((model, params), (teacher, teacher_params))
    )
    mask, samples = np.asarray(batch().loss_mask), np.asarray(batch().segment_ids)
    expected = np.zeros(mask.shape)

    def cosine(hidden, row, one, other):
        one, other = float64(hidden[row, one]), float64(hidden[row, other])
        return one @ other / np.sqrt((one @ one) * (other @ other))

    for row, last in zip(*np.nonzero(mask), strict=True):
        before = [last - distance for distance in (1, 2, 4, 8, 16) if last >= distance]
        found = [
            (cosine(own, row, last, first) - cosine(theirs, row, last, first)) ** 2
            for first in before
            if mask[row, first] and samples[row, first] == samples[row, last]
        ]
        expected[row, last] = np.mean(found) if found else 0.0
    assert np.count_nonzero(expected) > 10
    np.testing.assert_allclose(relation_losses(own, theirs, batch()), expected, rtol=1e-4, atol=1e-6)
    (total, sums), _ = taught(logits=0.0, hidden=3.0)
    np.testing.assert_allclose(sums["relations"], by_arm(expected), **CLOSE)
    assert float(total) == pytest.approx(float(sums["loss"].sum()) + 3.0 * expected.sum(), rel=1e-4)


def test_zero_weights_give_the_usual_loss():
    model, params, *_ = models()
    (total, sums), (gradient, _) = taught(logits=0.0)
    usual = quick_jit(jax.value_and_grad(language_model_loss(model, 2, LENGTH).sums, has_aux=True))
    (expected, its_sums), its_gradient = usual(params, batch())
    np.testing.assert_allclose(total, expected, **CLOSE)
    for name, value in its_sums.items():
        np.testing.assert_allclose(sums[name], value, **CLOSE)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, **CLOSE), gradient, its_gradient)


def test_no_gradient_reaches_the_teacher_and_chunks_only_change_rounding():
    whole, (gradient, of_teacher) = taught(logits=0.5, hidden=1.0)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(of_teacher))
    parts, (its_gradient, _) = taught(chunk=8, logits=0.5, hidden=1.0)
    for one, other in ((whole, parts), (gradient, its_gradient)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), one, other)


def test_a_teacher_equal_to_the_student_adds_no_gradient():
    model, params, *_ = models()
    settings = FinetuneTeacherConfig("teacher", logits=1.0, hidden=1.0)
    loss = distilled_loss(model, model, 2, LENGTH, settings, params).sums
    (total, sums), gradient = quick_jit(jax.value_and_grad(loss, has_aux=True))(params, batch())
    assert float(total) == pytest.approx(0.0, abs=1e-4)
    np.testing.assert_allclose(sums["loss"], sums["teacher_loss"], **CLOSE)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) < 1e-4
