"""Tests hybrids: their layers alternate between blocks of several models, each with its own cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.config import ModelConfig, default_config, parse_config
from birdie_jax.engine.mesh import check_divisible
from birdie_jax.errors import ConfigError
from birdie_jax.interop.tensor_names import name_parameters
from birdie_jax.models import LanguageModel, build_model, language_model_names
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.griffin import GriffinConfig
from birdie_jax.models.hawk import HawkConfig
from birdie_jax.models.key_value_cache import KeyValueCache
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.models.layer_stacks import Block, layer_configs, make_mixer, restacked, unstacked
from birdie_jax.models.layers import keys_of_layers
from birdie_jax.models.layout import batch_layout
from birdie_jax.models.mamba2 import Mamba2Config
from birdie_jax.models.matrix_recurrence import MatrixCache
from birdie_jax.models.recurrence import RecurrentCache
from birdie_jax.models.saved_state import (
    SavedState,
    cache_from_names,
    cache_shapes,
    name_cache,
    stack_states,
)
from birdie_jax.models.window_cache import WindowCache
from tests.models.conftest import VOCAB, tiered
from tests.quick_jit import quick_jit

# Cases: whole periods and a part of one; whole periods; less than a period; another order.
PATTERNS = {
    "recurrent,recurrent,attention": {3: "rra", 5: "rrarr", 2: "rr"},
    "attention, recurrent": {1: "a", 4: "arar", 5: "arara"},
    "gated_deltanet,mamba2,attention": {4: "dmad"},
}
LAYERS = [(pattern, layers) for pattern, sizes in PATTERNS.items() for layers in sizes]
KINDS = {"r": "hawk_mlp", "a": "transformer", "d": "gated_deltanet", "m": "mamba2"}
CACHES = {"r": RecurrentCache, "a": WindowCache, "d": MatrixCache, "m": MatrixCache}


def hybrid(pattern="recurrent,recurrent,attention", layers=5, window=3, **fields):
    sections = (
        HawkConfig(heads=4),
        AttentionConfig(heads=4, kv_heads=1, window=window),
        Mamba2Config(head_features=4),
    )
    return ModelConfig(
        **{
            "name": "griffin",
            "layers": layers,
            "features": 16,
            "state": 16,
            "mlp_features": 32,
            "dtype": "float32",
            "remat": "none",
            "sections": (*sections, GriffinConfig(pattern)),
            **fields,
        }
    )


def shapes_of(config):
    named = name_parameters(parameter_shapes(build_model(config, VOCAB)))
    return {name: leaf.shape for name, leaf in named.items()}


def part(named, layer):
    """Return the parameters of a layer by their names within the layer."""
    prefix = f"layers.{layer}."
    return {name.removeprefix(prefix): one for name, one in named.items() if name.startswith(prefix)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("pattern", "layers"), LAYERS)
def test_layers_follow_the_pattern_up_to_the_last_layer(pattern, layers):
    config = hybrid(pattern, layers)
    kinds = [KINDS[letter] for letter in PATTERNS[pattern][layers]]
    assert [layer.name for layer in layer_configs(config)] == kinds
    named = shapes_of(config)
    for layer, kind in enumerate(kinds):
        assert part(named, layer) == part(shapes_of(hybrid(name=kind, layers=1)), 0)
    assert not any(name.startswith(f"layers.{layers}.") for name in named)


@pytest.mark.parametrize(("pattern", "layers"), LAYERS)
def test_caches_are_unstacked_and_restacked_by_layer(pattern, layers):
    config = hybrid(pattern, layers)
    cache = build_model(config, VOCAB).empty_cache(2)
    parts = unstacked(config, cache)
    assert [type(part) for part in parts] == [CACHES[letter] for letter in PATTERNS[pattern][layers]]
    numbered = [jax.tree.map(lambda leaf, n=n: leaf + leaf.dtype.type(n), p) for n, p in enumerate(parts)]
    back = unstacked(config, restacked(config, numbered))
    assert jax.tree.structure(restacked(config, numbered)) == jax.tree.structure(cache)
    jax.tree.map(np.testing.assert_array_equal, back, numbered)


def test_a_saved_state_names_the_cache_of_every_layer():
    model = build_model(hybrid(), VOCAB)
    random = np.random.default_rng(0)
    cache = jax.tree.map(
        lambda leaf: random.normal(size=leaf.shape).astype(leaf.dtype), cache_shapes(model)
    )
    named = name_cache(cache)
    assert named["periods.block_1.state"].shape == (1, 1, 8)
    assert named["periods.block_2.keys"].shape == (1, 1, 3, 1, 4)
    assert "rest.block_1.conv_tail" in named
    jax.tree.map(np.testing.assert_array_equal, cache_from_names(model, named), cache)
    other = jax.tree.map(lambda leaf: leaf + leaf.dtype.type(1), cache)
    rows = stack_states([SavedState(one, 5, 5, 0) for one in (cache, other)])
    for row, one in enumerate((cache, other)):
        own = jax.tree.map(lambda leaf, row=row: leaf[:, row : row + 1], rows)
        jax.tree.map(np.testing.assert_array_equal, own, one)


def test_attention_without_a_window_requires_a_length():
    model = build_model(hybrid(window=0), VOCAB)
    with pytest.raises(ValueError, match="attention needs length"):
        model.empty_cache(2)
    assert {type(part) for part in unstacked(model.config, model.empty_cache(2, 8))} == {
        RecurrentCache,
        KeyValueCache,
    }


@pytest.mark.parametrize("remat", tiered({"full"}, ["none", "full"]))
def test_the_model_applies_its_blocks_in_order(remat, packed):
    """Dropout keys depend on the layer's number. The test finds layers by their exported names."""
    config = hybrid("attention,recurrent", 3, dropout=0.3, remat=remat)
    model = build_model(config, VOCAB)
    params = quick_jit(model.init)(jax.random.key(0), packed)["params"]
    layout, row_keys = batch_layout(packed), jax.random.split(jax.random.key(1), 1)

    @quick_jit
    def whole(params):
        encode = LanguageModel.encode
        return model.apply({"params": params}, packed.tokens, layout, None, row_keys, method=encode)[0]

    def layer_params(layer):
        tree = {}
        for name, tensor in part(name_parameters(params), layer).items():
            *path, last = name.split(".")
            inner = tree
            for key in path:
                inner = inner.setdefault(key, {})
            inner[last] = tensor
        return tree

    @quick_jit
    def by_blocks(layers):
        x = model.apply({"params": params}, packed.tokens, layout, method=LanguageModel.embed)
        keys = keys_of_layers(row_keys, config.layers)
        for number, (own, kind) in enumerate(zip(layers, "ara", strict=True)):
            block = Block(hybrid(dropout=0.3, name=KINDS[kind]))
            x, _ = block.apply({"params": own}, x, None, layout, keys[number])
        return model.apply({"params": params}, x, method=LanguageModel.normalise)

    expected = by_blocks([layer_params(layer) for layer in range(config.layers)])
    np.testing.assert_allclose(whole(params), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pattern", ["recurrent,griffin", "recurrent,bigs", "recurrent,,attention"])
def test_a_pattern_with_unusable_names_is_refused(pattern):
    config = default_config()
    # The pattern is checked for every model.
    config.model.griffin.pattern = pattern
    with pytest.raises(ConfigError) as error:
        parse_config(config)
    assert str(error.value) == (
        f"config.model.griffin.pattern: found {pattern!r}; allowed: names of layers with commas between, "
        f"of recurrent, attention, {', '.join(sorted(set(language_model_names()) - {'griffin'}))}"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hawk": {"heads": 3}}, "config.model.hawk.heads: found 3; allowed: a divisor of model.state"),
        ({"attention": {"heads": 3}}, "config.model.attention.heads: found 3; allowed: a divisor of model"),
    ],
)
def test_layers_of_a_hybrid_keep_their_checks(changes, message):
    config = default_config()
    config.model.update(name="griffin", **changes)
    with pytest.raises(ConfigError, match=f"^{message}"):
        parse_config(config)


