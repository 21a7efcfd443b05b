"""Checkpoints save arrays by name, detect every changed bit, refuse NaN, and restore in later versions."""

import errno
import itertools
import json
import shutil
import threading
import time
import zlib
from pathlib import Path

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from birdie_jax.config import CheckpointConfig
from birdie_jax.engine import Checkpoints, TrainState, Workdir, checkpoint, checkpoint_reading
from birdie_jax.engine.checkpoint_format import (
    FORMAT_VERSION,
    checksums,
    named_checksums,
    named_checksums_of_host,
    named_leaves,
    read_description,
)
from birdie_jax.errors import CheckpointError, DamagedError, NotFinite, exit_status

POSITION = {"row_streams": np.random.default_rng(0).integers(-1, 1 << 40, (20, 60))}


@flax.struct.dataclass
class Section:
    """What a hook keeps, a dataclass as the bandit's is."""

    history: jax.Array
    layers: tuple[jax.Array, ...]
    name: str = flax.struct.field(pytree_node=False, default="static")


def make_state(seed=0, step=7):
    key = jax.random.key(seed)
    params = {"blocks": {"mixer": {"kernel": jax.random.normal(key, (33, 65))}}, "scale": jnp.ones(3)}
    section = Section(jnp.arange(4.0), (jnp.ones((2, 200), jnp.bfloat16), jnp.arange(3) > 1))
    optimizer = optax.adam(0.1).init(params)
    return TrainState(jnp.int32(step), params, optimizer, {"bandit": section})


def abstract(state):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)


@pytest.fixture
def checkpoints(tmp_path):
    opened = Checkpoints(Workdir(tmp_path), CheckpointConfig(keep=2))
    yield opened
    opened.close()


def save(checkpoints, state, step):
    checkpoints.save(state, POSITION, step)
    checkpoints.wait()


def restore(checkpoints, state=None):
    empty = jax.tree.map(np.zeros_like, POSITION)
    wanted = make_state(seed=99) if state is None else state
    return checkpoints.restore(abstract(wanted), empty, lambda: wanted.sections)


