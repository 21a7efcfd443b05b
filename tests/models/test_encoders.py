"""Tests the four encoders: the paper's sizes and FLOPs, symmetry, both directions, and refused configs.

test_information_flow.py tests information flow, packing and padding.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.config import ModelConfig, default_config, parse_config
from birdie_jax.engine.automatic_sizes import count_parameters
from birdie_jax.errors import ConfigError
from birdie_jax.models import build_model, encoder_names
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.models.layers import keys_of_layers
from birdie_jax.models.layout import batch_layout, packed_layout
from birdie_jax.models.parameters import ParameterPolicy, parameter_policies, resize_rows
from birdie_jax.models.s4d import BidirectionalS4D
from birdie_jax.planning.model_flops import model_flops_per_token
from tests.models.conftest import ENCODER, LENGTH, SECTIONS, VOCAB, compiled, tiered
from tests.quick_jit import quick_jit

BERT_VOCABULARY = 30_522


def sized(name, layers, features, positions=128, **section):
    """Return an encoder with the paper's proportions."""
    inner = 3 if name in ("bigs", "gated_attention") else 4
    return ModelConfig(
        name=name,
        layers=layers,
        features=features,
        mlp_features=inner * features,
        sections=(EncoderConfig(positions=positions, **section),),
    )


def test_cells_with_12_and_13_layers_have_equal_weights():
    """Each has 156 D^2 weights; biases, norms and state-space parameters add a few thousandths."""
    layers = {"bigs": 12, "gated_attention": 12, "stack_ssm": 13, "stack_attention": 13}
    found = [count_parameters(sized(name, layers[name], 128), 4096) for name in encoder_names()]
    assert max(found) / min(found) < 1.003


def test_flops_count_maps_and_mixing():
    """Lookups in tables do not count; the table of the head does."""
    features, length = 128, 128
    head = features * BERT_VOCABULARY + BERT_VOCABULARY + features**2
    for name, maps, mixing in (
        ("bigs", 13 * features**2, 2 * 3 * 2 * length * features),
        ("stack_attention", 12 * features**2, 12 * length * features),
    ):
        expected = 2 * (6 * maps + mixing) + 6 * head
        found = model_flops_per_token(sized(name, 2, features), BERT_VOCABULARY, length)
        assert found == pytest.approx(expected, rel=2e-3)
    long = [model_flops_per_token(sized("bigs", 2, 64, 4096), 512, length) for length in (512, 4096)]
    assert long[0] == long[1]


def masked_lm_layout(*lengths, length=LENGTH):
    """Return the layout of one row of samples that are all context, then padding."""
    segments = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    segments = jnp.asarray(np.pad(segments, (0, length - len(segments))), jnp.int32)[None]
    return packed_layout(segments, segments > 0)


def mirrored(params):
    """Return parameters with the two directions of every layer swapped."""
    flipped = {"forward": "backward", "backward": "forward"}

    def renamed(name):
        direction, _, rest = name.partition("_")
        return f"{flipped[direction]}_{rest}" if direction in flipped else name

    return {
        name: mirrored(value) if isinstance(value, dict) else value
        for name, value in ((renamed(name), value) for name, value in params.items())
    }


@pytest.mark.parametrize(
    ("name", "form"), tiered({("bigs", "toeplitz")}, [("bigs", "toeplitz"), ("stack_ssm", "chunked")])
)
def test_the_mirrored_row_has_the_mirrored_scores(name, form, make):
    """The parameters of the two directions are swapped, and there are no positions."""
    model, variables = make(name=name, sections=(replace(ENCODER, ssm_form=form, ssm_chunk=7),))
    params = dict(variables["params"])
    params["position_embedding"] = jnp.zeros_like(params["position_embedding"])
    tokens = jax.random.randint(jax.random.key(0), (1, LENGTH), 256, VOCAB)

    @quick_jit
    def scores(params, tokens, segments):
        layout = packed_layout(segments, segments > 0)
        hidden, _ = model.apply({"params": params}, tokens, layout, method="hidden")
        return model.apply({"params": params}, hidden, method="logits")[0]

    for lengths in ((LENGTH,), (9, 11)):
        segments = masked_lm_layout(*lengths).segment_ids
        read = np.asarray(segments[0] > 0)
        found = scores(mirrored(params), tokens[:, ::-1], segments[:, ::-1])[::-1]
        expected = scores(params, tokens, segments)
        np.testing.assert_allclose(found[read], expected[read], rtol=1e-4, atol=1e-4)
        unswapped = scores(params, tokens[:, ::-1], segments[:, ::-1])[::-1]
        assert np.abs(found - unswapped)[read].max() > 0.1


