"""Tests that a model collects the policies of its parameters, and that errors name the parameter."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from birdie_jax.models import model_names
from birdie_jax.models.axes import partition_spec
from birdie_jax.models.parameters import ParameterPolicy, collect_policies, parameter, parameter_policies

SIZES = {"data": 1, "fsdp": 4, "tensor": 2, "sequence": 1}
ZEROS = nn.initializers.zeros_init()


class Layer(nn.Module):
    policy: ParameterPolicy | None

    @nn.compact
    def __call__(self, x):
        if self.policy is None:
            return x + self.param("novel", ZEROS, (3,)).astype(x.dtype)
        return x + parameter(self, "novel", ZEROS, (3,), self.policy)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", model_names())
def test_every_parameter_has_a_policy_and_arrays_stay_plain(name, make, packed):
    model, _ = make(name=name)
    policies = parameter_policies(model)
    variables = jax.eval_shape(partial(model.init), jax.random.key(0), packed)
    assert variables.keys() == {"params"}
    assert jax.tree.structure(policies) == jax.tree.structure(variables["params"])
    for policy, leaf in zip(jax.tree.leaves(policies), jax.tree.leaves(variables["params"]), strict=True):
        assert isinstance(policy, ParameterPolicy)
        assert leaf.dtype == jnp.float32
        # Scanned layers have one more dimension.
        assert leaf.ndim - len(policy.axes) in (0, 1)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_compute_types_follow_the_config(remat, make):
    model, _ = make(name="hawk_mlp", dtype="bfloat16", remat=remat)
    policies = parameter_policies(model)
    mixer = policies["blocks"]["mixer"]
    assert mixer["rg_lru"]["input_gate"]["kernel"].compute_dtype == jnp.bfloat16
    assert mixer["rg_lru"]["decay"].compute_dtype == jnp.float32
    assert policies["final_norm"]["scale"].compute_dtype == jnp.float32


def test_a_parameter_is_returned_in_its_compute_type():
    layer = Layer(ParameterPolicy((None,), weight_decay=False, compute_dtype=jnp.bfloat16))
    y, variables = layer.init_with_output(jax.random.key(0), jnp.zeros(3, jnp.bfloat16))
    assert y.dtype == jnp.bfloat16
    assert variables["params"]["novel"].dtype == jnp.float32


def test_a_parameter_without_a_policy_is_an_error():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Layer(None, name="mixer")(x)

    with pytest.raises(ValueError) as error:
        collect_policies(Model(), jnp.zeros(3))
    assert str(error.value) == (
        "parameter 'mixer/novel' has no policy; create it by birdie_jax.models.parameters.parameter"
    )


def test_a_policy_requires_an_axis_for_each_dimension():
    with pytest.raises(ValueError) as error:
        collect_policies(Layer(ParameterPolicy((None, "inner"), weight_decay=False)), jnp.zeros(3))
    assert str(error.value) == (
        "parameter 'novel': found 2 axes (None, 'inner') for shape (3,); allowed: one for each dimension"
    )


def test_the_axis_of_scanned_layers_is_whole():
    assert partition_spec(("features", "inner"), (2, 8, 8), SIZES) == PartitionSpec(None, "fsdp", "tensor")
    assert partition_spec((), (8,), SIZES) == PartitionSpec(None)


def test_a_last_projection_is_divided_along_its_channels_if_even():
    axes = ("inner", "features")
    assert partition_spec(axes, (2, 8, 6), SIZES) == PartitionSpec(None, ("tensor", "fsdp"), None)
    assert partition_spec(axes, (2, 6, 8), SIZES) == PartitionSpec(None, "tensor", "fsdp")


@pytest.mark.parametrize("axes", [("feature",), ("inner", None)])
def test_unusable_axes_are_refused(axes):
    with pytest.raises(ValueError, match=r"^axes of a parameter: found .* for 1 dimensions"):
        partition_spec(axes, (8,), SIZES)
