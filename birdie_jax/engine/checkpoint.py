"""Save and restore checkpoints of a whole run; if the newest is damaged, restore the one before it."""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from jax.experimental import multihost_utils
from jaxtyping import Array, Bool, PyTree

from birdie_jax.config_sections import CheckpointConfig
from birdie_jax.engine.checkpoint_format import (
    BATCHES,
    META,
    STATE,
    check_savable,
    describe,
    host_checksums,
    named_checksums,
    named_leaves,
    nested,
    state_of_tree,
    state_tree,
    step_folder,
)
from birdie_jax.engine.checkpoint_reading import ReadCheckpoint, first_line, read_checkpoint
from birdie_jax.engine.private_api import (
    end_despite_failed_saves,
    limit_request_retries,
    wait_by_monotonic_clock,
)
from birdie_jax.engine.state import TrainState
from birdie_jax.errors import CheckpointError, DamagedError, NotFinite, OtherCheckpointError
from birdie_jax.storage import absolute, exists, is_full, is_of_store, is_remote, list_names, move_folder
from birdie_jax.storage.workdir import WHOLE_MARK, Workdir

_FULL = "No space left on device"
_MISSING = (NotADirectoryError, FileNotFoundError)
_WRITING_ERRORS = (OSError, ValueError, RuntimeError)


class Restored(NamedTuple):
    """The contents of a restored checkpoint.

    Attributes:
        state: the train state.
        position: the position of the batches.
        filled: names of arrays of hooks' sections that the checkpoint lacks, filled from a new state.
        unused: names of arrays of hooks' sections that only the checkpoint has.
        window: the steps since the last line of metrics, or None if they are unknown.
    """

    state: TrainState
    position: PyTree[np.ndarray]
    filled: tuple[str, ...]
    unused: tuple[str, ...]
    window: dict[str, Any] | None


