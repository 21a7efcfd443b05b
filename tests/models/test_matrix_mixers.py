"""Tests of the initial values and the weight decay of mixers with a matrix state per head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.config import ModelConfig
from birdie_jax.models import build_model
from birdie_jax.models.gated_deltanet import GatedDeltaNetConfig
from birdie_jax.models.layout import causal_layout
from birdie_jax.models.mamba import STEP_RANGE
from birdie_jax.models.mamba2 import Mamba2Config
from birdie_jax.models.parameters import parameter_policies
from tests.models import conftest
from tests.quick_jit import quick_jit

# The lowest and highest initial rate of the decays.
RATES = {"mamba2": (1, 16), "gated_deltanet": (0, 16)}


@pytest.fixture(scope="module", params=RATES)
def built(request):
    """Return the name, the policies and the initial parameters of the mixers of 3 layers of 100 heads."""
    sections = (
        Mamba2Config(head_features=4, state_size=8),
        GatedDeltaNetConfig(heads=100, key_features=4),
    )
    config = ModelConfig(
        **{"name": request.param, "layers": 3, "features": 40, "state": 400, "mlp_features": 16},
        sections=sections,
        dtype="bfloat16",
    )
    model, one = build_model(config, 256), jnp.zeros((1, 1), jnp.int32)
    init = quick_jit(lambda key: model.init(key, one, causal_layout(1, 1), method="hidden"))
    params = init(jax.random.key(0))["params"]
    return request.param, parameter_policies(model)["blocks"]["mixer"], params["blocks"]["mixer"]


def is_uniform(share):
    """Return whether numbers are uniform from 0 to 1, by Kolmogorov and Smirnov at 0.001."""
    share = np.sort(share)
    distance = np.abs(share - np.arange(share.size) / share.size).max()
    return share[0] >= 0 and share[-1] <= 1 and distance < 1.95 * share.size**-0.5


def test_initial_decays_give_long_memories(built):
    """A decay is exp(-rate softplus(step_bias)) for a token whose map is zero."""
    name, _, mixer = built
    low, high = RATES[name]
    rates = np.exp(np.asarray(mixer["A_log"], np.float64)).ravel()
    assert rates.size == 300 and is_uniform((rates - low) / (high - low))
    steps = np.logaddexp(0, np.asarray(mixer["step_bias"], np.float64)).ravel()
    low, high = STEP_RANGE
    assert is_uniform(np.clip(np.log(steps / low) / np.log(high / low), 0, 1))
    assert np.median(np.exp(-rates * steps)) > 0.9


def test_maps_alone_decay(built):
    _, policies, mixer = built
    assert "A_log" in mixer and "step_bias" in mixer
    flat = jax.tree_util.tree_leaves_with_path(policies)
    for path, policy in flat:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        is_map = name.endswith("kernel")
        assert policy.weight_decay == is_map, name
        if name in ("A_log", "D", "step_bias"):
            assert policy.compute_dtype == jnp.float32, name
    for name in ("D", "norm_scale"):
        if name in mixer:
            np.testing.assert_array_equal(mixer[name], 1)


def test_convolution_biases_do_not_leak_through_padding(make, packed):
    """With a bias, inputs are never zero, so padding must not enter the state."""
    model, variables = make(name="mamba2", bidirectional=False)
    params = jax.tree.map(jnp.copy, variables["params"])
    for name in ("input", "input_weights", "output_weights"):
        convolution = params["blocks"]["mixer"][f"{name}_convolution"]
        convolution["bias"] = convolution["bias"] + 3
    together = conftest.compiled(model)({"params": params}, packed)
    second = (np.asarray(packed.segment_ids[0]) == 2).nonzero()[0]
    alone = jax.tree.map(lambda field: field[:, second[0] : second[-1] + 1], packed)
    np.testing.assert_allclose(
        conftest.compiled(model)({"params": params}, alone)[0], together[0, second], rtol=1e-5, atol=1e-5
    )
