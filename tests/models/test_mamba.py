"""Tests Mamba: sizes, initial values, weight decay, and values and gradients of other implementations."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.config import ModelConfig
from birdie_jax.models import build_model
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.models.layout import causal_layout, packed_layout
from birdie_jax.models.mamba import STEP_RANGE, MambaConfig
from birdie_jax.models.parameters import parameter_policies
from tests.models import conftest
from tests.quick_jit import quick_jit

GPT_NEOX_VOCABULARY = 50_280


def mamba(**fields):
    return ModelConfig(**({"name": "mamba", "bidirectional": False, "dtype": "float32"} | fields))


@pytest.mark.parametrize(
    ("features", "layers", "parameters"),
    [
        (768, 24, 129_135_360),
        (1024, 48, 371_516_416),
        (1536, 48, 793_204_224),
        (2048, 48, 1_372_178_432),
        (2560, 64, 2_768_345_600),
    ],
)
def test_published_sizes_have_the_published_parameter_counts(features, layers, parameters):
    config = mamba(features=features, layers=layers, state=2 * features)
    shapes = parameter_shapes(build_model(config, GPT_NEOX_VOCABULARY))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == parameters


@pytest.fixture(scope="module")
def mixer():
    """Return the initial parameters of the mixers of three layers."""
    config = mamba(features=40, layers=3, state=400, sections=(MambaConfig(state_size=8),))
    one = jnp.zeros((1, 1), jnp.int32)
    model = build_model(config, 256)
    init = quick_jit(lambda key: model.init(key, one, causal_layout(1, 1), method="hidden"))
    return init(jax.random.key(0))["params"]["blocks"]["mixer"]


def test_the_rank_is_a_sixteenth_of_the_width_rounded_up(mixer):
    assert mixer["step"]["kernel"].shape == (3, 3, 400)
    config = mamba(features=40, layers=1, state=80, sections=(MambaConfig(time_step_rank=5),))
    shapes = parameter_shapes(build_model(config, 256))
    assert shapes["blocks"]["mixer"]["step"]["kernel"].shape == (1, 5, 80)


def test_initial_steps_are_log_uniform(mixer):
    steps = np.sort(np.logaddexp(0, np.asarray(mixer["step_bias"], np.float64)).ravel())
    low, high = STEP_RANGE
    assert 0.999 * low <= steps[0] < 1.1 * low
    assert high / 1.1 < steps[-1] <= 1.001 * high
    # The Kolmogorov-Smirnov distance from the uniform distribution, at a significance of 0.001.
    share = np.log(steps / low) / np.log(high / low)
    assert np.abs(share - np.arange(steps.size) / steps.size).max() < 1.95 * steps.size**-0.5


def test_initial_values_match_the_authors(mixer):
    np.testing.assert_allclose(
        mixer["A_log"], np.broadcast_to(np.log(np.arange(1, 9)), (3, 400, 8)), rtol=1e-6
    )
    np.testing.assert_array_equal(mixer["D"], 1)
    inputs = {"input": 40, "output_gate": 40, "selection": 400, "step": 3, "out": 400 * 3}
    bounds = {(name, "kernel"): count**-0.5 for name, count in inputs.items()}
    bounds |= {("convolution", "kernel"): 0.5, ("convolution", "bias"): 0.5}
    for (name, leaf), bound in bounds.items():
        values = np.asarray(mixer[name][leaf])
        assert np.abs(values).max() <= bound * 1.0001, name
        np.testing.assert_allclose(values.std(), bound * 3**-0.5, rtol=0.05, err_msg=name)
        np.testing.assert_allclose(values.mean(), 0, atol=0.1 * bound, err_msg=name)


def test_rates_skip_weights_and_steps_are_float32_without_decay():
    config = mamba(features=16, layers=1, state=32, dtype="bfloat16")
    mixer = parameter_policies(build_model(config, 256))["blocks"]["mixer"]
    for name in ("A_log", "D", "step_bias"):
        assert not mixer[name].weight_decay
        assert mixer[name].compute_dtype == jnp.float32
    assert not mixer["convolution"]["bias"].weight_decay
    kernels = [mixer[name]["kernel"] for name in ("input", "output_gate", "selection", "step", "out")]
    assert all(kernel.weight_decay and kernel.compute_dtype == jnp.bfloat16 for kernel in kernels)


def test_the_convolution_bias_does_not_leak_through_padding(make, packed):
    """With a bias, inputs are never zero, so padding must not enter the state."""
    model, variables = make(name="mamba", bidirectional=False)
    params = jax.tree.map(jnp.copy, variables["params"])
    bias = params["blocks"]["mixer"]["convolution"]["bias"]
    params["blocks"]["mixer"]["convolution"]["bias"] = bias + 3
    together = conftest.compiled(model)({"params": params}, packed)
    second = (np.asarray(packed.segment_ids[0]) == 2).nonzero()[0]
    alone = jax.tree.map(lambda field: field[:, second[0] : second[-1] + 1], packed)
    np.testing.assert_allclose(
        conftest.compiled(model)({"params": params}, alone)[0], together[0, second], rtol=1e-5, atol=1e-5
    )


@pytest.fixture(scope="module")
def recorded():
    """Return the results of `transformers` (record_oracles.py): arrays, parameters and gradients."""
    arrays = dict(np.load(Path(__file__).with_name("recorded") / "mamba.npz"))
    named = {kind: {} for kind in ("parameter", "gradient", "")}
    for key, value in arrays.items():
        kind, _, name = key.rpartition("/")
        named[kind][name] = value
    return named[""], named["parameter"], named["gradient"]


def renamed(theirs):
    """Return parameters of `transformers` under our names; the shared table is `embedding`."""
    inner = theirs["backbone.layers.0.mixer.D"].shape[0]

    def layers(name):
        return jnp.stack([theirs[f"backbone.layers.{layer}.{name}"] for layer in range(2)])

    def kernel(name):
        return {"kernel": layers(f"mixer.{name}.weight").swapaxes(1, 2)}

    both = layers("mixer.in_proj.weight").swapaxes(1, 2)
    mixer = {
        "input": {"kernel": both[..., :inner]},
        "output_gate": {"kernel": both[..., inner:]},
        # Their kernel begins with the oldest input.
        "convolution": {
            "kernel": layers("mixer.conv1d.weight")[:, :, 0, ::-1].swapaxes(1, 2),
            "bias": layers("mixer.conv1d.bias"),
        },
        "selection": kernel("x_proj"),
        "step": kernel("dt_proj"),
        "step_bias": layers("mixer.dt_proj.bias"),
        "A_log": layers("mixer.A_log"),
        "D": layers("mixer.D"),
        "out": kernel("out_proj"),
    }
    return {
        "embedding": jnp.asarray(theirs["backbone.embeddings.weight"]),
        "blocks": {"mixer_norm": {"scale": layers("norm.weight")}, "mixer": mixer},
        "final_norm": {"scale": jnp.asarray(theirs["backbone.norm_f.weight"])},
    }


def whole_model():
    """Return a function (parameters from `renamed`, tokens) -> scores."""
    sections = (MambaConfig(state_size=4, time_step_rank=3),)
    config = mamba(
        features=8, layers=2, state=16, norm_epsilon=1e-5, tie_embeddings=False, sections=sections
    )
    model = build_model(config, 24)

    def scores(params, tokens):
        table = params["embedding"]
        # We multiply embeddings by the root of their width, and they do not.
        params = params | {"embedding": table / 8**0.5, "head": table}
        layout = packed_layout(jnp.ones_like(tokens), jnp.zeros(tokens.shape, bool))
        hidden, _ = model.apply({"params": params}, tokens, layout, method="hidden")
        return model.apply({"params": params}, hidden, method="logits")

    return scores


def test_the_whole_model_matches_transformers(recorded):
    arrays, parameters, gradients = recorded
    tokens = jnp.asarray(arrays["tokens"])

    def results(params):
        scores, pull = jax.vjp(lambda params: whole_model()(params, tokens), params)
        return scores, *pull(arrays["cotangent"])

    found = quick_jit(results)(renamed(parameters))

    def close(value, expected):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())

    jax.tree.map(close, found, (arrays["scores"], renamed(gradients)))