class Checkpoints:
    """Saves checkpoints to `<workdir>/checkpoints` asynchronously with orbax, and verifies restored ones.

    Each checkpoint has a checksum of every array, computed on the devices when it is saved. The checksums
    detect changed bits even if the storage format does not.

    Attributes:
        directory: the folder of the checkpoints.
        last_good: the step of the newest checkpoint that is known to be whole, or None.
    """

    def __init__(self, workdir: Workdir, config: CheckpointConfig):
        """Open the folder; create it if it is missing."""
        self._workdir = workdir
        self.directory = absolute(workdir.checkpoints)
        self._damaged = absolute(workdir.damaged_checkpoints)
        limit_request_retries()
        wait_by_monotonic_clock()
        end_despite_failed_saves()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=config.keep,
            keep_period=config.keep_every_steps or None,
            step_format_fixed_length=8,
            # A killed process leaves the part of a checkpoint that it has written.
            cleanup_tmp_directories=True,
            # If a thread fails to create a folder, other threads and the process wait for it for five
            # minutes. A bucket has no folders; there, the thread saves the loop some requests.
            async_options=ocp.options.AsyncOptions(
                create_directories_asynchronously=is_remote(self.directory)
            ),
        )
        try:
            self._manager = ocp.CheckpointManager(
                self.directory, options=options, item_names=(STATE, BATCHES, META)
            )
        except Exception as error:
            if not is_of_store(error):
                raise
            raise CheckpointError(f"{self.directory}: cannot be opened: {first_line(error)}") from error
        self._pending: int | None = None
        self._is_written = True
        self.last_good: int | None = None

    def save(
        self,
        state: TrainState,
        position: PyTree[np.ndarray],
        step: int,
        data: str | None = None,
        window: Mapping[str, Any] | None = None,
    ) -> None:
        """Copy the state off the devices, and write it while training continues.

        Args:
            state: the train state.
            position: the position of the batches.
            step: the number of train steps done.
            data: the identity of the batches' data; None if they have none.
            window: the sums of the steps since the last line of metrics, as JSON.

        Raises:
            CheckpointError: an earlier checkpoint, or this one, could not be written.
            NotFinite: a parameter or the optimizer's state contains NaN or infinity; nothing was saved.
        """
        # orbax would wait too, but report a failure of the earlier checkpoint for this step.
        self.wait()
        if not all_finite(state):
            raise NotFinite
        arrays, numbers = named_leaves(state_tree(state)), named_leaves(position)
        described = {f"{STATE}/{name}": leaf for name, leaf in arrays.items()}
        described |= {f"{BATCHES}/{name}": leaf for name, leaf in numbers.items()}
        sums = {f"{STATE}/{name}": value for name, value in named_checksums(arrays).items()}
        sums |= {f"{BATCHES}/{name}": value for name, value in host_checksums(numbers).items()}
        with self._naming_failures(step):
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    **{
                        STATE: ocp.args.StandardSave(nested(arrays)),
                        BATCHES: ocp.args.StandardSave(nested(numbers)),
                        META: ocp.args.JsonSave(describe(step, described, sums, data, window)),
                    }
                ),
            )
        self._pending = step
        self._is_written = False

    def check(self) -> None:
        """Raise CheckpointError if a checkpoint in progress has failed; do not wait for it."""
        # orbax's own check waits for pending metadata, which takes several requests in a bucket.
        if self._is_written or self._manager.is_saving_in_progress():
            return
        self.wait()

    def wait(self) -> None:
        """Wait until the saved checkpoint is on disk; raise CheckpointError if it could not be written."""
        with self._naming_failures(self._pending):
            self._manager.wait_until_finished()
        self._is_written = True
        self.last_good = self._manager.latest_step()

    def close(self) -> None:
        """Wait for a checkpoint in progress, and release orbax's resources.

        Raises:
            CheckpointError: a checkpoint in progress has failed.
        """
        with self._naming_failures(self._pending):
            self._manager.close()

    def restore(
        self,
        abstract_state: TrainState,
        position: PyTree[np.ndarray],
        create_sections: Callable[[], Mapping[str, PyTree]],
        data: str | None = None,
        growing: Set[str] = frozenset(),
    ) -> Restored | None:
        """Return the newest whole checkpoint, or None if there are none.

        Missing arrays of hooks' sections come from a new state; unknown ones are ignored. The result names
        both.

        Args:
            abstract_state: shapes, types and shardings to restore onto.
            position: a position with the shapes and types of the saved one.
            create_sections: () -> the hooks' sections before the first step; called only if the checkpoint
                lacks one of their arrays or has it with another number of rows.
            data: the identity of the batches' data; None if they have none.
            growing: the names of arrays of sections whose number of rows may differ from the saved one
                (`GrowingHook`).

        Raises:
            ConfigError: the state has an array that no checkpoint can hold.
            CheckpointError: every checkpoint is damaged, now or at an earlier start; or the newest
                undamaged one has another structure, was trained on other data or cannot be read. That
                checkpoint stays in its place.
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
        wanted = named_leaves(state_tree(abstract_state))
        check_savable(wanted)
        for step in steps:
            try:
                read = read_checkpoint(self._folder(step), wanted, named_leaves(position), data, growing)
            except DamagedError as damage:
                self._set_aside(step)
                logging.error(
                    "%s: the checkpoint of step %d is damaged (%s); moved to %s, trying the one before it",
                    self.directory,
                    step,
                    damage,
                    self._damaged,
                )
            else:
                self.last_good = step
                return put_together(read, abstract_state, position, create_sections)
        # This also holds for damage at an earlier start: a launcher's restart must not begin at step 0.
        if set_aside := list_names(self._damaged):
            raise OtherCheckpointError(
                f"{self.directory}: every checkpoint is damaged; {self._damaged} has "
                f"{', '.join(set_aside)}. Remove that folder to begin at step 0, or give another --workdir"
            )
        return None

    def _folder(self, step: int) -> epath.Path:
        return self.directory / step_folder(step)

    def _set_aside(self, step: int) -> None:
        if jax.process_index() == 0:
            source = self._folder(step)
            target = self._damaged / source.name
            number = 1
            while exists(target):
                target = self._damaged / f"{source.name}.{number}"
                number += 1
            move_folder(source, target, mark=WHOLE_MARK)
        multihost_utils.sync_global_devices(f"checkpoint {step} is set aside")
        self._manager.reload()

    @contextlib.contextmanager
    def _naming_failures(self, step: int | None) -> Iterator[None]:
        """Convert the errors of orbax and of stores from a failed write to CheckpointError."""
        try:
            yield
        except Exception as error:
            # The clients of object stores raise their own exceptions.
            if not (isinstance(error, _WRITING_ERRORS) or is_of_store(error)):
                raise
            raise self._write_failure(step, error) from error

    def _write_failure(self, step: int | None, error: Exception) -> CheckpointError:
        remote = is_remote(self.directory)
        room = "" if remote else f"{_free_mebibytes(self.directory):.0f} MiB are free there. "
        advice = "make room and " if is_full(error) and not remote else ""
        good, cause = self._workdir.last_good(), _FULL if _FULL in str(error) else first_line(error)
        if is_remote(self.directory):
            # A bucket has no folders, so a missing file means that its object has not arrived.
            cause = f"the store did not answer: {cause}" if isinstance(error, _MISSING) else cause
        return CheckpointError(
            f"{self.directory}: the checkpoint of step {step} could not be written ({cause}); {room}"
            f"Last good checkpoint: {good}; {advice}run the same command, which resumes from it"
        )


def put_together(
    read: ReadCheckpoint,
    abstract_state: TrainState,
    position: PyTree[np.ndarray],
    create_sections: Callable[[], Mapping[str, PyTree]],
) -> Restored:
    """Return the state and position of a read checkpoint; missing section arrays come from a new state."""
    arrays, tree = read.state, state_tree(abstract_state)
    wanted = named_leaves(tree)
    resized = [name for name, array in arrays.items() if array.shape != wanted[name].shape]
    if read.missing or resized:
        created = named_leaves(create_sections())
        arrays = arrays | {name: created[name] for name in read.missing}
        arrays |= {name: _with_rows_of(created[name], arrays[name]) for name in resized}
    leaves = [arrays[name] for name in wanted]
    state = state_of_tree(jax.tree.unflatten(jax.tree.structure(tree), leaves))
    numbers = [read.batches[name] for name in named_leaves(position)]
    restored_position = jax.tree.unflatten(jax.tree.structure(position), numbers)
    return Restored(state, restored_position, read.missing, read.unused, read.window)


def _with_rows_of(created: jax.Array, saved: jax.Array) -> jax.Array:
    """Return `created` with its first rows replaced by those of `saved`, as many as both have."""
    rows = min(len(created), len(saved))
    return jax.device_put(created.at[:rows].set(saved[:rows]), created.sharding)


def _free_mebibytes(directory: epath.Path) -> float:
    return shutil.disk_usage(directory).free / 2**20


@jax.jit
def all_finite(state: TrainState) -> Bool[Array, ""]:
    """Return whether the parameters and the optimizer's state have no NaN and no infinity."""
    leaves = jax.tree.leaves((state.params, state.optimizer))
    return jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]).all()
