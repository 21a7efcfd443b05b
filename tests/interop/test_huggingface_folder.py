"""Models of other libraries convert to this project and back bit for bit, with the same scores."""

import json
import re
import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from birdie_jax.config import Config, ModelConfig, to_dict
from birdie_jax.errors import InteropError
from birdie_jax.interop import read_huggingface, read_model, write_huggingface, write_model
from birdie_jax.interop.tensor_names import name_parameters, parameters_from_names
from birdie_jax.models import build_model
from birdie_jax.models.gated_deltanet import GatedDeltaNetConfig
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.models.mamba import MambaConfig
from birdie_jax.models.mamba2 import Mamba2Config
from birdie_jax.trained_model import model_of_folder
from tests.interop.huggingface_folders import (
    KINDS,
    PIECES,
    RECORDED,
    TEXT,
    described,
    recorded,
    scores_of,
    whole_texts,
    write_folder,
)
from tests.quick_jit import quick_jit

_ALLOWED = "allowed: a folder of a Hugging Face model; generate, evaluate and export read"
EMBEDDING, HEAD = "backbone.embeddings.weight", "lm_head.weight"

each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "there")


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "gated_deltanet"])
def test_scores_match_transformers(kind, tmp_path):
    """Gated DeltaNet: recorded from functions of `transformers`, with tensors of flash-linear-attention."""
    arrays, folder = recorded(kind)[0], write_folder(tmp_path / "there", kind)
    tokens, expected = arrays["tokens"], arrays["scores"]
    read = read_huggingface(folder)
    found = scores_of(read.config, read.params, tokens + 256, read.tokenizer.vocab_size)
    np.testing.assert_allclose(found[..., TEXT], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    others = np.delete(found, np.arange(256, 256 + PIECES), axis=-1)
    assert (others < -1e29).all()


@pytest.mark.parametrize("kind", ["mamba2", "gated_deltanet"])
def test_gradients_match_transformers(kind, tmp_path):
    arrays, _, gradients = recorded(kind)
    read = read_huggingface(write_folder(tmp_path / "there", kind))
    model = build_model(read.config.model, read.tokenizer.vocab_size)
    tokens = jnp.asarray(arrays["tokens"] + 256)

    @quick_jit
    @jax.grad
    def gradient(params):
        layout = whole_texts(*tokens.shape)
        hidden, _ = model.apply({"params": params}, tokens, layout, method="hidden")
        scores = model.apply({"params": params}, hidden, method="logits")
        return jnp.sum(scores[..., TEXT] * arrays["cotangent"])

    found = gradient(jax.tree.map(jnp.asarray, read.params))
    ours = {name: np.asarray(leaf) for name, leaf in name_parameters(found).items()}
    theirs = {one.theirs: one.put_together(ours) for one in KINDS[kind].counterparts(read.config.model)}
    embedding = next(name for name in gradients if "embeddings" in name)
    theirs[embedding] = ours["embedding"][TEXT]
    if HEAD in gradients:
        theirs[HEAD] = ours["head"][TEXT]
    assert theirs.keys() == gradients.keys()
    for name, expected in gradients.items():
        np.testing.assert_allclose(
            theirs[name], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max(), err_msg=name
        )


def test_the_configuration_describes_the_differences(folder):
    read = read_huggingface(folder)
    model = read.config.model
    assert (model.name, model.layers, model.features, model.state) == ("mamba", 2, 8, 16)
    assert model.section(MambaConfig) == MambaConfig(state_size=4, time_step_rank=3, conv_width=4)
    assert (model.norm_epsilon, model.embedding_scale, model.residual_dtype) == (1e-5, 1.0, "float32")
    assert not model.bidirectional
    assert not model.start_token
    assert (model.end_token, model.min_predicted_id, model.max_predicted_id) == (256, 256, 279)
    np.testing.assert_array_equal(read.tokenizer.encode("ab") - 256, [1, 2])
    table = np.asarray(read.params["embedding"])
    assert table.shape == (384, 8)
    mean = table[TEXT].mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(table[:256], np.broadcast_to(mean, (256, 8)), rtol=1e-6)
    assert read_huggingface(folder, "bfloat16").config.model.dtype == "bfloat16"


def test_shards_give_the_same_model(folder, tmp_path):
    whole, parts = read_huggingface(folder), read_huggingface(write_folder(tmp_path / "shards", shards=3))
    assert whole.config == parts.config
    for name, tensor in name_parameters(whole.params).items():
        np.testing.assert_array_equal(tensor, name_parameters(parts.params)[name], err_msg=name)


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "recurrent_gemma"])
def test_a_folder_from_save_pretrained_is_read(kind, tmp_path):
    """The recorded folder of `save_pretrained` has shards and the same settings as `write_folder`."""
    theirs, folder = tmp_path / "theirs", write_folder(tmp_path / "there", kind)
    shutil.copytree(RECORDED / kind, theirs)
    shutil.copy(folder / "tokenizer.json", theirs)
    assert len(list(theirs.glob("*.safetensors"))) > 1
    read, expected = read_huggingface(theirs), read_huggingface(folder)
    assert read.config == expected.config
    for name, tensor in name_parameters(expected.params).items():
        np.testing.assert_array_equal(name_parameters(read.params)[name], tensor, err_msg=name)


