"""FLOPs of models and bytes of a train state, compared with counts by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from birdie_jax.config import ModelConfig
from birdie_jax.engine.state import TrainState
from birdie_jax.models import build_model
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.gated_deltanet import GatedDeltaNetConfig
from birdie_jax.models.hawk import HawkConfig
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.models.mamba2 import Mamba2Config
from birdie_jax.planning.model_flops import model_flops_per_token, state_bytes


def config(**fields):
    sizes = {"layers": 2, "features": 32, "state": 48, "mlp_features": 64}
    sizes["sections"] = (HawkConfig(heads=4), AttentionConfig(heads=4))
    return ModelConfig(**(sizes | fields))


def test_flops_of_a_gated_ssm_match_a_count_by_hand():
    # Four maps into the state and one from it, the forget bias, a norm; the final norm; the table.
    layer = 5 * 32 * 48 + 48 + 32
    expected = 6 * (2 * layer + 32 + 384 * 32)
    assert model_flops_per_token(config(name="gated_ssm"), 384, 128) == expected


def test_a_lookup_table_does_not_count():
    tied = model_flops_per_token(config(name="gated_ssm"), 384, 128)
    assert model_flops_per_token(config(name="gated_ssm", tie_embeddings=False), 384, 128) == tied


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_counts_for_the_tokens_with_loss(tied):
    model = config(name="gated_ssm", tie_embeddings=tied)
    whole = model_flops_per_token(model, 384, 128)
    assert whole - model_flops_per_token(model, 384, 128, 32) == 6 * 384 * 32 * 0.75


def test_the_transform_of_an_encoder_head_counts_for_the_tokens_with_loss():
    model = config(name="bigs")
    whole = model_flops_per_token(model, 384, 128)
    # The table and its bias; a square map with its bias; scale and shift of a norm.
    head = (384 * 32 + 384) + (32 * 32 + 32) + 2 * 32
    assert whole - model_flops_per_token(model, 384, 128, 32) == 6 * head * 0.75


@pytest.mark.parametrize(("head", "of_head"), [("classification", 0), ("spans", 32 * 2 + 2)])
def test_a_model_with_a_fine_tuning_head_predicts_no_token(head, of_head):
    """A head that reads a sample once does not count; a head's map for every token does."""
    model = config(name="bigs")
    tuned = replace(model, head=head, head_name="mood", head_outputs=2)
    body = model_flops_per_token(model, 384, 128, 0)
    assert model_flops_per_token(tuned, 384, 128) == body + 6 * of_head


def test_attention_grows_with_the_row_and_recurrences_do_not():
    short, long = (model_flops_per_token(config(name="transformer"), 384, length) for length in (128, 256))
    assert long - short == 12 * 2 * 128 * 32
    assert len({model_flops_per_token(config(name="hawk"), 384, length) for length in (128, 256)}) == 1


def test_a_window_shorter_than_the_row_replaces_its_length():
    windowed = config(name="transformer", sections=(AttentionConfig(heads=4, window=100),))
    whole, short, long = (
        model_flops_per_token(model, 384, length)
        for model, length in ((config(name="transformer"), 100), (windowed, 128), (windowed, 256))
    )
    assert short == long == whole


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        # For each of 12 heads, a product reads and one writes a matrix of 4 x 8.
        ("mamba2", 12 * 2 * 4 * 8),
        # For each of 4 heads, a product reads, one corrects and one writes a matrix of 6 x 12.
        ("gated_deltanet", 4 * 3 * 6 * 12),
    ],
)
def test_the_products_with_matrix_states_count(name, by_hand):
    sections = (Mamba2Config(head_features=4, state_size=8), GatedDeltaNetConfig(heads=4))
    model = config(name=name, sections=sections)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(parameter_shapes(build_model(model, 384))))
    # A multiplication and an addition, in two layers, forward and twice backward.
    expected = 6 * parameters + 2 * 2 * 3 * by_hand
    assert model_flops_per_token(model, 384, 128) == expected


def test_the_attention_layers_of_a_hybrid_grow_with_the_row():
    # The third and the sixth of seven layers.
    short, long = (
        model_flops_per_token(config(name="griffin", layers=7), 384, length) for length in (128, 256)
    )
    assert long - short == 12 * 2 * 128 * 32


@pytest.mark.parametrize(("name", "parameters"), [("gated_ssm_plus", 1.4e9), ("transformer", 1.4e9)])
def test_the_paper_s_size(name, parameters):
    fields = {"gated_ssm_plus": {"mlp_features": 4864}, "transformer": {"mlp_features": 6400}}[name]
    model = ModelConfig(name=name, layers=24, features=2048, state=2560, **fields)
    flops = model_flops_per_token(model, 32_256, 2048)
    attention = 12 * 24 * 2048 * 2048 if name == "transformer" else 0
    assert (flops - attention) / 6 == pytest.approx(parameters, rel=0.03)


def test_state_bytes_match_a_shard(two_devices):
    mesh = Mesh(np.array(jax.devices()), ("fsdp",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("fsdp"))

    def array(shape, dtype):
        return jax.device_put(jnp.zeros(shape, dtype), sharding)

    state = TrainState(
        step=jnp.zeros((), jnp.int32),
        params={"a": array((8, 3), jnp.float32)},
        optimizer=[array((8, 3), jnp.float32), array((4,), jnp.bfloat16)],
        sections={"bandit": jax.random.key(0)},
    )
    found = state_bytes(state)
    assert (found.parameters, found.optimizer) == (48, 52)
    assert found.other == 4 + state.sections["bandit"].dtype.itemsize
