"""One checkpoint holds all of a run; a damaged one is noticed, set aside, and the one before it is used."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from jax.experimental import multihost_utils
from jaxtyping import Array, Bool, UInt32

from birdie_jax.batching.pipeline import StreamStates
from birdie_jax.config import CheckpointConfig
from birdie_jax.training.step import TrainState

# Everything that reading a damaged file can raise: orbax and tensorstore report by ValueError and its kin.
UNREADABLE = (ValueError, OSError, KeyError, TypeError, RuntimeError)


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the message names the folder and what to do."""


class NotFinite(ArithmeticError):  # noqa: N818 - a verdict on a state
    """The state holds NaN or infinity, and is not worth a checkpoint."""


class Restored(NamedTuple):
    """What a checkpoint gives back: the device's part, the host's, and the fingerprints saved of both."""

    state: TrainState
    positions: StreamStates
    fingerprints: list[int]


class Checkpoints:
    """The folder `<workdir>/checkpoints`: asynchronous saving through orbax, verified restoring.

    Each checkpoint carries a fingerprint of every array, computed on the device when it is saved. So a file
    whose bits have changed is noticed even where the storage format does not notice it.
    """

    def __init__(self, workdir: Path, config: CheckpointConfig):
        """Open the folder, making it if need be."""
        self.directory = workdir.resolve() / "checkpoints"
        self._damaged = workdir.resolve() / "damaged_checkpoints"
        options = ocp.CheckpointManagerOptions(max_to_keep=config.keep, step_format_fixed_length=8)
        try:
            self._manager = ocp.CheckpointManager(
                self.directory, options=options, item_names=("state", "pipeline", "meta")
            )
        except OSError as error:
            raise CheckpointError(f"{self.directory}: cannot be opened: {error}") from error
        self._pending: int | None = None
        self.last_good: int | None = None

    def save(self, state: TrainState, positions: StreamStates, step: int) -> None:
        """Copy everything off the device, and write it while training goes on.

        Raises:
            CheckpointError: an earlier checkpoint, or this one, could not be written.
            NotFinite: a parameter or the optimizer's state holds NaN or infinity; nothing was saved.
        """
        self.check()
        if not all_finite(state):
            raise NotFinite
        prints = _fingerprints_of(state, positions)
        try:
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(_plain(state)),
                    pipeline=ocp.args.StandardSave({"positions": positions}),
                    meta=ocp.args.JsonSave({"step": step, "fingerprints": prints}),
                ),
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise self._write_failure(step, error) from error
        self._pending = step

    def check(self) -> None:
        """Raise CheckpointError if a checkpoint that was being written has failed."""
        try:
            self._manager.check_for_errors()
        except (OSError, ValueError, RuntimeError) as error:
            raise self._write_failure(self._pending, error) from error

    def wait(self) -> None:
        """Wait until what was saved is on disk; raises CheckpointError if it could not be written."""
        try:
            self._manager.wait_until_finished()
        except (OSError, ValueError, RuntimeError) as error:
            raise self._write_failure(self._pending, error) from error
        self.last_good = self._manager.latest_step()

    def close(self) -> None:
        """Release what orbax holds."""
        self._manager.close()

    def restore(self, abstract_state: TrainState, positions: StreamStates) -> Restored | None:
        """Return the newest checkpoint that is whole, or None if there is none at all.

        Args:
            abstract_state: shapes, types and shardings to restore onto.
            positions: an array of the shape and type of the saved positions.

        Raises:
            CheckpointError: there are checkpoints, and every one is damaged.
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
        for step in steps:
            try:
                restored, damage = self._read_step(step, abstract_state, positions), ""
            except UNREADABLE as error:
                restored = None
                damage = (str(error).strip() or type(error).__name__).splitlines()[0][:500]
            if not _every_process(restored is not None):
                damage = damage or "another process cannot read it"
            elif _fingerprints_of(restored.state, restored.positions) == restored.fingerprints:
                self.last_good = step
                return restored
            else:
                damage = "its arrays differ from those that were saved: a file has changed"
            self._set_aside(step)
            logging.error(
                "%s: the checkpoint of step %d is damaged (%s); moved to %s, trying the one before it",
                self.directory,
                step,
                damage,
                self._damaged,
            )
        if steps:
            raise CheckpointError(
                f"{self.directory}: every checkpoint is damaged (steps {steps}); they were moved to "
                f"{self._damaged}. Starting again with this workdir would begin at step 0"
            )
        return None

    def _read_step(self, step: int, abstract_state: TrainState, positions: StreamStates) -> Restored:
        # By the handlers, which read without waiting for other processes: a file that one of them cannot
        # read must not leave the others waiting.
        folder = self._folder(step)
        handler = ocp.StandardCheckpointHandler()
        wanted = {"state": _plain(abstract_state), "pipeline": {"positions": positions}}
        loaded: Any = {
            item: handler.restore(folder / item, args=ocp.args.StandardRestore(tree))
            for item, tree in wanted.items()
        }
        leaves, structure = jax.tree.flatten(abstract_state)
        state = jax.tree.unflatten(structure, [loaded["state"][leaf_name(i)] for i in range(len(leaves))])
        meta: Any = ocp.JsonCheckpointHandler().restore(folder / "meta", args=ocp.args.JsonRestore())
        return Restored(state, np.asarray(loaded["pipeline"]["positions"]), meta["fingerprints"])

    def _folder(self, step: int) -> Path:
        return next(p for p in self.directory.iterdir() if p.name.isdigit() and int(p.name) == step)

    def _set_aside(self, step: int) -> None:
        if jax.process_index() == 0:
            source = self._folder(step)
            self._damaged.mkdir(exist_ok=True)
            target = self._damaged / source.name
            number = 1
            while target.exists():
                target = self._damaged / f"{source.name}.{number}"
                number += 1
            shutil.move(source, target)
        multihost_utils.sync_global_devices(f"checkpoint {step} is set aside")
        self._manager.reload()

    def _write_failure(self, step: int | None, error: Exception) -> CheckpointError:
        free = shutil.disk_usage(self.directory).free
        good = "none" if self.last_good is None else f"step {self.last_good}"
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0][:500]
        return CheckpointError(
            f"{self.directory}: the checkpoint of step {step} could not be written ({first_line}); "
            f"{free / 2**20:.0f} MiB are free there. Last good checkpoint: {good}; make room and run the "
            "same command to go on from it"
        )


def leaf_name(number: int) -> str:
    """Return the name, in a checkpoint, of the leaf of that number of the flattened state."""
    return f"leaf_{number:05d}"


def _plain(state: TrainState) -> dict[str, Any]:
    """Flatten to named leaves, so that the saved tree does not depend on classes of any library."""
    return {leaf_name(number): leaf for number, leaf in enumerate(jax.tree.leaves(state))}


@jax.jit
def fingerprints(tree: Any) -> UInt32[Array, " leaves"]:
    """Return a checksum of the bits of each array: a position-weighted sum modulo 2^32.

    Integer sums do not depend on their order, so the checksum is the same on any mesh.
    """

    def one(leaf):
        leaf = jnp.asarray(leaf)
        if leaf.dtype == jnp.bool_:
            leaf = leaf.astype(jnp.uint8)
        width = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize]
        bits = jax.lax.bitcast_convert_type(leaf, width).astype(jnp.uint32)
        # The index in the flattened array, which is not made: no device may have room for all of a leaf.
        index = jnp.zeros(bits.shape, jnp.uint32)
        for axis, size in enumerate(bits.shape):
            index = index * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
        weights = index * jnp.uint32(2654435761) | jnp.uint32(1)
        return jnp.sum(bits * weights, dtype=jnp.uint32)

    return jnp.stack([one(leaf) for leaf in jax.tree.leaves(tree)])


@jax.jit
def all_finite(state: TrainState) -> Bool[Array, ""]:
    """Tell whether parameters and optimizer are free of NaN and infinity."""
    leaves = jax.tree.leaves((state.params, state.optimizer))
    return jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]).all()


def _fingerprints_of(state: TrainState, positions: StreamStates) -> list[int]:
    return [*(int(p) for p in np.asarray(fingerprints(state))), _host_fingerprint(positions)]


def _every_process(holds: bool) -> bool:
    """Return whether something holds on every process; they wait for one another here."""
    return bool(np.all(multihost_utils.process_allgather(np.array(holds))))


def _host_fingerprint(positions: StreamStates) -> int:
    bits = np.ascontiguousarray(positions).view(np.uint32).reshape(-1).astype(np.uint64)
    return int((bits * (np.arange(bits.size, dtype=np.uint64) * 2 + 1)).sum() % (1 << 32))