@each_kind
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_folder_converts_back_bit_for_bit(kind, dtype, tmp_path):
    """Read their folder, write and read our folder, then write their folder."""
    before = {name: tensor.astype(jnp.dtype(dtype)) for name, tensor in recorded(kind)[1].items()}
    folder, back = write_folder(tmp_path / "there", kind, before), tmp_path / "back"
    read = read_huggingface(folder)
    write_model(tmp_path / "here", read.config, read.params, read.tokenizer, 0)
    here = read_model(tmp_path / "here")
    assert here.config == read.config
    write_huggingface(back, here.config, here.params, here.tokenizer)
    after = safetensors.numpy.load_file(back / "model.safetensors")
    assert after.keys() == before.keys()
    for name, tensor in before.items():
        assert (after[name].dtype, after[name].tobytes()) == (tensor.dtype, tensor.tobytes()), name
    computed = model_of_folder(tmp_path / "here").params
    assert {leaf.dtype.name for leaf in jax.tree.leaves(computed)} == {"float32"}
    found, expected = json.loads((back / "config.json").read_text()), described(kind)
    # `transformers` writes `dtype`, and reads both.
    assert (found.pop("torch_dtype"), expected["dtype"]) == (dtype, "float32")
    assert {name: expected[name] for name in found} == found
    there, again = (json.loads((path / "tokenizer.json").read_text()) for path in (folder, back))
    assert there == again
    named = json.loads((back / "tokenizer_config.json").read_text())
    assert [named.get(f"{token}_token") for token in ("bos", "eos", "pad")] == {
        "mamba": ["<|endoftext|>"] * 3,
        "mamba2": ["<|endoftext|>"] * 3,
        "gated_deltanet": [None, "</s>", None],
        "recurrent_gemma": ["<bos>", "<eos>", "<pad>"],
    }[kind]


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "gated_deltanet"])
@pytest.mark.parametrize(("field", "value"), [("norm_offset", 1.0), ("logit_soft_cap", 3.0)])
def test_a_model_that_their_class_does_not_compute_is_refused(kind, field, value, tmp_path):
    read = read_huggingface(write_folder(tmp_path / "there", kind))
    config = replace(read.config, model=replace(read.config.model, **{field: value}))
    with pytest.raises(InteropError, match=rf"^model\.{field}: found {value}; allowed: 0\.0, as in "):
        write_huggingface(tmp_path / "back", config, read.params, read.tokenizer)
    assert not (tmp_path / "back").exists()


def test_a_fine_tuned_head_is_not_left_out(tmp_path, folder):
    read = read_huggingface(folder)
    config = replace(read.config, model=replace(read.config.model, head="classification", head_outputs=2))
    with pytest.raises(InteropError, match=r"^model\.head: found 'classification'; allowed: ''"):
        write_huggingface(tmp_path / "back", config, read.params, read.tokenizer)


