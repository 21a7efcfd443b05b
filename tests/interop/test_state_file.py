"""A state reads back bit for bit, only for its own model; checks detect every damaged byte."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from etils import epath

from birdie_jax.config import Config, ModelConfig
from birdie_jax.errors import InteropError, SavedStateError
from birdie_jax.interop import ModelIdentity, identify_model, read_state, write_state
from birdie_jax.models import build_model
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.griffin import GriffinConfig
from birdie_jax.models.hawk import HawkConfig
from birdie_jax.models.mamba2 import Mamba2Config
from birdie_jax.models.registry import language_model_names
from birdie_jax.models.saved_state import SavedState, cache_shapes, name_cache
from birdie_jax.storage import make_path
from tests.trained_workdirs import random_params, small_tokenizer

IDENTITY = ModelIdentity("gated_ssm_plus", "runs/a step 9", 9, "float32", "a" * 64, "b" * 64, "c" * 64)
SIZES = {"layers": 2, "features": 16, "state": 16, "mlp_features": 16}


def some_state(model):
    """Return a state of random finite numbers."""
    random = np.random.default_rng(0)
    shapes = cache_shapes(model)
    cache = jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype(leaf.dtype), shapes)
    return SavedState(cache, 1000, 1000, 123)


def write(path, state, identity=IDENTITY):
    return write_state(path, state, identity, arm="prefix", objective="prefix_lm", marker=None)


def model_of(name="gated_ssm_plus", **fields):
    return build_model(ModelConfig(name=name, **(SIZES | fields)), 384)


@pytest.fixture
def path(tmp_path):
    return epath.Path(tmp_path / "book.state")


HEADS = 4
SECTIONS = {
    "window": (
        HawkConfig(heads=HEADS),
        GriffinConfig("recurrent,attention"),
        AttentionConfig(HEADS, window=8),
        Mamba2Config(head_features=4, state_size=4),
    ),
    # `generate` does not save this state, because it grows; the file format supports its cache.
    "no window": (AttentionConfig(HEADS),),
}
CACHES = [*((name, "window") for name in language_model_names()), ("transformer", "no window")]


@pytest.mark.parametrize(("name", "sections"), CACHES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_state_is_read_back_bit_for_bit(name, sections, dtype, path):
    """Without a convolution, the cache has an empty array."""
    model = model_of(name, dtype=dtype, sections=SECTIONS[sections])
    state = some_state(model)
    assert write(path, state) == path.stat().length
    stored = read_state(path)
    found = stored.state_of(model, IDENTITY)
    assert found[1:] == state[1:]
    assert jax.tree.structure(found.cache) == jax.tree.structure(state.cache)
    for one, other in zip(jax.tree.leaves(found.cache), jax.tree.leaves(state.cache), strict=True):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    assert (stored.description.arm, stored.description.objective) == ("prefix", "prefix_lm")
    assert [file.name for file in path.parent.iterdir()] == ["book.state"]
    if dtype == "float32":
        # Other programs can read the file.
        stored = safetensors.numpy.load_file(path)
        assert stored.keys() == name_cache(state.cache).keys()
        for array_name, array in name_cache(state.cache).items():
            np.testing.assert_array_equal(stored[array_name], array)


def test_an_unreadable_type_is_not_written(path):
    state = some_state(model_of())
    wide = state._replace(cache=jax.tree.map(lambda leaf: leaf.astype(np.float64), state.cache))
    with pytest.raises(
        SavedStateError, match=r"array '\w+' is of type float64; allowed: bfloat16, float16"
    ):
        write(path, wide)
    assert not path.exists()


def test_a_state_in_a_bucket_is_read_back(bucket_url):
    model = model_of()
    state = some_state(model)
    write(make_path(f"{bucket_url}/book.state"), state)
    found = read_state(make_path(f"{bucket_url}/book.state")).state_of(model, IDENTITY)
    np.testing.assert_array_equal(found.cache.state, state.cache.state)
    with pytest.raises(InteropError, match=f"^{bucket_url}/no.state: not found; allowed: a file that "):
        read_state(make_path(f"{bucket_url}/no.state"))


def test_damaged_bytes_and_truncated_files_are_detected(path):
    write(path, some_state(model_of("birdie_ssm", layers=1)))
    contents = path.read_bytes()
    for place in range(len(contents)):
        damaged = bytearray(contents)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(bytes(damaged))
        with pytest.raises(InteropError, match=r"book\.state"):
            # Some damaged bytes change the format or the model, which fails with another message.
            read_state(path).state_of(model_of("birdie_ssm", layers=1), IDENTITY)
    for length in range(len(contents)):
        path.write_bytes(contents[:length])
        with pytest.raises(InteropError, match=r"book\.state: is damaged, or is not a saved state"):
            read_state(path)


def test_a_failed_write_keeps_the_old_file(path, monkeypatch):
    model = model_of()
    write(path, some_state(model))
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("birdie_jax.storage.files.sync", full)
    with pytest.raises(InteropError, match=r"book\.state: cannot be written: .*No space left on device"):
        write(path, some_state(model)._replace(tokens=5))
    assert path.read_bytes() == before


def test_states_of_other_models_are_refused(path):
    model, other_hash, missing = model_of(), "d" * 64, path.with_name("no.state")
    write(path, some_state(model))

    def refused(message, path=path, model=model, **changes):
        with pytest.raises(InteropError) as error:
            read_state(path).state_of(model, replace(IDENTITY, **changes))
        assert str(error.value).startswith(f"{path}: {message}")

    refused(
        "belongs to gated_ssm_plus of runs/a step 9 (config aaaaaaaaaaaa, parameters bbbbbbbbbbbb); found "
        "hawk of runs/b step 5 (config aaaaaaaaaaaa, parameters dddddddddddd); allowed: the model that",
        **{"name": "hawk", "origin": "runs/b step 5", "parameters_sha256": other_hash},
    )
    refused("belongs to", architecture_sha256=other_hash)
    refused("was read with the tokenizer cccccccccccc of runs/a step 9; found", tokenizer_sha256=other_hash)
    # A moved folder is the same model.
    assert read_state(path).state_of(model, replace(IDENTITY, origin="exported/a step 9")).tokens == 1000
    refused("does not fit gated_ssm_plus: array 'state' is float32[2, 1, 8];", model=model_of(layers=3))
    refused("not found; allowed: a file that birdie_jax.generate --save_state wrote", path=missing)
    refused("cannot be read: ", path=path.parent)
    path.write_bytes(b"")
    refused("is damaged, or is not a saved state (SafetensorError: ")
    safetensors.numpy.save_file({"state": np.zeros(3)}, path)
    refused("is damaged, or is not a saved state (KeyError: ")


def test_the_identity_depends_on_architecture_and_parameters():
    config = Config(model=ModelConfig(**SIZES))
    tokenizer = small_tokenizer()
    params = random_params(config, tokenizer.vocab_size, 0)

    def identify(config=config, params=params, origin="runs/a step 9"):
        return identify_model(config, params, tokenizer, origin=origin, step=9)

    mine = identify()
    assert mine.difference(identify(params=jax.tree.map(jnp.asarray, params), origin="b")) is None
    assert mine.tokenizer_sha256 == tokenizer.sha256
    moved = jax.tree.map(np.array, params)
    moved["final_norm"]["scale"][3] = np.nextafter(moved["final_norm"]["scale"][3], 2)
    assert identify(params=moved).parameters_sha256 != mine.parameters_sha256
    for field in ({"bidirectional": False}, {"dtype": "float32"}, {"norm_epsilon": 1e-3}):
        changed = Config(model=ModelConfig(**(SIZES | field)))
        assert identify(config=changed).architecture_sha256 != mine.architecture_sha256
    assert identify(config=replace(config, seed=7)).architecture_sha256 == mine.architecture_sha256