def contents(folder):
    """Return every file below a folder with its bytes."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def damage(folder, pattern="state/**/*"):
    changed = 0
    for file in folder.glob(pattern):
        if file.is_file() and file.stat().st_size > 500:
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.write_bytes(bytes(content))
            changed += 1
    assert changed


def test_a_folder_that_cannot_be_made_leaves_no_thread_waiting(checkpoints, monkeypatch):
    async def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("orbax.checkpoint._src.path.async_path.mkdir", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            save(checkpoints, make_state(), 7)
    # Orbax's threads that wait for a folder are no daemons, and the process ends after them.
    assert not [thread for thread in threading.enumerate() if "Signaling" in type(thread).__name__]


def test_the_cause_at_the_end_of_a_long_message_is_kept():
    paths = "Error writing local file: " * 30
    specification = f" [tensorstore_spec='{paths}'] [os_error_code='5']"
    message = f"{paths}Input/output error{specification}\nsource locations"
    cause = checkpoint_reading.first_line(ValueError(message))
    assert cause.startswith("Error writing") and "Input/output error (" in cause
    assert len(cause) < 600 and "\n" not in cause


def test_a_clock_that_jumps_forward_fails_no_save(checkpoints, monkeypatch):
    state, hours = make_state(), itertools.count(step=36_000)
    wall_clock = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: wall_clock() + next(hours))
        save(checkpoints, state, 7)
    assert checkpoints.last_good == 7


def test_round_trip_bit_for_bit(checkpoints):
    assert restore(checkpoints) is None
    state = make_state()
    save(checkpoints, state, 7)
    assert checkpoints.last_good == 7
    restored = restore(checkpoints)
    assert jax.tree.structure(restored.state) == jax.tree.structure(state)
    for found, wanted in zip(jax.tree.leaves(restored.state), jax.tree.leaves(state), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(restored.position["row_streams"], POSITION["row_streams"])
    assert restored.position["row_streams"].dtype == np.int64


def test_keeps_the_newest(checkpoints):
    for step in (1, 2, 3):
        save(checkpoints, make_state(step=step), step)
    assert sorted(int(path.name) for path in checkpoints.directory.iterdir()) == [2, 3]
    assert int(restore(checkpoints).state.step) == 3


@pytest.mark.parametrize("what", ["bits", "missing file", "truncated meta", "positions"])
def test_damaged_newest_gives_the_one_before(checkpoints, tmp_path, what, caplog):
    for step in (1, 2):
        save(checkpoints, make_state(seed=step, step=step), step)
    newest = Path(checkpoints.directory) / "00000002"
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
            damage(newest, "batches/**/*")
    restored = restore(checkpoints)
    assert int(restored.state.step) == 1
    assert "the checkpoint of step 2 is damaged" in caplog.text
    assert (tmp_path / "damaged_checkpoints" / "00000002").is_dir()
    save(checkpoints, make_state(step=2), 2)
    assert int(restore(checkpoints).state.step) == 2


def test_all_damaged_is_an_error_at_every_start(tmp_path, checkpoints):
    save(checkpoints, make_state(), 7)
    damage(Path(checkpoints.directory) / "00000007")
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"is damaged; .* has 00000007\. Remove") as caught:
            restore(checkpoints)
        assert exit_status(caught.value) == 2
    shutil.rmtree(tmp_path / "damaged_checkpoints")
    assert restore(checkpoints) is None


def test_a_state_that_is_not_finite_is_not_saved(checkpoints):
    state = make_state()
    state = state.replace(params={**state.params, "scale": jnp.array([1.0, jnp.nan, 1.0])})
    with pytest.raises(NotFinite):
        checkpoints.save(state, POSITION, 7)
    assert restore(checkpoints) is None


def test_arrays_are_found_by_their_names_with_orbax_alone(checkpoints):
    state = make_state()
    save(checkpoints, state, 7)
    tree = ocp.StandardCheckpointer().restore(checkpoints.directory / "00000007" / "state")
    assert tree.keys() == {"step", "params", "optimizer", "bandit"}
    np.testing.assert_array_equal(
        tree["params"]["blocks"]["mixer"]["kernel"], state.params["blocks"]["mixer"]["kernel"]
    )
    np.testing.assert_array_equal(tree["bandit"]["layers"]["0"], state.sections["bandit"].layers[0])
    np.testing.assert_array_equal(tree["optimizer"]["0"]["mu"]["scale"], np.zeros(3))
    meta = json.loads((checkpoints.directory / "00000007" / "meta" / "metadata").read_text())
    assert meta["contents"]["format_version"] == 1
    assert meta["contents"]["arrays"]["state/params/blocks/mixer/kernel"][:2] == [[33, 65], "float32"]


def test_an_array_or_a_section_that_is_newer_than_the_run_is_filled_in(checkpoints):
    saved = make_state()
    save(checkpoints, saved, 7)
    newer = make_state(seed=3)
    section = {"old": newer.sections["bandit"], "added": jnp.full(2, 5.0)}
    wanted = newer.replace(sections={"bandit": newer.sections["bandit"], "evaluation": section})
    restored = restore(checkpoints, wanted)
    old = tuple(f"evaluation/old/{name}" for name in ("history", "layers/0", "layers/1"))
    assert restored.filled == ("evaluation/added", *old)
    np.testing.assert_array_equal(restored.state.sections["evaluation"]["added"], [5, 5])
    np.testing.assert_array_equal(restored.state.params["scale"], saved.params["scale"])
    assert restored.unused == ()
    fewer = restore(checkpoints, newer.replace(sections={}))
    assert fewer.unused == ("bandit/history", "bandit/layers/0", "bandit/layers/1")
    assert fewer.state.sections == {}


BFLOAT16 = jnp.ones(3, jnp.bfloat16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda params: params | {"scale": jnp.ones(4)}, r"for params/scale it has float32\[3\]; the conf"),
        (lambda params: params | {"scale": BFLOAT16}, r"needs bfloat16\[3\]. Nothing was changed"),
        (lambda params: params | {"head": jnp.ones(4)}, "for params/head it has nothing"),
        (lambda params: {"scale": params["scale"]}, "it has params/blocks/mixer/kernel "),
        (None, r"for bandit/history it has float32\[4\]"),
    ],
)
def test_another_structure_is_refused_and_nothing_is_touched(checkpoints, tmp_path, change, message):
    save(checkpoints, make_state(), 7)
    before = contents(tmp_path)
    state = make_state()
    if change:
        state = state.replace(params=change(state.params))
    else:
        state = state.with_section("bandit", state.sections["bandit"].replace(history=jnp.ones(9)))
    with pytest.raises(CheckpointError, match=message):
        restore(checkpoints, state)
    assert contents(tmp_path) == before


def of_array(error):
    """Return what orbax raises where tensorstore does for an array."""
    wrapped = Exception("Encountered error while reading array index")
    wrapped.__cause__ = error
    return wrapped


UNREADABLE = OSError(errno.EIO, "Input/output error")
NOT_READ = r"00000002: cannot be read: .*Nothing was changed"
MISPLACED = "its arrays are whole, but cannot be placed on the"


@pytest.mark.parametrize(
    ("error", "unreadable", "message"),
    [
        (MemoryError("cannot allocate"), None, NOT_READ),
        (UNREADABLE, None, NOT_READ),
        (OSError(errno.EACCES, "Permission denied"), None, NOT_READ),
        (ValueError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate"), None, NOT_READ),
        (RuntimeError("UNAVAILABLE: the store does not answer"), None, NOT_READ),
        (ValueError("Error opening driver: DEADLINE_EXCEEDED"), None, NOT_READ),
        (of_array(ValueError("RESOURCE_EXHAUSTED: Out of memory")), None, NOT_READ),
        (of_array(ValueError("Truncated Zstd-compressed stream")), None, MISPLACED),
        # Whatever the library makes of it: the bytes are looked at before they are called damaged.
        (ValueError("something that nobody has seen before"), UNREADABLE, "cannot be read: "),
        (ValueError("this sharding does not divide that array"), None, MISPLACED),
    ],
)
def test_a_failing_store_or_machine_is_never_called_damage(
    checkpoints, tmp_path, monkeypatch, *, error, unreadable, message
):
    for step in (1, 2):
        save(checkpoints, make_state(step=step), step)
    before = contents(tmp_path)

    def fail(*arguments):
        raise error

    monkeypatch.setattr(checkpoint_reading, "_read_on_devices", fail)
    if unreadable:
        monkeypatch.setattr(checkpoint_reading, "_unreadable_file", lambda folder: unreadable)
    with pytest.raises(CheckpointError, match=message):
        restore(checkpoints)
    assert contents(tmp_path) == before


def test_some_whole_arrays_that_devices_refuse_are_not_called_damaged(checkpoints, monkeypatch):
    save(checkpoints, make_state(), 7)
    folder = checkpoints.directory / "00000007"
    params = named_leaves({"params": abstract(make_state().params)})

    def fail(*arguments):
        raise ValueError("this sharding does not divide that array")

    monkeypatch.setattr(checkpoint_reading, "_read_on_devices", fail)
    with pytest.raises(CheckpointError, match=MISPLACED):
        checkpoint_reading.read_parameters(folder, params, exactly=True)


def test_the_name_of_a_folder_does_not_make_damage_a_failing_store(tmp_path, monkeypatch):
    checkpoints = Checkpoints(Workdir(tmp_path / "aborted and cancelled"), CheckpointConfig(keep=2))
    for step in (1, 2):
        save(checkpoints, make_state(step=step), step)
    for name in ("_read_on_devices", "_read_on_host"):
        read = getattr(checkpoint_reading, name)

        def fail(item, wanted, read=read):
            if "00000002" in str(item):
                raise ValueError(f"Error reading {item}/d: invalid bytes")
            return read(item, wanted)

        monkeypatch.setattr(checkpoint_reading, name, fail)
    assert int(restore(checkpoints).state.step) == 1
    checkpoints.close()


def test_the_rest_of_a_killed_save_is_removed(tmp_path):
    rest = tmp_path / "checkpoints" / "00000003.orbax-checkpoint-tmp"
    (rest / "state").mkdir(parents=True)
    (rest / "state" / "d").write_bytes(b"half")
    opened = Checkpoints(Workdir(tmp_path), CheckpointConfig(keep=2))
    save(opened, make_state(step=4), 4)
    opened.close()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["00000004"]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.bool_, jnp.uint8])
def test_host_and_devices_agree_on_a_checksum(dtype):
    values = jax.random.normal(jax.random.key(0), (7, 13)).astype(dtype)
    named = {"a": values, "b": values[:, :1], "c": values[0, 0]}
    on_host = {name: np.asarray(array) for name, array in named.items()}
    assert named_checksums(named) == named_checksums_of_host(on_host)


def test_every_changed_bit_of_the_description_is_detected(checkpoints):
    for step in (1, 2):
        save(checkpoints, make_state(step=step), step)
    path = checkpoints.directory / "00000002" / "meta" / "metadata"
    path.write_text(
        path.read_text().replace('[[3], "float32"', '[[4], "float32"', 1).replace("33", "34", 1)
    )
    assert int(restore(checkpoints).state.step) == 1


def test_an_older_format_is_refused_and_left_alone(checkpoints, tmp_path):
    save(checkpoints, make_state(), 7)
    path = checkpoints.directory / "00000007" / "meta" / "metadata"
    path.write_text(json.dumps({"step": 7, "fingerprints": [1, 2]}))
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=r"00000007: its format is older than version 1.*Nothing was"):
        restore(checkpoints)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.bool_, jnp.uint8])
def test_a_checksum_sees_any_bit_and_any_exchange(dtype):
    values = jnp.arange(40).reshape(8, 5).astype(dtype)
    before = checksums({"a": values})
    changed = values.at[3, 2].set(jnp.logical_not(values[3, 2]).astype(dtype))
    assert int(before[0]) != int(checksums({"a": changed})[0])
    assert int(before[0]) == int(checksums({"a": values.copy()})[0])
    if dtype != jnp.bool_:
        assert int(before[0]) != int(checksums({"a": values[::-1]})[0])


@pytest.mark.parametrize(
    ("saved", "given", "restores"),
    [("ab", "ab", True), ("ab", "cd", False), (None, "cd", True), ("ab", None, True), (None, None, True)],
)
def test_a_checkpoint_of_other_data_is_refused_and_left_alone(checkpoints, saved, given, restores):
    state = make_state()
    checkpoints.save(state, POSITION, 7, saved)
    checkpoints.wait()
    empty = jax.tree.map(np.zeros_like, POSITION)
    if restores:
        assert int(checkpoints.restore(abstract(state), empty, dict, given).state.step) == 7
    else:
        message = "was trained on other data: it has the identity ab; the given data"
        with pytest.raises(CheckpointError, match=message):
            checkpoints.restore(abstract(state), empty, dict, given)
    assert (checkpoints.directory / "00000007").exists()


def test_a_failure_names_the_step_that_failed(checkpoints, monkeypatch):
    state = make_state()
    save(checkpoints, state, 4)
    checkpoints.save(state, POSITION, 8)

    def full():
        raise OSError(errno.ENOSPC, "No space left on device")

    checkpoints.wait()
    monkeypatch.setattr(checkpoints._manager, "wait_until_finished", full)
    message = r"the checkpoint of step 8 could not .* Last good checkpoint: step 8"
    with pytest.raises(CheckpointError, match=message):
        checkpoints.save(state, POSITION, 12)


def test_a_failing_store_is_reported_even_if_it_cannot_be_listed(checkpoints, monkeypatch):
    """Stores' libraries raise exceptions of their own, and the last good step is not known either."""
    error = type("HttpError", (Exception,), {"__module__": "gcsfs.retry"})("Service Unavailable, 503")

    def fail(*_, **__):
        raise error

    def unlisted(_):
        raise OSError(errno.EIO, "cannot be listed")

    monkeypatch.setattr(checkpoints._manager, "save", fail)
    monkeypatch.setattr(Workdir, "saved_steps", unlisted)
    with pytest.raises(CheckpointError, match=r"step 4 .* \(Service Unavailable, 503\).* unknown, because"):
        checkpoints.save(make_state(), POSITION, 4)
    monkeypatch.setattr(checkpoints._manager, "save", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        checkpoints.save(make_state(), POSITION, 4)


def test_a_missing_object_is_a_failure_of_the_store(checkpoints, monkeypatch):
    """A bucket has no folders: orbax misses an object, and says that its path is no folder."""

    def fail(*_, **__):
        raise NotADirectoryError("Path is not a directory: gs://bucket/run/checkpoints/00000004")

    monkeypatch.setattr(checkpoints._manager, "save", fail)
    monkeypatch.setattr(checkpoint, "is_remote", lambda path: True)
    with pytest.raises(CheckpointError, match=r"could not be written \(the store did not answer: Path is"):
        checkpoints.save(make_state(), POSITION, 4)


def test_checkpoints_of_a_period_stay(tmp_path):
    opened = Checkpoints(Workdir(tmp_path), CheckpointConfig(keep=2, keep_every_steps=4))
    for step in range(2, 15, 2):
        save(opened, make_state(step=step), step)
    opened.close()
    assert Workdir(tmp_path).saved_steps() == [4, 8, 12, 14]


def test_an_array_that_grows_keeps_its_rows(checkpoints):
    state = make_state()
    save(checkpoints, state, 7)
    section = state.sections["bandit"]
    for rows in (6, 2):
        wanted = state.with_section("bandit", section.replace(history=jnp.full(rows, 9.0)))
        empty = jax.tree.map(np.zeros_like, POSITION)
        create = lambda wanted=wanted: wanted.sections  # noqa: E731
        with pytest.raises(CheckpointError, match="another architecture: for bandit/history"):
            checkpoints.restore(abstract(wanted), empty, create)
        found = checkpoints.restore(abstract(wanted), empty, create, growing={"bandit/history"})
        kept = [0, 1, 2, 3, 9, 9][:rows]
        np.testing.assert_array_equal(found.state.sections["bandit"].history, kept)


@pytest.mark.parametrize("arrays", [{"a": 1.5}, {"a": [1.5, "float32", 0]}, [], None])
def test_a_description_of_other_things_than_arrays_is_damaged(arrays):
    contents = {"format_version": FORMAT_VERSION, "arrays": arrays}
    crc32 = zlib.crc32(json.dumps(contents, sort_keys=True).encode())
    with pytest.raises(DamagedError, match="its description is not of arrays"):
        read_description({"contents": contents, "crc32": crc32})
