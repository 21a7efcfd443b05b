"""An exported model reads back bit for bit; errors name each mismatch."""

import json
import random
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from birdie_jax.config import Config, ModelConfig, to_dict
from birdie_jax.errors import InteropError
from birdie_jax.interop import name_parameters, parameters_from_names, read_model, write_model
from birdie_jax.interop.weights_file import read_weights, write_weights
from birdie_jax.models import build_model, model_names
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.models.griffin import GriffinConfig
from birdie_jax.models.hawk import HawkConfig
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.models.mamba2 import Mamba2Config
from birdie_jax.text import train_tokenizer


def config_of(name="gated_ssm_plus", **fields):
    sizes = {"layers": 3, "features": 16, "state": 16, "mlp_features": 32}
    sections = (
        AttentionConfig(heads=2),
        EncoderConfig(positions=2048),
        GriffinConfig("recurrent,attention"),
        HawkConfig(heads=2),
        Mamba2Config(head_features=4),
    )
    sizes |= {"sections": sections}
    return Config(model=ModelConfig(name=name, **(sizes | fields)))


def random_params(config, vocab_size, dtype="float32"):
    """Return parameters of random bits, including NaN and infinity."""
    random_bits = np.random.default_rng(0)
    kind = jnp.dtype(dtype)

    def one(shape):
        return np.frombuffer(random_bits.bytes(shape.size * kind.itemsize), kind).reshape(shape.shape)

    return jax.tree.map(one, parameter_shapes(build_model(config.model, vocab_size)))


@pytest.fixture(scope="module")
def tokenizer():
    words = random.Random(0)
    texts = [" ".join(words.choices(["the", "river", "seven", "of", "return"], k=30)) for _ in range(100)]
    return train_tokenizer(texts, 300, tokenizer_type="bpe")


@pytest.fixture(scope="module")
def exported(tmp_path_factory, tokenizer):
    config = config_of()
    path = tmp_path_factory.mktemp("model") / "exported"
    write_model(path, config, random_params(config, tokenizer.vocab_size), tokenizer, 7)
    return path


@pytest.fixture
def folder(tmp_path, exported):
    """A copy of an exported folder for one test to change."""
    return Path(shutil.copytree(exported, tmp_path / "exported"))


