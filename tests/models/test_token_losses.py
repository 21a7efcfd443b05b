"""Tests chunked cross-entropy against float64 with all logits at once, and its memory."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.models import token_losses as module
from birdie_jax.models.token_losses import HELD_LOGITS_BYTES, token_losses
from tests.quick_jit import quick_jit

ROWS, LENGTH, FEATURES, VOCAB = 2, 12, 8, 40


@pytest.fixture(scope="module")
def inputs():
    """Return hidden, table, labels and mask; the mask is false for about half of the positions."""
    random = np.random.default_rng(0)
    hidden = random.normal(size=(ROWS, LENGTH, FEATURES))
    table = random.normal(size=(VOCAB, FEATURES))
    targets = random.integers(0, VOCAB, (ROWS, LENGTH))
    mask = random.uniform(size=(ROWS, LENGTH)) < 0.5
    # Some labels must be the greedy choice.
    targets[:, ::3] = (hidden @ table.T).argmax(-1)[:, ::3]
    return (
        jnp.asarray(hidden, jnp.float32),
        jnp.asarray(table, jnp.float32),
        jnp.asarray(targets, jnp.int32),
        jnp.asarray(mask),
    )


@pytest.fixture(scope="module")
def bias():
    """Return the bias of a head, large enough to change greedy choices."""
    return jnp.asarray(np.random.default_rng(2).normal(size=VOCAB) * 3, jnp.float32)


def oracle(hidden, table, targets, mask, bias=0.0):
    """Return (loss, correct, probabilities) from the definition, in float64."""
    logits = np.asarray(hidden, np.float64) @ np.asarray(table, np.float64).T + np.asarray(bias, np.float64)
    probabilities = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities /= probabilities.sum(-1, keepdims=True)
    label = np.take_along_axis(probabilities, np.asarray(targets)[..., None], -1)[..., 0]
    loss = np.where(mask, -np.log(label), 0)
    return loss, (logits.argmax(-1) == targets) & np.asarray(mask), probabilities


@pytest.mark.sampled
@pytest.mark.parametrize("chunk", [4, "held"])
def test_the_soft_cap_applies_before_the_bias(losses, inputs, bias):
    hidden, table, targets, mask = inputs
    cap = 2.0
    scores = cap * np.tanh(np.asarray(hidden, np.float64) @ np.asarray(table, np.float64).T / cap)
    # With the identity as the table, the scores are the hidden states.
    expected = oracle(scores, np.eye(VOCAB), targets, mask, bias)[:2]
    found = losses(hidden, table, targets, mask, bias=bias, soft_cap=cap)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.fixture
def losses(chunk, monkeypatch):
    """Return `token_losses` for a chunk size; "held" has no chunks, as on a CPU with few logits."""
    monkeypatch.setattr(module, "HELD_LOGITS_BYTES", HELD_LOGITS_BYTES if chunk == "held" else 0)
    # Return a new function each time, so JAX does not reuse a compiled program.
    return lambda *arrays, **bias: token_losses(*arrays, LENGTH if chunk == "held" else chunk, **bias)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("chunk", [1, 4, 12, 99, "held"])
def test_losses_greedy_choices_and_gradients_match_float64(inputs, bias, losses, biased):
    """The gradient of the bias is the sum of the gradients of the logits."""
    hidden, table, targets, mask = inputs
    weights = np.random.default_rng(1).uniform(0.5, 2, (ROWS, LENGTH))

    def total(hidden, table, bias):
        loss, correct = losses(hidden, table, targets, mask, **{"bias": bias} if biased else {})
        return jnp.sum(weights * loss), (loss, correct)

    of = (0, 1, 2) if biased else (0, 1)
    gradients, (loss, correct) = quick_jit(jax.grad(total, of, has_aux=True))(hidden, table, bias)
    expected_loss, expected_correct, probabilities = oracle(*inputs, bias if biased else 0.0)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5, atol=1e-6)
    assert loss.dtype == jnp.float32
    np.testing.assert_array_equal(correct, expected_correct)
    assert 0 < correct.sum() < mask.sum()
    assert (expected_correct != oracle(*inputs)[1]).any() == biased
    of_logits = probabilities - np.eye(VOCAB)[np.asarray(targets)]
    of_logits *= np.where(mask, weights, 0)[..., None]
    of_table = np.einsum("rtv,rtd->vd", of_logits, np.asarray(hidden))
    expected = (of_logits @ np.asarray(table), of_table, of_logits.sum((0, 1)))
    for found, wanted in zip(gradients, expected, strict=False):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert (gradients[0][~mask] == 0).all()


@pytest.mark.sampled
@pytest.mark.parametrize("chunk", [12, "held"])
def test_the_first_of_equal_scores_is_the_greedy_choice(losses):
    table = jnp.asarray([[0.0], [1.0], [1.0], [0.5]])
    targets = jnp.asarray([[0, 1, 2, 3]])
    _, correct = losses(jnp.ones((1, 4, 1)), table, targets, targets >= 0)
    np.testing.assert_array_equal(correct, [[False, True, False, False]])


def test_scores_of_bfloat16_activations_are_float32(inputs):
    """The loss of rounded inputs has the precision of float32, not of bfloat16."""
    hidden, table = (x.astype(jnp.bfloat16) for x in inputs[:2])
    loss, _ = quick_jit(token_losses, static_argnums=4)(hidden, table.astype(jnp.float32), *inputs[2:], 4)
    assert loss.dtype == jnp.float32
    np.testing.assert_allclose(loss, oracle(hidden, table, *inputs[2:])[0], rtol=1e-5, atol=1e-5)


def test_a_chunk_that_does_not_divide_the_length_is_refused(inputs):
    # Also on a CPU, which does not use the chunk, so a config fails on every machine or on none.
    with pytest.raises(ValueError, match=f"^{re.escape('loss chunk 5 does not divide the length 12')}$"):
        token_losses(*inputs, 5)


def test_memory_holds_one_chunk():
    rows, length, vocab, features = 2, 128, 1 << 17, 8
    all_logits = rows * length * vocab * 4

    def temporary_bytes(chunk):
        def total(hidden, table, targets, mask):
            return jnp.sum(token_losses(hidden, table, targets, mask, chunk)[0])

        shapes = (
            jax.ShapeDtypeStruct((rows, length, features), jnp.float32),
            jax.ShapeDtypeStruct((vocab, features), jnp.float32),
            jax.ShapeDtypeStruct((rows, length), jnp.int32),
            jax.ShapeDtypeStruct((rows, length), jnp.bool_),
        )
        program = quick_jit(jax.grad(total, (0, 1))).lower(*shapes).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert all_logits > HELD_LOGITS_BYTES
    assert temporary_bytes(8) < all_logits / 3
    assert temporary_bytes(length) >= all_logits, "the measure must see logits that are all held"