@pytest.mark.parametrize("form", tiered({"chunked"}, ["toeplitz", "chunked"]))
def test_a_masked_tokens_loss_reaches_only_its_whole_sample(form, make):
    section = replace(ENCODER, ssm_form=form, ssm_chunk=7)
    model, variables = make(name="bigs", sections=(section,))
    layout, masked = masked_lm_layout(9, 11), 4
    rows = jax.random.normal(jax.random.key(0), (1, LENGTH, 16))

    def score(self, x):
        hidden = self.transform(self.normalise(self.blocks(x, None, layout, None)[0]))
        return jax.nn.log_softmax(self.logits(hidden)[0, masked])[7]

    loss = partial(model.apply, variables, method=score)
    reached = np.abs(quick_jit(jax.grad(loss))(rows)).sum(-1)[0]
    assert reached[:9].min() > 1e-6
    assert (reached[9:] == 0).all()


def test_the_two_directions_are_joined_as_configured():
    config = ModelConfig(features=8, dtype="float32", sections=(EncoderConfig(ssm_state=4),))
    layout = masked_lm_layout(9, 11)
    x = jax.random.normal(jax.random.key(0), (1, LENGTH, 8))
    params = quick_jit(BidirectionalS4D(config, "sum").init)(jax.random.key(1), x, layout)["params"]
    params = jax.tree.map(lambda leaf: leaf + 0.3, params)

    @quick_jit
    def outputs(params, x):
        return {
            combination: BidirectionalS4D(config, combination).apply({"params": params}, x, layout)
            for combination in ("sum", "product", "serial")
        }

    def without(name):
        nothing = jax.tree.map(jnp.zeros_like, params[f"{name}_out"])
        return {**params, f"{name}_out": nothing}

    found = outputs(params, x)
    forward, backward = (outputs(without(name), x)["sum"] for name in ("backward", "forward"))
    np.testing.assert_allclose(found["sum"], forward + backward, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["product"], forward * backward, rtol=1e-5, atol=1e-5)
    # The backward layer reads the output of the forward layer.
    serial = outputs(without("forward"), forward)["sum"]
    np.testing.assert_allclose(found["serial"], serial, rtol=1e-5, atol=1e-5)


def test_a_tiled_table_of_positions_keeps_the_scores_of_short_rows(make, packed):
    model, variables = make(name="bigs")
    longer, _ = make(name="bigs", sections=(replace(ENCODER, positions=2 * LENGTH + 1),))
    table = variables["params"]["position_embedding"]
    tiled = resize_rows(table, 2 * LENGTH + 1)
    np.testing.assert_array_equal(tiled, np.concatenate([table, table, table[:1]]))
    params = {**variables["params"], "position_embedding": tiled}
    np.testing.assert_array_equal(
        compiled(longer)({"params": params}, packed), compiled(model)(variables, packed)
    )
    np.testing.assert_array_equal(resize_rows(tiled, LENGTH), table)
    layers = jnp.stack([table, 2 * table])
    np.testing.assert_array_equal(resize_rows(layers, 30, axis=1)[1], resize_rows(2 * table, 30))