def test_a_mesh_must_suit_all_layers():
    config = default_config()
    config.model.update(name="griffin", attention={"kv_heads": 2})
    parsed = parse_config(config)
    check_divisible(parsed, 32_256, {"data": 1, "fsdp": 1, "tensor": 2, "sequence": 1}, 2)
    with pytest.raises(ConfigError, match=r"must divide model\.attention\.kv_heads = 2"):
        check_divisible(parsed, 32_256, {"data": 1, "fsdp": 1, "tensor": 4, "sequence": 1}, 4)
    config.mesh.sequence = 2
    with pytest.raises(ConfigError) as error:
        parse_config(config)
    assert str(error.value) == (
        "config.mesh.sequence: found 2; allowed: 1 for griffin: attention reads whole rows"
    )


def test_a_hybrid_has_no_mixer():
    with pytest.raises(
        ValueError, match="found 'griffin', whose layers differ; allowed for one layer: hawk"
    ):
        make_mixer(hybrid())


@pytest.mark.slow
def test_each_layer_has_its_own_parameters(packed):
    params = quick_jit(build_model(hybrid(), VOCAB).init)(jax.random.key(0), packed)["params"]
    gates = [tensor for name, tensor in name_parameters(params).items() if name.endswith("mlp.gate.kernel")]
    assert len(gates) == 5
    assert all(not jnp.allclose(one, other) for n, one in enumerate(gates) for other in gates[:n])