def assert_same_bits(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@pytest.mark.parametrize(
    ("name", "tied"),
    [*((name, True) for name in model_names()), ("gated_ssm_plus", False), ("bigs", False)],
)
def test_every_model_is_read_back_bit_for_bit(name, tied, tmp_path, tokenizer):
    config = config_of(name, tie_embeddings=tied)
    params = random_params(config, tokenizer.vocab_size)
    write_model(tmp_path / "out", config, params, tokenizer, 12)
    found = read_model(tmp_path / "out")
    assert_same_bits(found.params, params)
    assert found.config == config
    assert found.step == 12
    assert found.tokenizer.model_bytes == tokenizer.model_bytes
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"config.json", "model.safetensors", "tokenizer.model"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_type_is_read_back_bit_for_bit(dtype, tmp_path, tokenizer):
    config = config_of()
    params = random_params(config, tokenizer.vocab_size, dtype)
    write_model(tmp_path / "out", config, params, tokenizer, 0)
    assert_same_bits(read_model(tmp_path / "out").params, params)


def test_names_are_stable_and_each_layer_is_a_tensor(folder, tokenizer):
    """Other programs depend on these names."""
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    vocab = tokenizer.vocab_size
    layer = {
        "mixer.convolution.kernel": (4, 16),
        "mixer.forget_bias": (16,),
        "mixer.forget_gate.kernel": (16, 16),
        "mixer.input.kernel": (16, 16),
        "mixer.input_gate.kernel": (16, 16),
        "mixer.out.kernel": (16, 16),
        "mixer.output_gate.kernel": (16, 16),
        "mixer_norm.scale": (16,),
        "mlp.gate.kernel": (16, 32),
        "mlp.in.kernel": (16, 32),
        "mlp.out.kernel": (32, 16),
        "mlp_norm.scale": (16,),
    }
    expected = {"embedding": (vocab, 16), "final_norm.scale": (16,)}
    for number in range(3):
        expected |= {f"layers.{number}.{name}": shape for name, shape in layer.items()}
    assert {name: tensor.shape for name, tensor in tensors.items()} == expected
    stacked = random_params(config_of(), vocab)["blocks"]["mixer"]["forget_gate"]["kernel"]
    assert tensors["layers.1.mixer.forget_gate.kernel"].tobytes() == stacked[1].tobytes()


def test_parameters_convert_to_names_and_back():
    shapes = parameter_shapes(build_model(config_of().model, 384))
    params = jax.tree.map(lambda leaf: np.arange(leaf.size).reshape(leaf.shape), shapes)
    assert_same_bits(parameters_from_names(name_parameters(params), shapes), params)


def test_a_file_without_checksums_is_read(folder):
    """Files of other programs have no checksums."""
    path = folder / "model.safetensors"
    before = read_model(folder).params
    safetensors.numpy.save_file(safetensors.numpy.load_file(path), path)
    assert_same_bits(read_model(folder).params, before)


def message_of(folder):
    with pytest.raises(InteropError) as error:
        read_model(folder)
    return str(error.value)


def change_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    change(tensors)
    path.unlink()
    write_weights(path, tensors)


def test_a_damaged_byte_is_detected(folder):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    header = int.from_bytes(content[:8], "little")
    for place in (3, 20, 8 + header // 2, 8 + header, 8 + header + 5000, len(content) - 1):
        damaged = bytearray(content)
        damaged[place] ^= 4
        path.write_bytes(bytes(damaged))
        assert str(path) in message_of(folder)
    path.write_bytes(content[:-1])
    assert "is damaged, or is not a safetensors file (" in message_of(folder)


def damage(folder):
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    begin, _ = json.loads(content[8 : 8 + length])["layers.2.mlp.gate.kernel"]["data_offsets"]
    content[8 + length + begin + 100] ^= 1
    path.write_bytes(bytes(content))


def put_integers(folder):
    """Write integers with safetensors alone, because `write_weights` refuses them."""
    path = folder / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    safetensors.numpy.save_file(tensors | {"final_norm.scale": np.ones(16, np.int32)}, path)


def describes(**changes):
    """Return a function that changes fields of config.json, in the model section or at the top level."""

    def change(folder):
        path = folder / "config.json"
        described = json.loads(path.read_text())
        for name, value in changes.items():
            inner = described["config"]["model"]
            (inner if name in inner else described)[name] = value
        path.write_text(json.dumps(described))

    return change


def tensors_with(**changes):
    """Return a function that changes tensors of a folder by name; None removes a tensor."""

    def change(tensors):
        for name, tensor in changes.items():
            tensors.pop(name) if tensor is None else tensors.update({name: tensor})

    return lambda folder: change_tensors(folder, change)


def config_of_text(text):
    return lambda folder: (folder / "config.json").write_text(text)


# Changes, and the error messages after the folder's name and "model.safetensors: ".
WEIGHTS = [
    (damage, "tensor 'layers.2.mlp.gate.kernel' is damaged: its bytes have ch"),
    (tensors_with(**{"layers.1.mlp.in.kernel": None}), "lacks the tensor 'layers.1.mlp.in.kernel', which"),
    (tensors_with(head=np.zeros((2, 2), np.float32)), "holds the tensor 'head', which "),
    (tensors_with(**{"final_norm.scale": np.ones(17, np.float32)}), "tensor 'final_norm.scale' has shape"),
    (put_integers, "tensor 'final_norm.scale' is of type I32; allowed: BF16, F16, F32, F64"),
    (describes(name="gated_ssm"), "holds the tensor 'layers.0.mixer.convolution.kernel' and 14 more,"),
    (describes(mlp_features=48), "tensor 'layers.0.mlp.gate.kernel' has shape [16, 32];"),
]
CONFIGS = [
    (
        config_of_text('{"model_type": "mamba"}'),
        ": found the model_type 'mamba', which birdie_jax.import_m",
    ),
    (config_of_text('{"birdie_jax": 3}'), ": birdie_jax: found 3; allowed: the object that export writes"),
    (config_of_text('{"birdie_jax": {}}'), ": birdie_jax: found no format of an exported model; allowed:"),
    (config_of_text('{"x": 3}'), ": found no format of an exported model; allowed: a folder that birdie"),
    (config_of_text('{"format": "x"}'), ": format: found 'x'; allowed: 'birdie_jax'"),
    (config_of_text('{"format": "birdie_jax"}'), ": format_version: found None; allowed: 1"),
    (
        config_of_text(json.dumps(to_dict(Config()))),
        ": found the configuration of a run, which is a --work",
    ),
    (config_of_text("[1]"), ": found list; allowed: a folder that birdie_jax.export or birdie_jax.import"),
    (config_of_text("{"), ": cannot be used: "),
    (describes(step="seven"), ".step: found 'seven'"),
]
REFUSED = [
    *((change, f"model.safetensors: {message}") for change, message in WEIGHTS),
    *((change, f"config.json{message}") for change, message in CONFIGS),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_errors_name_the_fault(change, message, folder):
    change(folder)
    assert message_of(folder).startswith(f"{folder}/{message}")


def test_an_unknown_field_of_the_config_is_ignored(folder, caplog):
    path = folder / "config.json"
    described = json.loads(path.read_text())
    described["config"]["model"]["colour"] = "red"
    path.write_text(json.dumps(described))
    read_model(folder)
    assert f"{path}: unknown field config.model.colour; ignored" in caplog.text


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.model"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    assert str(folder / name) in message_of(folder)


@pytest.mark.parametrize("pieces", [300, 400])
def test_another_tokenizer_is_refused(folder, pieces, tokenizer):
    """The hash differs with the same number of pieces, the number with more pieces."""
    words = random.Random(1)
    texts = ["".join(words.choices("abcdefghijklmno ", k=200)) for _ in range(200)]
    other = train_tokenizer(texts, pieces, tokenizer_type="bpe")
    other.save(folder / "tokenizer.model")
    field = "vocab_size" if pieces == 400 else "tokenizer_sha256"
    found, expected = (getattr(one, field.removeprefix("tokenizer_")) for one in (other, tokenizer))
    assert message_of(folder) == (
        f"{folder}/tokenizer.model: does not fit the weights: its {field} is {found}; "
        f"{folder}/model.safetensors was made with {expected}"
    )


def test_existing_folders_and_unknown_types_are_refused(folder, tokenizer, tmp_path):
    config = config_of()
    params = random_params(config, tokenizer.vocab_size)
    with pytest.raises(InteropError, match=r"exported: exists; allowed: the name of a new folder$"):
        write_model(folder, config, params, tokenizer, 7)
    params["embedding"] = params["embedding"].view(np.int32)
    with pytest.raises(InteropError, match=r"tensor 'embedding' is of type int32; allowed: float16, "):
        write_model(tmp_path / "new", config, params, tokenizer, 7)
    assert not (tmp_path / "new").exists()


def test_an_export_succeeds_after_a_failed_one(folder, tokenizer, tmp_path):
    shutil.copytree(folder, tmp_path / "new.partial")
    config = config_of()
    write_model(tmp_path / "new", config, random_params(config, tokenizer.vocab_size), tokenizer, 7)
    assert not (tmp_path / "new.partial").exists()
    assert read_model(tmp_path / "new").step == 7


def test_empty_and_scalar_weights_are_read_back(tmp_path):
    tensors = {"empty": np.zeros((0, 3), np.float32), "one": np.array(2.5, np.float32)}
    write_weights(tmp_path / "w", tensors)
    found = read_weights(tmp_path / "w", {name: tensor.shape for name, tensor in tensors.items()}, "here")
    assert_same_bits(found, tensors)