def test_folders_of_other_writers_are_read(tmp_path, folder):
    """The folder has the authors' name of the embedding, a copy of the tied head, and half precision."""
    tensors = {name: tensor.astype(np.float16) for name, tensor in recorded("mamba")[1].items()}
    rows = tensors.pop(EMBEDDING)
    tensors |= {"backbone.embedding.weight": rows, HEAD: rows.copy()}
    other = write_folder(tmp_path / "other", tensors=tensors, intermediate_size=..., residual_in_fp32=False)
    read = read_huggingface(other)
    assert read.config.model.residual_dtype == ""
    np.testing.assert_array_equal(read.params["embedding"][TEXT], rows)
    assert read.params["embedding"].dtype == np.float16


def test_an_untied_head_stays_untied(tmp_path):
    tensors = recorded("mamba")[1]
    tensors[HEAD] = tensors[EMBEDDING] + 1
    read = read_huggingface(write_folder(tmp_path / "untied", tensors=tensors, tie_word_embeddings=False))
    np.testing.assert_array_equal(read.params["head"][TEXT], tensors[HEAD])
    write_huggingface(tmp_path / "back", read.config, read.params, read.tokenizer)
    back = safetensors.numpy.load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == tensors.keys()
    np.testing.assert_array_equal(back[HEAD], tensors[HEAD])


def test_an_exported_model_keeps_its_scores(tmp_path, folder):
    """The scale of the embedding makes the embedding and the head two tensors."""
    tokenizer = read_huggingface(folder).tokenizer
    config = Config(
        model=ModelConfig(
            name="mamba",
            layers=1,
            features=8,
            state=16,
            bidirectional=False,
            dtype="float32",
            sections=(MambaConfig(state_size=2),),
        )
    )
    random = np.random.default_rng(0)
    shapes = name_parameters(parameter_shapes(build_model(config.model, tokenizer.vocab_size)))
    named = {name: random.normal(size=leaf.shape).astype(np.float32) for name, leaf in shapes.items()}
    params = parameters_from_names(named, parameter_shapes(build_model(config.model, tokenizer.vocab_size)))
    write_huggingface(tmp_path / "out", config, params, tokenizer)
    described = json.loads((tmp_path / "out" / "config.json").read_text())
    assert described["tie_word_embeddings"] is False
    assert described["eos_token_id"] is None
    # A folder must have an end token.
    (tmp_path / "out" / "config.json").write_text(json.dumps(described | {"eos_token_id": 0}))
    read = read_huggingface(tmp_path / "out")
    tokens = 256 + random.integers(0, PIECES, (1, 7))
    found = scores_of(read.config, read.params, tokens, tokenizer.vocab_size)[..., TEXT]
    expected = scores_of(config, params, tokens, tokenizer.vocab_size)[..., TEXT]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


RATIOS = {
    "mamba": {"features": 88, "state": 120, "sections": (MambaConfig(),)},
    "mamba2": {"features": 176, "state": 240, "sections": (Mamba2Config(head_features=16),)},
    "gated_deltanet": {"state": 232, "sections": (GatedDeltaNetConfig(heads=1, key_features=56),)},
}


@pytest.mark.parametrize("kind", RATIOS)
def test_a_ratio_that_rounds_down_keeps_the_width(kind, tmp_path):
    """In floating point 120 / 88 * 88 is less than 120, and `transformers` takes the whole part."""
    model = ModelConfig(name=kind, bidirectional=False, mlp_activation="silu", **RATIOS[kind])
    settings = KINDS[kind].from_config(model, PIECES)
    described = json.loads(json.dumps(settings.to_json()))
    assert KINDS[kind].read_settings(described, tmp_path / "config.json") == settings
    ratio, width = described.get("expand"), described["hidden_size"]
    if kind == "gated_deltanet":
        ratio, width = described["expand_v"], described["head_dim"]
    assert int(ratio * width) == model.state


