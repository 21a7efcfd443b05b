"""The two FLOP counts of a pruned prefill, compared with Simba's own and with compiled programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.config_sections import ModelConfig
from birdie_jax.models import build_model
from birdie_jax.planning.pruned_flops import counted_flops, executed_flops, paper_flops
from birdie_jax.planning.simba_flops import LENGTH, VOCABULARY, MambaSize, mamba_flops
from birdie_jax.pruning import PruningSettings, pruned_hidden
from birdie_jax.pruning.pruned_prefill import PromptRows, layer_lengths
from birdie_jax.pruning.settings import linear_shares
from tests.generation.conftest import small_model
from tests.quick_jit import quick_jit

ROWS, TOKENS = 2, 40


@pytest.mark.parametrize(("layers", "features"), [(24, 768), (48, 1024)])
def test_paper_flops_match_the_paper_for_mamba(layers, features):
    config = ModelConfig(name="mamba", layers=layers, features=features, state=2 * features)
    shares = linear_shares(0.1, layers)
    found = paper_flops(build_model(config, VOCABULARY), shares, LENGTH)
    assert found == pytest.approx(mamba_flops(MambaSize(layers, features), shares), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gated_ssm_plus", "hawk", "birdie_ssm", "mamba"])
def test_executed_flops_match_the_compiled_program(name):
    """The counts are equal: each layer on its static positions, and the head on one position."""
    # Mamba's steps then have 2 numbers per token; with 1 the compiler uses no matrix product.
    model, params = small_model(name, layers=3, features=32, state=64 if name == "mamba" else 16)
    # This policy requires no scores, which some layers do not return.
    settings = PruningSettings(keep=0.3, policy="uniform")
    rows = PromptRows(
        jnp.ones((ROWS, TOKENS), jnp.int32),
        jnp.ones((ROWS, TOKENS), jnp.int32),
        jnp.ones((ROWS, TOKENS), bool),
        jax.random.split(jax.random.key(0), ROWS),
    )

    @quick_jit
    def prefill(params, rows):
        cache = model.empty_cache(ROWS, TOKENS)
        hidden, cache, _ = pruned_hidden(model, params, rows, cache, settings, protected=2)
        return model.apply({"params": params}, hidden[:, -1:], method="logits"), cache

    lengths = layer_lengths(settings, 3, TOKENS, 2)
    assert lengths == (40, 31, 21)
    expected = ROWS * executed_flops(model, lengths, head_positions=1)
    assert counted_flops(prefill.lower(params, rows).compile()) == expected
    weights = sum(
        leaf.size / 3
        for path, leaf in jax.tree_util.tree_leaves_with_path(params["blocks"])
        if path[-1].key == "kernel" and leaf.ndim > 2 and "convolution" not in str(path)
    )
    assert expected == 2 * ROWS * (np.sum(lengths) * weights + model.vocab_size * model.config.features)
