"""The second loss of fine-tuning: the remaining tokens predict the tokens that followed them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.batching import pack_rows
from birdie_jax.finetuning.pruned_step import dense_and_pruned_loss, draw_kept_shares, pruned_sums
from birdie_jax.models import LanguageModel
from birdie_jax.models.layer_stacks import Block
from birdie_jax.models.layout import packed_layout
from birdie_jax.objectives import Example
from birdie_jax.pretraining.language_model_step import language_model_loss
from birdie_jax.pruning import PruningSettings, encode_pruned, pruned_hidden
from birdie_jax.pruning.pruned_prefill import PromptRows
from tests.generation.conftest import VOCAB, small_model
from tests.quick_jit import quick_jit

pytestmark = pytest.mark.slow

LENGTH, SPACING, LAYERS = 24, 3, 2
EXACT = {"rtol": 1e-4, "atol": 1e-5}


def example(seed, context, target, arm=0):
    random = np.random.default_rng(seed)
    tokens = random.integers(256, VOCAB, context + target).astype(np.int32)
    return Example(tokens[:context], tokens[context:], arm)


ROWS = [[example(1, 0, 13)], [example(2, 8, 5, 1), example(3, 4, 3)]]
KEYS = jax.vmap(jax.random.key)(jnp.arange(len(ROWS)))


def packed(rows):
    return jax.tree.map(jnp.asarray, pack_rows(rows, LENGTH, SPACING))


def shares_by_sample(batch, shares):
    """Return the share of each token, from shares by row and sample."""
    table = jnp.asarray([[1.0, *row, *[1.0] * (3 - len(row))] for row in shares])
    return jnp.take_along_axis(table, batch.segment_ids, axis=1)


def close(found, expected):
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, **EXACT), found, expected)


def test_the_loss_is_dense_if_nothing_is_dropped():
    model, params = small_model("gated_ssm", layers=LAYERS)
    batch = packed([*ROWS, []])
    keys = jax.vmap(jax.random.key)(jnp.arange(3))
    settings = PruningSettings(keep_first=False)

    @quick_jit
    def both(params):
        def pruned(params):
            keep = jnp.ones(batch.tokens.shape)
            sums = pruned_sums(model, 2, LENGTH, settings, params, batch, keep, keys)
            return sums.pruned_loss.sum(), sums

        dense = language_model_loss(model, 2, LENGTH).sums
        return [
            jax.value_and_grad(loss, has_aux=True)(params)
            for loss in (pruned, lambda params: dense(params, batch))
        ]

    ((found, pruned), gradients), ((expected, by_arm), others) = both(params)
    close(found, expected)
    close(pruned.pruned_loss, by_arm["loss"])
    np.testing.assert_array_equal(pruned.surviving, by_arm["tokens"])
    close(gradients, others)


@pytest.mark.parametrize("name", ["gated_ssm", "mamba", pytest.param("mamba2", marks=pytest.mark.slow)])
def test_the_loss_predicts_the_original_next_tokens_of_survivors(name):
    """Compare with a pass per sample in which each layer reads only its own tokens, also for gradients."""
    model, params = small_model(name, layers=LAYERS, bidirectional=name != "mamba")
    batch, shares = packed(ROWS), [[0.5], [0.25, 0.9]]
    settings = PruningSettings(policy="recency", schedule="constant", keep_first=False)

    def pruned(params):
        keep = shares_by_sample(batch, shares)
        sums = pruned_sums(model, 2, LENGTH, settings, params, batch, keep, KEYS)
        return sums.pruned_loss.sum(), sums

    def of_sample(params, one, share):
        alone = packed([[one]])
        count = len(one.context) + len(one.target)
        places, x = np.arange(count), None
        for layer in range(LAYERS):
            left = count if layer == 0 else max(1, int(share * count + 0.5))
            layout = packed_layout(
                jnp.ones((1, left), jnp.int32), alone.bidirectional[:, count - left : count]
            )
            if x is None:
                x = model.apply({"params": params}, alone.tokens[:, :count], layout, method="embed")
            of_layer = jax.tree.map(lambda leaf, layer=layer: leaf[layer], params["blocks"])
            x, _ = Block(model.config).apply({"params": of_layer}, x[:, -left:], None, layout)
            places = places[-left:]
        normalised = model.apply({"params": params}, x, method=LanguageModel.normalise)
        scores = normalised[0].astype(jnp.float32) @ params["head"].T
        # The token after each place in the sample; the context has no loss.
        whole = np.concatenate([one.context, [1], one.target])
        counted = places >= len(one.context)
        chosen = jax.nn.log_softmax(scores)[np.flatnonzero(counted), whole[places[counted] + 1]]
        return -chosen.mean() * len(one.target), int(counted.sum())

    counts = []

    def expected(params):
        total = 0.0
        for row, of_row in zip(ROWS, shares, strict=True):
            for one, share in zip(row, of_row, strict=True):
                loss, count = of_sample(params, one, share)
                counts.append((one.arm, count))
                total += loss
        return total

    @quick_jit
    def both(params):
        return jax.value_and_grad(pruned, has_aux=True)(params), jax.value_and_grad(expected)(params)

    ((found, sums), gradients), (wanted, others) = both(params)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    left = [sum(count for arm, count in counts if arm == number) for number in range(2)]
    assert sums.surviving.tolist() == left and sum(left) < sum(
        len(one.target) for row in ROWS for one in row
    )
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-2, atol=2e-3), gradients, others
    )


def test_masks_and_static_shapes_drop_the_same_tokens():
    """With policy influence, the survivors and their outputs equal those of a prompt's pass."""
    model, params = small_model("gated_ssm", layers=3, bidirectional=False)
    batch, keep = packed([[example(5, 0, LENGTH)]]), 0.25
    settings = PruningSettings(keep=keep, keep_first=False)

    @quick_jit
    def both(params):
        key = KEYS[:1]
        shares = jnp.full(batch.tokens.shape, keep)
        prunable = batch.segment_ids > 0
        prompts = PromptRows(batch.tokens, batch.segment_ids, batch.bidirectional, key, prunable)
        cache = model.empty_cache(1)
        return (
            encode_pruned(model, params, batch, shares, key, settings),
            pruned_hidden(model, params, prompts, cache, settings, protected=1),
        )

    (hidden, tokens), (expected, _, read) = both(params)
    left = read[-1].index.shape[1]
    assert left == LENGTH // 2
    np.testing.assert_array_equal(tokens.segment_ids[0], [0] * (LENGTH - left) + [1] * left)
    np.testing.assert_array_equal(tokens.index[0, -left:], read[-1].index[0])
    np.testing.assert_allclose(hidden[0, -left:], expected[0], rtol=1e-3, atol=1e-4)


