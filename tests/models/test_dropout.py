"""Tests that dropout zeroes its share, scales the rest, and depends only on row, layer and branch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.batching.packing import pack_rows
from birdie_jax.config import ModelConfig
from birdie_jax.models import build_model
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.language_model import LanguageModel
from birdie_jax.models.layers import dropout, keys_of_layers
from birdie_jax.models.layout import batch_layout
from birdie_jax.objectives import Example
from tests.models.conftest import tiered
from tests.quick_jit import quick_jit

RATE, VOCAB = 0.3, 384


def keys(rows, seed=0):
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(seed), jnp.arange(rows))


def test_dropout_zeroes_its_share_and_scales_the_rest():
    dropped = np.asarray(dropout(jnp.ones((4, 64, 64)), RATE, keys(4), 0))
    assert (dropped == 0).mean() == pytest.approx(RATE, abs=0.02)
    np.testing.assert_allclose(dropped[dropped > 0], 1 / (1 - RATE), rtol=1e-6)
    assert dropped.mean() == pytest.approx(1, abs=0.02)


def test_masks_differ_by_row_layer_and_branch():
    x, layers = jnp.ones((2, 32, 32)), keys_of_layers(keys(2), 3)
    masks = [
        dropout(x, RATE, layers[layer], branch)[row]
        for layer in range(3)
        for branch in (0, 1)
        for row in (0, 1)
    ]
    agreement = [[float((one == other).mean()) for other in masks] for one in masks]
    # Independent masks agree where both keep a value or both drop it.
    expected = np.full((12, 12), RATE**2 + (1 - RATE) ** 2)
    np.fill_diagonal(expected, 1)
    np.testing.assert_allclose(agreement, expected, atol=0.06)


def test_a_mask_does_not_depend_on_other_rows():
    x = jnp.ones((4, 8, 8))
    whole = dropout(x, RATE, keys(4), 1)
    np.testing.assert_array_equal(dropout(x[1::2], RATE, keys(4)[1::2], 1), whole[1::2])


@pytest.fixture(scope="module")
def packed():
    random = np.random.default_rng(0)
    tokens = random.integers(256, VOCAB, 24).astype(np.int32)
    return jax.tree.map(jnp.asarray, pack_rows([[Example(tokens[:10], tokens[10:])]] * 2, 24, 3))


CASES = [("gated_ssm_plus", "full"), ("transformer", "none")]


@pytest.mark.parametrize(("name", "remat"), tiered({CASES[0]}, CASES))
def test_a_model_drops_only_with_keys(name, remat, packed):
    def hidden(rate, row_keys=None):
        settings = {"layers": 2, "features": 16, "state": 16, "mlp_features": 16, "dtype": "float32"}
        settings["sections"] = (AttentionConfig(heads=4),)
        model = build_model(ModelConfig(name=name, remat=remat, dropout=rate, **settings), VOCAB)
        params = quick_jit(model.init)(jax.random.key(0), packed)["params"]

        def apply(params, row_keys):
            layout = batch_layout(packed)
            return model.apply(
                {"params": params}, packed.tokens, layout, row_keys=row_keys, method=LanguageModel.hidden
            )[0]

        return np.asarray(quick_jit(apply)(params, row_keys))

    plain = hidden(0.0)
    np.testing.assert_array_equal(hidden(RATE), plain)
    np.testing.assert_array_equal(hidden(0.0, keys(2)), plain)
    dropped = hidden(RATE, keys(2))
    # The rows differ only in their dropout.
    np.testing.assert_array_equal(plain[0], plain[1])
    assert (np.abs(dropped - plain).max(axis=(1, 2)) > 0.1).all()
    assert np.abs(dropped[0] - dropped[1]).max() > 0.1