def test_token_types_and_the_head_bias_change_the_scores(make, packed):
    model, variables = make(name="bigs")
    params = dict(variables["params"])
    apply = quick_jit(
        lambda params, types: model.apply(
            {"params": params}, packed.tokens, batch_layout(packed), token_types=types, method="encode"
        )[0]
    )
    first = (packed.segment_ids == 1).astype(jnp.int32)
    plain, typed = apply(params, jnp.zeros_like(first)), apply(params, first)
    changed = np.abs(plain - typed).max(-1)[0] > 1e-6
    np.testing.assert_array_equal(changed, first[0] == 1)
    bias = jnp.arange(VOCAB, dtype=jnp.float32)
    scores = quick_jit(partial(model.apply, method="logits"))
    logits = [scores({"params": {**params, "scores_bias": one}}, plain) for one in (jnp.zeros(VOCAB), bias)]
    np.testing.assert_allclose(logits[1] - logits[0], jnp.broadcast_to(bias, logits[0].shape), atol=1e-3)


def test_embedding_dropout_depends_on_the_key_of_each_row(make, packed):
    model, variables = make(name="bigs")
    assert model.drops
    assert not make(name="bigs", sections=(replace(ENCODER, embedding_dropout=0.0),))[0].drops
    rows = jax.tree.map(lambda leaf: jnp.repeat(leaf, 2, axis=0), packed)
    keys = jax.random.split(jax.random.key(3), 2)
    embed = quick_jit(
        lambda keys: model.apply(variables, rows.tokens, batch_layout(rows), keys, method="embed")
    )
    plain, dropped = embed(None), embed(keys)
    zero = np.asarray(dropped == 0)
    np.testing.assert_allclose(dropped[~zero], plain[~zero] / 0.9, rtol=1e-5)
    assert 0.05 < zero.mean() < 0.15
    assert (zero[0] != zero[1]).any()
    np.testing.assert_array_equal(embed(keys[::-1]), dropped[::-1])
    # The blocks use other keys.
    assert not (keys_of_layers(keys, 2) == keys_of_layers(keys, 3)[-1]).any()


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("bigs", {}),
        ("stack_attention", {"kernel_deviation": 0.1, "table_deviation": 0.05}),
        pytest.param("stack_ssm", {}, marks=pytest.mark.slow),
        pytest.param("gated_attention", {"kernel_deviation": 0.1}, marks=pytest.mark.slow),
    ],
)
def test_initial_weights_have_the_configured_deviation(name, section, pack):
    model = build_model(sized(name, 2, 64, attention_heads=4, token_types=64, **section), 64)
    params = quick_jit(model.init)(jax.random.key(0), pack([[(1, 1)]], length=4))["params"]
    kernels = [
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params["blocks"])
        if path[-1].key == "kernel"
    ]
    assert len(kernels) >= 5
    for kernel in kernels:
        assert float(kernel.std()) == pytest.approx(section.get("kernel_deviation", 0.02), rel=0.05)
    for table in ("embedding", "position_embedding", "token_type_embedding"):
        assert float(params[table].std()) == pytest.approx(section.get("table_deviation", 0.02), rel=0.05)
    assert float(params["head_transform"]["kernel"].std()) == pytest.approx(64**-0.5, rel=0.05)


def test_state_space_parameters_learn_slowly_and_do_not_decay():
    policies = parameter_policies(build_model(replace(sized("stack_ssm", 2, 16), layers=2), 64))
    for direction in ("forward", "backward"):
        layer = policies["blocks"]["mixer"]["routing"][f"{direction}_ssm"]
        for name in ("A_re", "A_im"):
            assert layer[name] == ParameterPolicy((None, None), False, learning_rate_factor=0.1)
        for name in ("log_step", "D"):
            assert layer[name] == ParameterPolicy((None,), False, learning_rate_factor=0.1)
        assert layer["C"] == ParameterPolicy((None, None, None), weight_decay=True)
    others = [
        (path[-1].key, policy)
        for path, policy in jax.tree_util.tree_leaves_with_path(policies)
        if not any(part.key.endswith("_ssm") for part in path)
    ]
    for name, policy in others:
        assert policy.learning_rate_factor == 1
        assert policy.weight_decay == (name in ("kernel", "embedding", "position_embedding"))
    assert "token_type_embedding" in dict(others)


