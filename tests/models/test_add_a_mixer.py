"""Tests that a mixer outside of the package only has to register itself."""

import functools
from dataclasses import dataclass, replace
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from birdie_jax.config import default_config, parse_config, to_dict
from birdie_jax.config_sections import MixerConfig
from birdie_jax.engine.mesh import check_divisible
from birdie_jax.errors import ConfigError
from birdie_jax.models import build_model, register_model
from birdie_jax.models.axes import must_divide, partition_spec
from birdie_jax.models.layers import output_projection, projection
from birdie_jax.models.layout import causal_layout, packed_layout
from birdie_jax.models.parameters import ParameterPolicy, parameter, parameter_policies
from birdie_jax.models.registry import ARCHITECTURES
from birdie_jax.optimizers import make_optimizer
from birdie_jax.planning.model_flops import model_flops_per_token
from birdie_jax.presets import choose_model
from tests.quick_jit import quick_jit

VOCAB = 384


@dataclass(frozen=True)
class AverageConfig(MixerConfig):
    """`config.model.average`."""

    section: ClassVar[str] = "average"

    half_life: float = 4.0

    def check_fields(self, require):
        require(self.half_life > 0, "model.average.half_life", "more than 0")

    def mesh_problem(self, model, length, axis, size):
        if axis == "tensor":
            return must_divide(size, {"model.state": model.state})
        return super().mesh_problem(model, length, axis, size)

    def extra_flops_per_token(self, model, length):
        return 6.0 * model.layers * model.state


class Average(nn.Module):
    """A running mean with a learned decay: h_t = a h_{t-1} + (1 - a) W_in x_t, y_t = W_out h_t."""

    features: int
    state: int
    half_life: float
    output_scale: float

    @classmethod
    def from_config(cls, config, *, output_scale, **module):
        half_life = config.section(AverageConfig).half_life
        return cls(config.features, config.state, half_life, output_scale, **module)

    @nn.compact
    def __call__(self, x, layout, cache=None):
        float32 = jnp.dtype("float32")
        policy = ParameterPolicy(("inner",), weight_decay=False, learning_rate_factor=0.1)
        init = nn.initializers.constant(-np.log(2) / self.half_life)
        a = jnp.exp(parameter(self, "log_decay", init, (self.state,), policy))
        u = (1 - a) * projection(self.state, "input", float32)(x)

        def step(h, inputs):
            u, reset = inputs
            h = jnp.where(reset[:, None], 0.0, a * h) + u
            return h, h

        h = self.empty_cache(len(x)) if cache is None else cache
        by_time = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), (u, layout.forward_reset))
        h, states = jax.lax.scan(step, h, by_time)
        y = output_projection(self.features, "out", float32, self.output_scale)(jnp.swapaxes(states, 0, 1))
        return y, None if cache is None else h

    def empty_cache(self, rows, length=None):
        return jnp.zeros((rows, self.state))


@pytest.fixture(autouse=True)
def registered():
    """Register the mixer for one test."""
    register_model("average", mixer=Average, config=AverageConfig, has_mlp=True)
    yield
    del ARCHITECTURES["average"]


def config_with(name="average", **section):
    config = default_config()
    config.model.update(
        name=name, layers=2, features=16, state=24, mlp_features=32, dtype="float32", average=section
    )
    return config


def refusal(**section):
    with pytest.raises(ConfigError) as error:
        parse_config(config_with(**section))
    return str(error.value)


@pytest.mark.slow
def test_a_training_step_lowers_the_loss(packed):
    config = parse_config(config_with())
    model = build_model(config.model, VOCAB)
    params = quick_jit(model.init)(jax.random.key(0), packed)["params"]

    def loss(params):
        scores = jax.nn.log_softmax(model.apply({"params": params}, packed))
        labels = jnp.take_along_axis(scores, packed.targets[..., None], axis=-1)[..., 0]
        return -jnp.sum(labels * packed.loss_mask)

    optimizer = make_optimizer(replace(config.optimizer, warmup_steps=0), 10, parameter_policies(model))

    @quick_jit
    def step(params):
        value, gradient = jax.value_and_grad(loss)(params)
        updates, _ = optimizer.update(gradient, optimizer.init(params), params)
        return value, updates, loss(jax.tree.map(jnp.add, params, updates))

    before, updates, after = step(params)
    assert after < before
    assert all(leaf.any() for leaf in jax.tree.leaves(updates))
    # A tenth of the learning rate, without weight decay.
    slow = updates["blocks"]["mixer"]["log_decay"]
    np.testing.assert_allclose(np.abs(slow).max(), 0.1 * config.optimizer.learning_rate, rtol=1e-3)