def test_shares_depend_only_on_row_and_sample():
    segment_ids = jnp.asarray([[1, 1, 0, 2, 2, 3]] * 400)
    keys = jax.vmap(jax.random.key)(jnp.arange(400))
    found = np.asarray(draw_kept_shares(keys, segment_ids, 0.9))
    np.testing.assert_array_equal(found[:, 0], found[:, 1])
    np.testing.assert_array_equal(found[:, 3], found[:, 4])
    samples = found[:, [0, 3, 5]]
    assert len(np.unique(samples)) > 0.99 * samples.size
    assert samples.min() > 0.1 and samples.max() <= 1
    # The shares are uniform: quarters of the interval have equal counts within four standard deviations.
    counts = np.histogram(samples, bins=4, range=(0.1, 1))[0]
    np.testing.assert_allclose(counts, samples.size / 4, atol=4 * (samples.size * 3 / 16) ** 0.5)
    np.testing.assert_array_equal(draw_kept_shares(keys[7:9], segment_ids[7:9], 0.9), found[7:9])


def test_both_losses_are_added_for_any_parts_of_a_batch():
    model, params = small_model("gated_ssm", layers=LAYERS)
    settings = PruningSettings(policy="random", keep_first=False)
    loss = dense_and_pruned_loss(model, 2, LENGTH, settings, 0.9)
    assert loss.takes_row_keys
    batch = packed(ROWS)
    assert loss.weight(batch) == 13 + 5 + 3
    run = quick_jit(loss.sums)
    total, sums = run(params, batch, KEYS)
    close(total, (sums["loss"] + sums["pruned_loss"]).sum())
    assert 0 < sums["surviving"].sum() < sums["tokens"].sum()
    parts = [
        run(params, jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], batch), KEYS[row : row + 1])
        for row in range(2)
    ]
    close(total, parts[0][0] + parts[1][0])
    close(sums, jax.tree.map(jnp.add, parts[0][1], parts[1][1]))
    other, _ = run(params, batch, KEYS[::-1])
    assert abs(float(other - total)) > 1e-3


def test_rematerialised_layers_give_the_same_gradient():
    model, params = small_model("gated_ssm", layers=LAYERS)
    again = LanguageModel(dataclasses.replace(model.config, remat="full"), VOCAB)
    batch, settings = packed(ROWS), PruningSettings(keep_first=False)

    def gradient(one):
        loss = dense_and_pruned_loss(one, 2, LENGTH, settings, 0.9)
        return quick_jit(jax.grad(lambda params: loss.sums(params, batch, KEYS)[0]))(params)

    close(gradient(again), gradient(model))
