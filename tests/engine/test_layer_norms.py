"""The norms of layers against NumPy, of stacks and of the rest of a model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.config import ModelConfig
from birdie_jax.engine.layer_norms import layer_norms, layer_squares
from birdie_jax.models import build_model
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.models.parameters import parameter_policies


@pytest.mark.parametrize(
    ("name", "layers", "parts"),
    [
        ("gated_ssm_plus", 3, {"blocks/0", "blocks/1", "blocks/2", "embedding", "final_norm"}),
        ("griffin", 7, {"blocks/periods/0", "blocks/periods/1", "blocks/rest", "embedding", "final_norm"}),
    ],
)
def test_each_layer_has_the_norm_of_its_own_parameters(name, layers, parts):
    model = build_model(ModelConfig(name=name, layers=layers, features=64, state=128, mlp_features=16), 384)
    policies, shapes = parameter_policies(model), parameter_shapes(model)
    random = np.random.default_rng(0)
    gradient = jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape), jnp.float32), shapes)
    update = jax.tree.map(lambda leaf: 0.5 * leaf, gradient)
    sums = layer_squares(policies)(gradient, update)
    found = layer_norms(sums | {"loss": np.ones(3)}, 4)
    assert {part.removeprefix("gradient_norm/") for part in found if part.startswith("gradient")} == parts
    total = sum(norm**2 for part, norm in found.items() if part.startswith("gradient"))
    everything = sum(float(jnp.sum(jnp.square(leaf))) for leaf in jax.tree.leaves(gradient))
    assert total * 4 == pytest.approx(everything, rel=1e-4)
    for part in parts:
        assert found[f"update_norm/{part}"] == pytest.approx(0.5 * found[f"gradient_norm/{part}"], rel=1e-5)
    if name == "gated_ssm_plus":
        layer = [np.sum(np.square(leaf[1])) for leaf in jax.tree.leaves(gradient["blocks"])]
        assert found["gradient_norm/blocks/1"] == pytest.approx(np.sqrt(sum(layer) / 4), rel=1e-5)