@pytest.mark.slow
def test_decoding_matches_the_forward_pass(pack):
    model = build_model(parse_config(config_with()).model, VOCAB)
    batch = pack([[(4, 6)]] * 2, length=10)
    variables = quick_jit(model.init)(jax.random.key(0), batch)
    hidden = quick_jit(functools.partial(model.apply, method="hidden"))
    layout = packed_layout(batch.segment_ids, batch.bidirectional)
    whole, _ = hidden(variables, batch.tokens, layout)
    first = jax.tree.map(lambda leaf: leaf[:, :5], layout)
    part, cache = hidden(variables, batch.tokens[:, :5], first, model.empty_cache(2))
    parts = [part]
    for t in range(5, 10):
        part, cache = hidden(variables, batch.tokens[:, t : t + 1], causal_layout(2, 1), cache)
        parts.append(part)
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), whole, rtol=1e-4, atol=1e-5)


def test_a_config_has_the_section_and_checks_its_fields():
    config = parse_config(config_with(half_life=9))
    assert config.model.section(AverageConfig) == AverageConfig(half_life=9.0)
    assert to_dict(config)["model"]["average"] == {"half_life": 9.0}
    assert to_dict(parse_config(config_with("gated_ssm")))["model"]["average"] == {"half_life": 4.0}
    assert choose_model("average") == "average"
    assert refusal(half_life=-1) == "config.model.average.half_life: found -1.0; allowed: more than 0"
    with pytest.raises(ConfigError) as error:
        parse_config(config_with("averages"))
    allowed = (
        "average, gated_ssm_plus, birdie_ssm, gated_deltanet, gated_ssm, gated_ssm_mlp, griffin, hawk, "
        "hawk_mlp, mamba, mamba2, transformer, bigs, gated_attention, stack_attention, stack_ssm"
    )
    assert str(error.value) == f"config.model.name: found 'averages'; allowed: {allowed}"


def test_an_unknown_field_of_the_section_is_refused():
    config = config_with().unlock()
    config.model.average.full_life = 1.0
    with pytest.raises(ConfigError) as error:
        parse_config(config)
    assert str(error.value) == "config.model.average.full_life: unknown field; allowed: half_life"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tensor": 16}, "tensor: found 16; allowed: 1, 2, 4, 8 (it must divide model.state = 24)"),
        ({"sequence": 2}, "sequence: found 2; allowed: 1 (average is not divided over sequence)"),
    ],
)
def test_an_unsupported_mesh_is_refused(sizes, message):
    sizes = {"data": 1, "fsdp": 1, "tensor": 1, "sequence": 1} | sizes
    with pytest.raises(ConfigError) as error:
        check_divisible(parse_config(config_with()), VOCAB, sizes, 16)
    assert str(error.value) == f"config.mesh.{message}"


def test_axes_decay_and_flops_match_the_declarations():
    config = parse_config(config_with()).model
    policies = parameter_policies(build_model(config, VOCAB))
    mixer = policies["blocks"]["mixer"]
    assert mixer["log_decay"] == ParameterPolicy(("inner",), False, learning_rate_factor=0.1)
    sizes = {"tensor": 2, "fsdp": 4}
    assert partition_spec(mixer["log_decay"].axes, (2, 8), sizes) == PartitionSpec(None, "tensor")
    out = partition_spec(mixer["out"]["kernel"].axes, (2, 16, 16), sizes)
    assert out == PartitionSpec(None, ("tensor", "fsdp"), None)
    assert mixer["out"]["kernel"].weight_decay
    layer = 2 * 16 * 24 + 24 + 3 * 16 * 32 + 2 * 16
    expected = 6 * (2 * layer + 16 + VOCAB * 16) + 6 * 2 * 24
    assert model_flops_per_token(config, VOCAB, 128) == expected


def test_a_taken_section_name_is_refused():
    @dataclass(frozen=True)
    class Clash(MixerConfig):
        section: ClassVar[str] = "layers"

    with pytest.raises(ValueError, match=r"config\.model\.layers is taken; choose another .* for Clash"):
        register_model("clash", mixer=Average, config=Clash)
