"""Checkpoints hold everything, notice every changed bit, and never hold NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.bandit import init_bandit
from birdie_jax.config import BanditConfig, CheckpointConfig
from birdie_jax.training.checkpoint import CheckpointError, Checkpoints, NotFinite, fingerprints
from birdie_jax.training.step import TrainState

POSITIONS = np.random.default_rng(0).integers(-1, 1 << 40, (20, 60))


def make_state(seed=0, step=7):
    key = jax.random.key(seed)
    config = BanditConfig(critic_layers=1, critic_features=8, critic_state=8)
    params = {"w": jax.random.normal(key, (33, 65)), "scale": jnp.ones(3)}
    return TrainState(
        step=jnp.int32(step),
        params=params,
        optimizer={"count": jnp.int32(step), "mu": jax.tree.map(lambda leaf: leaf * 0.1, params)},
        bandit=init_bandit(config, [0.5, 0.3, 0.2], [0, 1, 1], 4, key),
    )


def abstract(state):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)


@pytest.fixture
def checkpoints(tmp_path):
    opened = Checkpoints(tmp_path, CheckpointConfig(keep=2))
    yield opened
    opened.close()


def restore(checkpoints):
    return checkpoints.restore(abstract(make_state()), np.zeros_like(POSITIONS))


def damage(folder, pattern="state/**/*"):
    changed = 0
    for file in folder.glob(pattern):
        if file.is_file() and file.stat().st_size > 500:
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.write_bytes(bytes(content))
            changed += 1
    assert changed


def test_nothing_saved_yet(checkpoints):
    assert restore(checkpoints) is None


def test_round_trip_bit_for_bit(checkpoints):
    state = make_state()
    checkpoints.save(state, POSITIONS, 7)
    checkpoints.wait()
    assert checkpoints.last_good == 7
    restored = restore(checkpoints)
    assert jax.tree.structure(restored.state) == jax.tree.structure(state)
    for found, wanted in zip(jax.tree.leaves(restored.state), jax.tree.leaves(state), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(restored.positions, POSITIONS)
    assert restored.positions.dtype == np.int64


def test_keeps_the_newest(checkpoints):
    for step in (1, 2, 3):
        checkpoints.save(make_state(step=step), POSITIONS, step)
        checkpoints.wait()
    assert sorted(int(path.name) for path in checkpoints.directory.iterdir()) == [2, 3]
    assert int(restore(checkpoints).state.step) == 3


@pytest.mark.parametrize("what", ["bits", "missing file", "truncated meta", "positions"])
def test_damaged_newest_gives_the_one_before(checkpoints, tmp_path, what, caplog):
    for step in (1, 2):
        checkpoints.save(make_state(seed=step, step=step), POSITIONS, step)
        checkpoints.wait()
    newest = checkpoints.directory / "00000002"
    match what:
        case "bits":
            damage(newest)
        case "missing file":
            for file in (newest / "state").iterdir():
                if file.name.startswith(("manifest", "_METADATA")):
                    file.unlink()
        case "truncated meta":
            (newest / "meta" / "metadata").write_text('{"step": 2, "finger')
        case "positions":
            damage(newest, "pipeline/**/*")
    restored = restore(checkpoints)
    assert int(restored.state.step) == 1
    assert "the checkpoint of step 2 is damaged" in caplog.text
    assert (tmp_path / "damaged_checkpoints" / "00000002").is_dir()
    checkpoints.save(make_state(step=2), POSITIONS, 2)
    checkpoints.wait()
    assert int(restore(checkpoints).state.step) == 2


def test_all_damaged_is_an_error(checkpoints):
    checkpoints.save(make_state(), POSITIONS, 7)
    checkpoints.wait()
    damage(checkpoints.directory / "00000007")
    with pytest.raises(CheckpointError, match=r"every checkpoint is damaged \(steps \[7\]\)"):
        restore(checkpoints)


def test_a_state_that_is_not_finite_is_not_saved(checkpoints):
    state = make_state()
    state = state.replace(params={**state.params, "scale": jnp.array([1.0, jnp.nan, 1.0])})
    with pytest.raises(NotFinite):
        checkpoints.save(state, POSITIONS, 7)
    assert restore(checkpoints) is None


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.bool_, jnp.uint8])
def test_fingerprint_sees_any_bit_and_any_exchange(dtype):
    values = jnp.arange(40).reshape(8, 5).astype(dtype)
    before = fingerprints({"a": values})
    changed = values.at[3, 2].set(jnp.logical_not(values[3, 2]).astype(dtype))
    assert int(before[0]) != int(fingerprints({"a": changed})[0])
    assert int(before[0]) == int(fingerprints({"a": values.copy()})[0])
    if dtype != jnp.bool_:
        assert int(before[0]) != int(fingerprints({"a": values[::-1]})[0])