@pytest.mark.parametrize("name", encoder_names())
def test_encoders_refuse_to_generate(name):
    model = build_model(ModelConfig(name=name, layers=1, features=16, sections=SECTIONS), VOCAB)
    with pytest.raises(ConfigError) as error:
        model.empty_cache(1, 4)
    assert str(error.value) == (
        f"config.model.name: found '{name}', a bidirectional encoder, which cannot generate: each of its "
        "tokens reads those after it, so a cache cannot continue from token to token; allowed: "
        "gated_ssm_plus, birdie_ssm, gated_deltanet, gated_ssm, gated_ssm_mlp, griffin, hawk, hawk_mlp, "
        "mamba, mamba2, transformer"
    )


def config_with(name="bigs", length=128, mesh=None, model=None, **section):
    config = default_config()
    config.model.update(name=name, layers=2, features=48, mlp_features=96, **model or {})
    config.model.encoder.update(section)
    config.batching.length = length
    config.mesh.update(mesh or {})
    return config


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            {"length": 1024},
            "model.encoder.positions: found 512; allowed: at least the longest rows, of 1024 tokens",
        ),
        ({"activation": "relu"}, "model.encoder.activation: found 'relu'; allowed: tanh, exact"),
        ({"ssm_form": "fft"}, "model.encoder.ssm_form: found 'fft'; allowed: toeplitz, chunked"),
        (
            {"ssm_min_step": 0.1, "ssm_max_step": 0.01},
            "model.encoder.ssm_max_step: found 0.01; allowed: at least model.encoder.ssm_min_step = 0.1",
        ),
        ({"ssm_heads": 5}, "model.encoder.ssm_heads: found 5; allowed: a divisor of model.features = 48"),
        (
            {"name": "stack_attention", "attention_heads": 5},
            "model.encoder.attention_heads: found 5; allowed: a divisor of model.features = 48",
        ),
        ({"mesh": {"sequence": 2}}, "mesh.sequence: found 2; allowed: 1: bigs reads whole rows"),
        (
            {"model": {"residual_dtype": "float32"}},
            "model.residual_dtype: found 'float32'; allowed: '': the encoder bigs does not read it",
        ),
        (
            {"name": "gated_attention", "combination": "sum"},
            "model.encoder.combination: found 'sum'; allowed: '': the encoder gated_attention does not "
            "read it",
        ),
    ],
)
def test_impossible_configurations_are_refused(found, message):
    with pytest.raises(ConfigError) as error:
        parse_config(config_with(**found))
    assert str(error.value) == f"config.{message}"


@pytest.mark.parametrize(
    ("found", "field"),
    [
        ({}, "model.features = 48"),
        ({"ssm_heads": 8}, "model.encoder.ssm_heads = 8"),
        ({"name": "gated_attention"}, "model.encoder.attention_heads = 16"),
    ],
)
def test_tensor_divides_channels_or_heads(found, field):
    model = parse_config(config_with(**found)).model
    section = model.section(EncoderConfig)
    size = 32 if field == "model.features = 48" else 3
    assert section.mesh_problem(model, 128, "tensor", size) == f"it must divide {field}"
    assert section.mesh_problem(model, 128, "tensor", 2) is None
    assert section.mesh_problem(model, 128, "fsdp", 16) is None
    assert section.mesh_problem(model, 128, "sequence", 2) == f"{model.name} reads whole rows"


def test_rows_longer_than_the_positions_are_refused(make):
    model, variables = make(name="bigs")
    tokens = jnp.ones((1, LENGTH + 1), jnp.int32)
    with pytest.raises(ValueError) as error:
        model.apply(variables, tokens, masked_lm_layout(LENGTH + 1, length=LENGTH + 1), method="hidden")
    assert str(error.value) == (
        "model 'bigs': found rows of 25 tokens; allowed: at most config.model.encoder.positions = 24"
    )