SETTINGS = [
    (
        "mamba",
        {"model_type": "mamba3"},
        "model_type: found 'mamba3'; allowed: 'mamba', 'mamba2', 'gated_del",
    ),
    ("mamba", {"use_bias": True}, "use_bias: found True, which is not supported; allowed: False"),
    ("mamba", {"hidden_act": "gelu"}, "hidden_act: found 'gelu', which is not supported; allowed: 'silu'"),
    (
        "mamba",
        {"ssm_cfg": {"layer": "Mamba2"}},
        "ssm_cfg: found {'layer': 'Mamba2'}, which is not",
    ),
    (
        "mamba",
        {"intermediate_size": 24},
        "intermediate_size: found 24; allowed: 16, which other fields give",
    ),
    ("mamba", {"hidden_size": "8"}, "hidden_size: found '8'"),
    ("mamba", {"hidden_size": ...}, "hidden_size: missing"),
    ("mamba", {"eos_token_id": None}, "eos_token_id: found None; allowed: the id of the token that ends a"),
    ("mamba", {"vocab_size": 9}, "tokenizer.json has 24 pieces; allowed: from that to 128"),
    ("mamba", {"num_hidden_layers": 0}, "config.model.layers: found 0; allowed"),
    ("mamba2", {"num_heads": 3}, "num_heads: found 3; allowed: 4, which other fields give"),
    (
        "mamba2",
        {"time_step_limit": [0.0, 1.0]},
        "time_step_limit: found [0.0, 1.0], which is not",
    ),
    (
        "mamba2",
        {"norm_before_gate": True},
        "norm_before_gate: found True, which is not supported; allowed: False",
    ),
    ("mamba2", {"n_groups": 3}, "config.model.mamba2.groups: found 3; allowed: a divisor of the 4 heads"),
    ("gated_deltanet", {"attn": {"layers": [1]}}, "attn: found {'layers': [1]}, which is not supported"),
    (
        "gated_deltanet",
        {"expand_v": 1.5},
        "expand_v: found 1.5; allowed: a whole number times head_dim = 3",
    ),
    ("gated_deltanet", {"use_gate": False}, "use_gate: found False, which is not supported; allowed: True"),
    ("recurrent_gemma", {"attention_bias": True}, "attention_bias: found True, which is not supported;"),
    ("recurrent_gemma", {"hidden_activation": "silu"}, "hidden_activation: found 'silu', which is not"),
    ("recurrent_gemma", {"embeddings_scale_by_sqrt_dim": False}, "scale_by_sqrt_dim: found False"),
    ("recurrent_gemma", {"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters: found {'rope_type':"),
    ("recurrent_gemma", {"intermediate_size": 41}, "intermediate_size: found 41; allowed: an even number"),
    ("recurrent_gemma", {"block_types": 3}, "block_types: found 3"),
    ("recurrent_gemma", {"eos_token_id": [1, 2]}, "eos_token_id: found"),
    ("recurrent_gemma", {"bos_token_id": 99}, "bos_token_id: found 99; allowed: null, or an id below"),
    ("recurrent_gemma", {"lru_width": 7}, "config.model.state: found 7; allowed: an even number"),
    ("recurrent_gemma", {"num_attention_heads": 0}, "num_attention_heads: found 0; allowed: a divisor of"),
]


@pytest.mark.parametrize(("kind", "changes", "message"), SETTINGS)
def test_an_invalid_setting_is_named(kind, changes, message, tmp_path):
    with pytest.raises(InteropError, match=re.escape(message)) as refused:
        read_huggingface(write_folder(tmp_path / "there", kind, **changes))
    assert str(refused.value).startswith(f"{tmp_path}/there/config.json")


NORM, PROJECTIONS = "backbone.norm_f.weight", "model.layers.2.temporal_block"
# Changed tensors by name; None removes a tensor.
TENSORS = [
    ("mamba", {"backbone.layers.1.mixer.D": None}, "lacks the tensor 'backbone.layers.1.mixer.D'"),
    ("mamba", {"backbone.x.bias": np.zeros(32, np.float32)}, "holds the tensor 'backbone.x.bias', which"),
    ("mamba", {NORM: np.zeros(9, np.float32)}, f"tensor '{NORM}' has shape [9]; "),
    ("mamba", {HEAD: np.ones((24, 8), np.float32)}, f"tensor '{HEAD}' differs from '{EMBEDDING}'; allowed"),
    ("mamba", {NORM: np.zeros(8, np.int32)}, f"tensor '{NORM}' is of type I32; allowed: BF16, F16, F32,"),
    ("recurrent_gemma", {f"{PROJECTIONS}.o_proj.bias": None}, "lacks the tensor"),
    ("recurrent_gemma", {f"{PROJECTIONS}.q_proj.bias": np.zeros(24, np.float32)}, "q_proj.bias', which"),
    ("recurrent_gemma", {HEAD: np.ones((24, 24), np.float32)}, f"tensor '{HEAD}' differs from"),
]


@pytest.mark.parametrize(("kind", "changes", "message"), TENSORS)
def test_an_invalid_tensor_is_named(kind, changes, message, tmp_path):
    tensors = recorded(kind)[1] | changes
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    with pytest.raises(InteropError, match=re.escape(message)):
        read_huggingface(write_folder(tmp_path / "there", kind, tensors))


def test_an_invalid_file_is_named(tmp_path):
    shards = write_folder(tmp_path / "shards", shards=2)
    index = shards / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    name = next(name for name, file in listed["weight_map"].items() if file == second)

    def refused(message):
        with pytest.raises(InteropError, match=f"^{re.escape(str(shards))}/{message}"):
            read_huggingface(shards)

    for wrong, message in (
        ({name: first}, f"model.safetensors.index.json: tensor '{name}' is in {first} by the index"),
        ({"x": first}, f"model.safetensors.index.json: tensor 'x' is in {first} by the index, and is in"),
        ({"x": "../x.safetensors"}, r"model.safetensors.index.json: weight_map: 'x': found"),
    ):
        index.write_text(json.dumps({"weight_map": listed["weight_map"] | wrong}))
        refused(message)
    index.write_text("{}")
    refused("model.safetensors.index.json: weight_map: found None; allowed: an object")
    index.write_text(json.dumps(listed))
    (shards / second).write_bytes(b"x" * 99)
    refused(f"{second}: is damaged, or is not a safetensors file")
    (shards / second).unlink()
    refused(f"{second}: not found; allowed: all shards")
    index.unlink()
    refused("model.safetensors: not found; allowed: model.safetensors, or shards")
    (shards / "pytorch_model.bin").write_bytes(b"")
    refused("model.safetensors: found pytorch_model.bin, a pickle, which is never read")
    (shards / "tokenizer.json").unlink()
    refused("tokenizer.json: the tokenizer model cannot be read")


def test_a_folder_of_this_project_or_a_file_is_refused(tmp_path, folder):
    read = read_huggingface(folder)
    write_model(tmp_path / "exported", *read)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(to_dict(read.config)))
    (tmp_path / "file").write_text("{}")
    for name, message in (
        (
            "run",
            f"found the workdir of a run; {_ALLOWED} this folder as --workdir={tmp_path}/run, and train",
        ),
        ("exported", f"found a folder that birdie_jax.export or birdie_jax.import_model wrote; {_ALLOWED}"),
        ("file", "is no folder; allowed: a folder of a Hugging Face model"),
    ):
        with pytest.raises(InteropError) as caught:
            read_huggingface(tmp_path / name)
        assert str(caught.value).startswith(f"{tmp_path / name}: {message}")


def test_models_without_a_transformers_class_are_refused(tmp_path, folder):
    read = read_huggingface(folder)
    for changes, message in (
        (
            {"name": "hawk"},
            "model.name: found 'hawk'; allowed: 'mamba', 'mamba2', 'gated_deltanet', 'griffin', ",
        ),
        ({"bidirectional": True}, "model.bidirectional: found True; allowed: False"),
    ):
        fields = {"name": "mamba", "bidirectional": False} | changes
        with pytest.raises(InteropError, match=f"^{message}"):
            write_huggingface(
                tmp_path / "out", Config(model=ModelConfig(**fields)), read.params, read.tokenizer
            )
    with pytest.raises(InteropError, match="exists; allowed: the name of a new folder"):
        write_huggingface(folder, read.config, read.params, read.tokenizer)
