"""`transformers` opens models of every mixer without JAX, and computes the same scores."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.batch import Batch
from birdie_jax.config import FinetuneConfig, ModelConfig, to_dict
from birdie_jax.errors import InteropError
from birdie_jax.generation import Prompt, choose_arm, generate, make_prompt
from birdie_jax.interop import (
    ExportedModel,
    has_counterpart,
    name_parameters,
    read_huggingface,
    read_model,
    write_transformers,
)
from birdie_jax.interop.torch_source import put_together
from birdie_jax.models import build_model
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.models.gated_deltanet import GatedDeltaNetConfig
from birdie_jax.models.griffin import GriffinConfig
from birdie_jax.models.hawk import HawkConfig
from birdie_jax.models.layout import packed_layout
from birdie_jax.models.mamba import MambaConfig
from birdie_jax.models.mamba2 import Mamba2Config
from birdie_jax.models.sample_scores import score_samples
from birdie_jax.objectives import make_objective
from birdie_jax.tasks.evaluation import taught_arms
from birdie_jax.trained_model import prompt_form
from birdie_jax.vocabulary import END, MASK, NUM_SPECIAL_TOKENS, PREFIX_LM, SEPARATOR, START
from tests.quick_jit import quick_jit
from tests.trained_workdirs import micro_config, random_params, small_tokenizer

ROWS, LENGTH, PADDING, CONTEXT = 2, 40, 6, 24
MAX_TOKENS = 12
PROMPTS = ["abc def", "hello, the end of a long prompt [MASK]"]

_RECURRENT = (HawkConfig(heads=4), MambaConfig(state_size=4), AttentionConfig(heads=4, kv_heads=2))
_MATRICES = (
    Mamba2Config(head_features=4, state_size=4, groups=2),
    GatedDeltaNetConfig(heads=4, key_heads=2),
)
_ENCODER = (EncoderConfig(positions=128, attention_heads=4, ssm_state=8, ssm_heads=2, activation="exact"),)
# All settings that only models of other programs use.
_FOREIGN = {
    "norm_offset": 1.0,
    "mlp_bias": True,
    "mlp_activation": "silu",
    "embedding_scale": 2.0,
    "logit_soft_cap": 3.0,
    "tie_embeddings": True,
    "max_predicted_id": 600,
}
# Models for which `transformers` has a class, without a start token. The last two have the fields of a
# fine-tuned import.
_CAUSAL = {
    "causal_mamba": {"name": "mamba", "bidirectional": False},
    "causal_mamba2": {
        "name": "mamba2",
        "bidirectional": False,
        "sections": _MATRICES,
        "embedding_scale": 1.0,
        "norm_epsilon": 1e-5,
        "tie_embeddings": True,
        "end_token": 256,
    },
    "recurrent_gemma": {
        **_FOREIGN,
        "name": "griffin",
        "layers": 3,
        "bidirectional": False,
        "mlp_activation": "gelu",
        "max_predicted_id": 0,
        "begin_token": 258,
        "end_token": 257,
        "sections": (
            GriffinConfig(),
            HawkConfig(heads=4, bias=True),
            AttentionConfig(heads=4, kv_heads=1, window=6, rotary_share=0.5, output_bias=True),
        ),
    },
}
LANGUAGE_MODELS = {
    "gated_ssm": {"tie_embeddings": True},
    "gated_ssm_plus": {},
    "causal": {"name": "gated_ssm_plus", "bidirectional": False},
    "birdie_ssm": {},
    "hawk": {},
    "mamba": {},
    "mamba2": {"sections": _MATRICES},
    "gated_deltanet": {"sections": _MATRICES},
    "channel_decay": {
        "name": "gated_deltanet",
        "sections": (GatedDeltaNetConfig(heads=2, channel_decay=True, negative_eigenvalues=True),),
    },
    "transformer": {},
    "griffin": {
        **_FOREIGN,
        "layers": 4,
        "sections": (
            GriffinConfig("recurrent,attention"),
            HawkConfig(heads=4, bias=True),
            AttentionConfig(heads=4, kv_heads=1, window=6, rotary_share=0.5, output_bias=True),
        ),
    },
    **_CAUSAL,
    "hybrid": {
        "name": "griffin",
        "layers": 4,
        "sections": (GriffinConfig("gated_deltanet,mamba,attention"), *_MATRICES[1:], *_RECURRENT[1:]),
    },
}
ENCODERS = {
    "bigs": {"head": "classification", "head_name": "mood", "head_outputs": 3},
    "serial": {"name": "bigs", "sections": (dataclasses.replace(_ENCODER[0], combination="serial"),)},
    "stack_ssm": {},
    "stack_attention": {"tie_embeddings": False},
    "gated_attention": {},
}
MODELS = {
    kind: {"name": kind, "layers": 2, "sections": _RECURRENT, "tie_embeddings": False} | fields
    for kind, fields in LANGUAGE_MODELS.items()
} | {kind: {"name": kind, "layers": 2, "sections": _ENCODER} | fields for kind, fields in ENCODERS.items()}

_QUIETER = {"griffin": 0.5, "recurrent_gemma": 0.5, "bigs": 0.6, "serial": 0.6}


def config_of(kind):
    config = micro_config(**MODELS[kind])
    if kind in ENCODERS:
        objectives = dataclasses.replace(config.objectives, arms={"masked_lm": {"objective": "masked_lm"}})
        config = dataclasses.replace(config, objectives=objectives)
    if config.model.head:
        config = dataclasses.replace(config, finetune=FinetuneConfig({"1": {"task": "glue"}}))
    return config


def exported(kind) -> ExportedModel:
    config, tokenizer = config_of(kind), small_tokenizer()
    # Large weights, so errors in biases, norms and decays show as much as errors in maps. Some kinds have
    # smaller weights, because rounding errors grow with the layers.
    params = random_params(config, tokenizer.vocab_size, 0)
    params = jax.tree.map(lambda leaf: leaf * np.float32(_QUIETER.get(kind, 1)), params)
    return ExportedModel(config, params, tokenizer, 7)


def inputs(kind):
    """Return two rows; the second row has padding to its left, and for encoders two texts."""
    random = np.random.default_rng(1)
    tokens = random.integers(NUM_SPECIAL_TOKENS, NUM_SPECIAL_TOKENS + 300, (ROWS, LENGTH)).astype(np.int32)
    mask = np.ones((ROWS, LENGTH), np.int32)
    mask[1, :PADDING] = 0
    tokens[mask == 0] = 0
    tokens[:, CONTEXT] = SEPARATOR if kind in ENCODERS else START
    tokens[1, CONTEXT] = 300
    tokens[1, CONTEXT + 4] = SEPARATOR if kind in ENCODERS else START
    return tokens, mask


def reference(kind, model: ExportedModel):
    """Return the scores of the model in JAX, and for an encoder with a head the scores of the classes."""
    module, (tokens, mask) = build_model(model.config.model, model.tokenizer.vocab_size), inputs(kind)
    started = np.cumsum(tokens == START, axis=1) > 0
    bidirectional = (mask > 0) & (~started | (kind in ENCODERS))

    @quick_jit
    def scores(params, tokens, mask, bidirectional):
        layout = packed_layout(mask, bidirectional)
        hidden, _ = module.apply({"params": params}, tokens, layout, method="hidden")
        return module.apply({"params": params}, hidden, method="logits")

    found = {
        "whole": scores(model.params, jnp.asarray(tokens), jnp.asarray(mask), jnp.asarray(bidirectional))
    }
    if model.config.model.head:
        # `score_samples` scores the first sample of a row, so texts must not begin with padding.
        texts = [row[given > 0] for row, given in zip(tokens, mask, strict=True)]
        found["classes"] = [_class_scores(module, model.params, text) for text in texts]
    return {name: np.asarray(value) for name, value in found.items()}


def _class_scores(module, params, text):
    whole = jnp.ones((1, len(text)), jnp.int32)
    first = jnp.arange(len(text))[None] == 0
    batch = Batch(jnp.asarray(text[None]), whole, first, whole, whole, whole > 0, whole)
    return quick_jit(partial(score_samples, module))(params, batch)[0, 0]


@pytest.fixture(scope="module")
def found(tmp_path_factory, torch_packages):
    """The folder, the expected values, and the values from `transformers`, by kind of model."""
    folder = tmp_path_factory.mktemp("models")
    expected = {}
    for kind in MODELS:
        model = exported(kind)
        write_transformers(folder / kind, model, prompt_form(model.config), card="---\n---\n")
        tokens, mask = inputs(kind)
        prompts = np.array(PROMPTS)
        np.savez(
            folder / f"{kind}.npz",
            tokens=tokens,
            mask=mask,
            prefix=30,
            prompts=prompts,
            max_tokens=MAX_TOKENS,
        )
        expected[kind] = reference(kind, model)
    subprocess.run(
        [sys.executable, "-m", "tests.interop.transformers_models", str(folder)],
        env=os.environ
        | {
            "PYTHONPATH": torch_packages,
            "HF_HUB_OFFLINE": "1",
            "HF_MODULES_CACHE": str(folder / "modules"),
        },
        check=True,
    )
    return folder, expected, {kind: dict(np.load(folder / f"{kind}.found.npz")) for kind in MODELS}


def close(found, expected):
    barred = expected < -1e29
    assert (found[barred] == expected[barred]).all()
    found, expected = np.where(barred, 0, found), np.where(barred, 0, expected)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(expected).max()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_scores_match_the_jax_model(kind, found):
    _, expected, values = found
    mask, expected, values = inputs(kind)[1] > 0, expected[kind]["whole"], values[kind]
    assert expected[mask].max() > 1
    for name in {"whole", "given", "steps", "reordered", "chunks", "saved"} & set(values):
        close(values[name][mask], expected[mask])
    close(values["alone"][0], expected[1][mask[1]])
    if kind in LANGUAGE_MODELS:
        close(values["kept"], expected[:, -3:])
        close(values["right"][0], expected[1][mask[1]])
        # The attention of this griffin has a window.
        assert values["cache_grows"] == (kind in ("transformer", "hybrid"))
        assert values["direction_matters"] == config_of(kind).model.bidirectional
        assert values["half_is_finite"]


def prompts_of(kind):
    """Return `PROMPTS` as this project reads them."""
    arm = choose_arm(taught_arms(config_of(kind)), None)
    return [make_prompt(text, arm.objective, small_tokenizer()) for text in PROMPTS]


@pytest.mark.slow
@pytest.mark.parametrize("kind", LANGUAGE_MODELS)
def test_prompts_beams_and_samples_follow_the_format(kind, found):
    values = found[2][kind]
    for row, prompt in zip(values["prompt_tokens"], prompts_of(kind), strict=True):
        np.testing.assert_array_equal(row[row > 0], prompt.tokens)
    assert values["beams_are_cached"]
    assert values["padding_is_found"]
    assert set(values["special_tokens"]) <= {0, END}


# The scores of single steps match for every kind (test_scores_match_the_jax_model).
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["gated_ssm_plus", "transformer", "griffin", "causal_mamba2", "recurrent_gemma"]
)
def test_answers_match_generate(kind, found):
    model, values = exported(kind), found[2][kind]
    tokenizer = model.tokenizer
    answers = generate(
        build_model(model.config.model, tokenizer.vocab_size),
        model.params,
        prompts_of(kind),
        max_tokens=MAX_TOKENS,
        num_tokens=NUM_SPECIAL_TOKENS + tokenizer.num_pieces,
    )
    for row, answer in zip(values["answers"], answers, strict=True):
        np.testing.assert_array_equal(row[: len(answer.tokens)], answer.tokens)
    for text, answer in zip(values["texts"].tolist(), answers, strict=True):
        # The two libraries replace invalid bytes differently.
        if "\ufffd" not in text:
            assert text == tokenizer.decode(answer.tokens)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LANGUAGE_MODELS)
def test_the_loss_covers_the_answer(kind, found):
    _, expected, values = found
    tokens, mask = inputs(kind)
    scores = expected[kind]["whole"].astype(np.float64)
    log_probabilities = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    counted = (np.cumsum(tokens == START, axis=1) > 0) & (tokens != START) & (mask > 0)
    losses = -np.take_along_axis(log_probabilities[:, :-1], tokens[:, 1:, None], axis=-1)[..., 0]
    close(values[kind]["loss"], losses[counted[:, 1:]].mean())
    assert values[kind]["checkpoints_are_alike"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gated_ssm_plus", "bigs"])
def test_accumulated_gradients_are_means(kind, found):
    assert found[2][kind]["accumulates"]


@pytest.mark.slow
def test_class_scores_match_the_jax_model(found):
    _, expected, values = found
    close(values["bigs"]["classes"], expected["bigs"]["classes"])
    assert values["stack_ssm"]["classes"].shape == (ROWS, 2), "a new head"


@pytest.mark.slow
def test_the_tokenizer_of_an_encoder_encodes_mask_tokens(found):
    (row,) = found[2]["bigs"]["prompt_tokens"]
    assert row[0] == make_objective("masked_lm").marker
    assert row[-2:].tolist() == [MASK, SEPARATOR]
    assert (row == SEPARATOR).sum() == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_folders_from_save_pretrained_are_read_back(kind, found):
    folder = found[0] / kind
    for name in ("modeling", "configuration"):
        assert list((folder / "saved").glob(f"{name}_*.py"))
    shutil.copy(folder / "tokenizer.model", folder / "saved")
    if config_of(kind).model.head:
        with pytest.raises(InteropError, match="lacks the tensor 'classifier"):
            read_model(folder / "saved")
        return
    same_model(read_model(folder / "saved"), exported(kind))


def same_model(found, expected):
    assert to_dict(found.config) == to_dict(expected.config)
    assert found.step == expected.step
    assert found.tokenizer.sha256 == expected.tokenizer.sha256
    for (name, one), other in zip(
        name_parameters(found.params).items(), name_parameters(expected.params).values(), strict=True
    ):
        np.testing.assert_array_equal(one, other, err_msg=name)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", MODELS)
def test_a_folder_is_read_back_bit_for_bit(kind, tmp_path):
    model = exported(kind)
    write_transformers(tmp_path / "there", model, prompt_form(model.config))
    for read in (read_model, read_huggingface):
        same_model(read(tmp_path / "there"), model)
    described = json.loads((tmp_path / "there/config.json").read_text())
    for name in described["auto_map"].values():
        file, _, own = name.partition(".")
        assert f"class {own}(" in (tmp_path / "there" / f"{file}.py").read_text()


def test_the_prompt_form_matches_generate():
    assert prompt_form(config_of("gated_ssm"))[:3] == ((PREFIX_LM,), (START,), ())
    assert isinstance(make_prompt("abc", make_objective("prefix_lm"), small_tokenizer()), Prompt)


def test_a_custom_mixer_is_refused():
    with pytest.raises(
        InteropError, match=r"found the mixer 'my_models\.gilr', which has no PyTorch implementation"
    ):
        put_together(["my_models.gilr"], "modeling_birdie")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        *((config_of(kind).model, True) for kind in _CAUSAL),
        (ModelConfig("mamba"), False),
        (ModelConfig("hawk", bidirectional=False), False),
        (ModelConfig("gated_deltanet", bidirectional=False, mlp_activation="silu", dtype="float32"), True),
    ],
)
def test_only_models_without_a_start_token_have_a_counterpart(model, expected):
    assert not has_counterpart(model)
    assert has_counterpart(dataclasses.replace(model, start_token=False)) is expected


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("gated_ssm", {"head": "classification"}, "model.head: found 'classification' for the language"),
        ("bigs", {"head": "spans"}, "model.head: found 'spans'; allowed: '', 'classification'"),
        ("stack_ssm", {"logit_soft_cap": 3.0}, "model.logit_soft_cap: found 3.0 for the encoder"),
    ],
)
def test_unsupported_models_are_refused(kind, fields, message, tmp_path):
    model = exported(kind)
    config = dataclasses.replace(model.config, model=dataclasses.replace(model.config.model, **fields))
    with pytest.raises(InteropError, match=f"^{message}"):
        write_transformers(tmp_path / "there", model._replace(config=config), prompt_form(model.config))
