"""A RecurrentGemma of `transformers` has the same scores and gradients in this project."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.config import ModelConfig
from birdie_jax.errors import InteropError
from birdie_jax.generation import Prompt
from birdie_jax.generation.prompt import prompt_as_read, text_start
from birdie_jax.interop import read_huggingface
from birdie_jax.interop.huggingface_folder import kind_of_model
from birdie_jax.interop.tensor_names import name_parameters
from birdie_jax.models import LanguageModel, build_model
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.griffin import GriffinConfig
from birdie_jax.models.hawk import HawkConfig
from birdie_jax.models.language_model import unrolled_hidden, unstack_layers
from birdie_jax.models.layout import causal_layout
from tests.interop import huggingface_folders
from tests.interop.huggingface_folders import PIECES, TEXT, whole_texts, write_folder
from tests.quick_jit import quick_jit

KIND, EMBEDDING = "recurrent_gemma", "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def recorded():
    return huggingface_folders.recorded(KIND)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory, recorded):
    """Return the configuration, the parameters, and (parameters, cotangent) -> scores and gradient."""
    read = read_huggingface(write_folder(tmp_path_factory.mktemp("recorded") / "there", KIND))
    model = build_model(read.config.model, read.tokenizer.vocab_size)
    tokens = jnp.asarray(recorded[0]["tokens"]) + 256
    layout = whole_texts(*tokens.shape)

    def scores(params):
        hidden, _ = model.apply({"params": params}, tokens, layout, method=LanguageModel.hidden)
        return model.apply({"params": params}, hidden, method=LanguageModel.logits)

    @quick_jit
    def run(params, cotangent):
        found, pull = jax.vjp(scores, params)
        return found, *pull(cotangent)

    return read.config, read.params, run


def close(found, expected, **message):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max(), **message)


def in_table(cotangent, rows=384):
    """Return the cotangent for the scores of all ids."""
    whole = np.zeros((*cotangent.shape[:-1], rows), np.float32)
    whole[..., TEXT] = cotangent
    return whole


@pytest.mark.slow
def test_scores_and_gradients_match_transformers(recorded, compiled):
    arrays, _, gradients = recorded
    config, params, run = compiled
    scores, gradient = run(params, in_table(arrays["cotangent"]))
    close(np.asarray(scores)[..., TEXT], arrays["scores"])
    assert np.abs(arrays["scores"]).max() > 0.9 * config.model.logit_soft_cap, "the cap must show"
    assert (np.delete(scores, np.arange(256, 256 + PIECES), axis=-1) < -1e29).all()
    ours = {name: np.asarray(leaf) for name, leaf in name_parameters(jax.device_get(gradient)).items()}
    for one in kind_of_model(config.model).counterparts(config.model):
        close(one.put_together(ours), gradients[one.theirs], err_msg=one.theirs)
    close(ours["embedding"][TEXT], gradients[EMBEDDING])


def test_decoding_token_by_token_gives_the_same_scores(recorded, compiled):
    arrays, _, _ = recorded
    config, params, _ = compiled
    model = build_model(config.model, 384)
    tokens = jnp.asarray(arrays["tokens"]) + 256
    rows, length = tokens.shape
    params = jax.tree.map(jnp.asarray, params)
    layers = unstack_layers(model, params, model.empty_cache(rows))

    @quick_jit
    def step(token, caches, layout):
        own = layers._replace(caches=caches)
        hidden, caches = unrolled_hidden(model, params, own, token[:, None], layout)
        return model.apply({"params": params}, hidden, method=LanguageModel.logits)[:, 0], caches

    caches, found = layers.caches, []
    for t in range(length):
        layout = causal_layout(rows, 1) if t else whole_texts(rows, 1)
        scores, caches = step(tokens[:, t], caches, layout)
        found.append(scores)
    close(np.stack(found, axis=1)[..., TEXT], arrays["scores"])


def with_section(model, kind, **fields):
    sections = tuple(
        replace(one, **fields) if isinstance(one, kind) else one
        for one in (model.section(each) for each in (AttentionConfig, GriffinConfig, HawkConfig))
    )
    return replace(model, sections=sections)


def test_the_configuration_describes_the_differences(compiled):
    model = compiled[0].model
    assert (model.name, model.layers, model.features, model.state) == ("griffin", 5, 24, 8)
    assert (model.mlp_features, model.norm_offset, model.mlp_bias) == (20, 1.0, True)
    assert model.section(AttentionConfig) == AttentionConfig(
        heads=2, kv_heads=1, rope_base=10_000.0, rotary_share=0.5, output_bias=True, window=3
    )
    assert model.section(HawkConfig) == HawkConfig(heads=2, conv_width=4, bias=True)
    assert model.section(GriffinConfig).pattern == "recurrent,recurrent,attention"
    # 4.90625 is the root of 24 in bfloat16.
    assert (model.embedding_scale, model.logit_soft_cap) == (4.90625, 5.0)
    assert (model.begin_token, model.end_token, model.start_token) == (258, 257, False)
    assert (model.min_predicted_id, model.max_predicted_id) == (256, 279)


def test_a_text_begins_with_one_begin_token(compiled):
    model = compiled[0].model
    nothing, text = np.empty(0, np.int32), np.array([270, 271], np.int32)
    read = prompt_as_read(Prompt(nothing, text), model)
    np.testing.assert_array_equal(read.tokens, [258, 270, 271])
    np.testing.assert_array_equal(prompt_as_read(read, model).tokens, read.tokens)
    np.testing.assert_array_equal(prompt_as_read(Prompt(text, nothing), model, continues=True).tokens, text)
    np.testing.assert_array_equal(prompt_as_read(Prompt(nothing, nothing), model).tokens, [258])
    assert text_start(model) == 258


def test_settings_of_older_files_are_read(tmp_path):
    old = {"rope_theta": 10_000.0, "partial_rotary_factor": 0.5, "embeddings_scale_by_sqrt_dim": True}
    other = write_folder(tmp_path / "old", KIND, rope_parameters=..., head_dim=..., **old)
    assert read_huggingface(other).config == read_huggingface(write_folder(tmp_path / "there", KIND)).config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: replace(model, bidirectional=True), "model.bidirectional: found True; allowed:"),
        (lambda model: replace(model, norm_offset=0.0), "model.norm_offset: found 0.0; allowed: 1.0"),
        (lambda model: replace(model, mlp_bias=False), "model.mlp_bias: found False; allowed: True"),
        (
            lambda model: replace(model, mlp_activation="silu"),
            "model.mlp_activation: found silu; allowed: gelu, as in",
        ),
        (
            lambda model: with_section(model, GriffinConfig, pattern="recurrent,mamba"),
            "model.griffin.pattern: found 'recurrent,mamba'; allowed: recurrent and attention, as in",
        ),
        (lambda model: replace(model, logit_soft_cap=0.0), "model.logit_soft_cap: found 0.0; allowed:"),
        (lambda model: with_section(model, AttentionConfig, window=0), "model.attention.window: found 0;"),
        (lambda model: with_section(model, HawkConfig, heads=4), "model.hawk.heads: found 4; allowed: 2,"),
    ],
)
def test_models_without_a_transformers_class_are_refused(change, message, compiled):
    model: ModelConfig = compiled[0].model
    with pytest.raises(InteropError, match=f"^{message}"):
        kind_of_model(model).from_config(change(model), PIECES)


def test_the_folder_names_layers_as_transformers_does(compiled):
    model = compiled[0].model
    named = with_section(model, GriffinConfig, pattern="hawk_mlp, recurrent,transformer")
    settings = kind_of_model(model).from_config(named, PIECES)
    assert settings.block_types == ("recurrent", "recurrent", "attention")
