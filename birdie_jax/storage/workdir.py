"""The folder of a run: the names of its files, and the checks before a run writes them."""

import contextlib
import json
import os
from collections.abc import Callable, Container, Mapping
from typing import Any

from absl import logging
from etils import epath

from birdie_jax.errors import ConfigError, shown
from birdie_jax.imports import changed_extensions
from birdie_jax.storage import (
    exists,
    is_remote,
    list_names,
    make_folders,
    make_path,
    read_bytes,
    remove,
    write_json,
    write_whole,
)
from birdie_jax.storage.json_text import parse_json

# orbax marks a complete checkpoint in a bucket with this file, because the folder has its final name from
# the start.
WHOLE_MARK = "commit_success.txt"
# The sections of a configuration in every version.
_SECTIONS = ("batching", "data", "model", "optimizer", "train")
# The fields that may differ when a run resumes. They do not change the batches or the arithmetic (a mesh
# changes only rounding), or they choose steps to skip from there.
FREE_FIELDS = frozenset(
    {
        "batching.prefetch",
        "batching.workers",
        "checkpoint.every_steps",
        "checkpoint.keep",
        "checkpoint.keep_every_steps",
        "data.cache_dir",
        "data.mirror_gib",
        "data.prepared",
        "eval.stop_when",
        "eval.tasks",
        "eval.tasks_every_steps",
        "imports",
        "mesh.data",
        "mesh.fsdp",
        "mesh.sequence",
        "mesh.tensor",
        "train.average_decay",
        "train.average_every_steps",
        "train.bad_steps",
        "train.hooks",
        "train.gate_statistics_every_steps",
        "train.hung_seconds",
        "train.layer_norms_every_steps",
        "train.log_every_steps",
        "train.lost_seconds",
        "train.outlier_deviations",
        "train.profile",
        "train.skip_batches",
        "train.trackers",
    }
)


class Workdir:
    """The names of all files of a run; each file is written atomically.

    Attributes:
        root: the folder of the run.
    """

    def __init__(self, root: epath.PathLike):
        """Name the files below `root`, a folder or `gs://bucket/...`, which need not exist.

        Raises:
            ConfigError: `root` is a URL that cannot be used.
        """
        self.root = make_path(root)

    def __str__(self) -> str:
        return str(self.root)

    @property
    def config(self) -> epath.Path:
        """The configuration of the run, JSON."""
        return self.root / "config.json"

    @property
    def tokenizer(self) -> epath.Path:
        """The tokenizer of the run, a SentencePiece model."""
        return self.root / "tokenizer.model"

    @property
    def text(self) -> epath.Path:
        """The identity of the text that the run is trained on, JSON."""
        return self.root / "text.json"

    @property
    def arms(self) -> epath.Path:
        """The objective arms of the run with an example of each arm, JSON; only for a run with arms."""
        return self.root / "arms.json"

    @property
    def corpora(self) -> epath.Path:
        """The shares of each corpus in the run, JSON; only for a run with several."""
        return self.root / "corpora.json"

    @property
    def samples(self) -> epath.Path:
        """The run's predictions on held-out examples at its end, JSON."""
        return self.root / "samples.json"

    @property
    def run_id(self) -> epath.Path:
        """The identity of the run for trackers; only for a run with trackers."""
        return self.root / "run_id"

    @property
    def metrics(self) -> epath.Path:
        """The logged metrics, one JSON object per line."""
        return self.root / "metrics.jsonl"

    @property
    def metrics_parts(self) -> epath.Path:
        """The folder of the metrics in a bucket, whose objects cannot be appended to."""
        return self.root / "metrics"

    @property
    def summary(self) -> epath.Path:
        """The summary at the end of the run, JSON."""
        return self.root / "summary.json"

    @property
    def starts(self) -> epath.Path:
        """The program and machine of each start of the run, JSON; see `start_record.py`."""
        return self.root / "starts.json"

    @property
    def scan(self) -> epath.Path:
        """The implementation of the scan, if a device has several, with their measurements, JSON."""
        return self.root / "scan.json"

    @property
    def remat(self) -> epath.Path:
        """The values that blocks keep for the gradient, if `model.remat` is automatic, JSON."""
        return self.root / "remat.json"

    @property
    def report(self) -> epath.Path:
        """The report of the run, HTML."""
        return self.root / "report.html"

    @property
    def checkpoints(self) -> epath.Path:
        """The folder of the checkpoints, one folder for each step."""
        return self.root / "checkpoints"

    @property
    def damaged_checkpoints(self) -> epath.Path:
        """The folder of damaged checkpoints."""
        return self.root / "damaged_checkpoints"

    @property
    def evaluations(self) -> epath.Path:
        """The folder of the results of `evaluate`, one folder for each step."""
        return self.root / "evaluations"

    def evaluation(self, step: int, name: str) -> epath.Path:
        """Return the file of the scores of an evaluation, JSON."""
        return self.evaluations / f"{step:08d}" / f"{name}.json"

    def evaluation_answers(self, step: int, name: str) -> epath.Path:
        """Return the file of the questions and answers of an evaluation, one JSON object per line."""
        return self.evaluations / f"{step:08d}" / f"{name}.jsonl"

    @property
    def tensorboard(self) -> epath.Path:
        """The folder of TensorBoard's event files."""
        return self.root / "tensorboard"

    @property
    def stacks(self) -> epath.Path:
        """The folder of the stacks of processes from when one was lost or hung."""
        return self.root / "stacks"

    def stacks_of(self, process: int) -> epath.Path:
        """Return the file of the stacks of a process."""
        return self.stacks / f"process_{process}.txt"

    @property
    def lease(self) -> epath.Path:
        """The current trainer of the run, JSON; see `lease.py`."""
        return self.root / "lease.json"

    def sharing_probe(self, token: str) -> epath.Path:
        """Return the file that processes use to check that they share the folder."""
        return self.root / f".sharing-probe-{token}"

    def _folders(self) -> tuple[epath.Path, ...]:
        return (
            *(self.checkpoints, self.damaged_checkpoints, self.tensorboard, self.stacks),
            *(self.metrics_parts, self.evaluations),
        )

    def _files(self) -> tuple[epath.Path, ...]:
        return (
            *(self.config, self.tokenizer, self.text, self.arms, self.corpora),
            *(self.samples, self.metrics, self.summary, self.starts, self.scan, self.remat, self.report),
            self.run_id,
            self.lease,
        )

    def names(self) -> frozenset[str]:
        """Return the names of a run's files and folders, below its folder."""
        return frozenset(path.name for path in (*self._folders(), *self._files()))

    def make(self) -> None:
        """Create the folder, and check the kinds of existing files and folders in it.

        Raises:
            ConfigError: the folder cannot be created, or contains a file instead of a folder or the
                reverse.
        """
        try:
            if is_remote(self.root):
                # A bucket has no folders. Only check that it can be read.
                list_names(self.root)
                return
            make_folders(self.root)
            for folder in self._folders():
                if os.path.lexists(folder) and not folder.is_dir():
                    raise ConfigError(f"{folder}: is no folder; allowed: a folder, or nothing")
            for file in self._files():
                # Reading a pipe would wait for a writer.
                if os.path.lexists(file) and not os.path.isfile(file):
                    raise ConfigError(f"{file}: is no file; allowed: a file, or nothing")
        except OSError as error:
            raise ConfigError(f"{self.root}: cannot be used: {error}") from error

    def make_folder(self, folder: epath.Path) -> None:
        """Create one of the folders above, if the store has folders.

        Raises:
            OSError: the folder cannot be created.
        """
        if not is_remote(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def saved_steps(self) -> list[int]:
        """Return the steps of the whole checkpoints, in order.

        Raises:
            OSError: the folder cannot be listed.
        """
        if not is_remote(self.root) and not self.checkpoints.is_dir():
            return []
        names = [name for name in list_names(self.checkpoints) if name.isdigit()]
        if is_remote(self.root):
            names = [name for name in names if exists(self.checkpoints / name / WHOLE_MARK)]
        return sorted(map(int, names))

    def last_good(self) -> str:
        """Describe the newest whole checkpoint for messages, even if the store fails."""
        try:
            steps = self.saved_steps()
        except OSError:
            return f"unknown, because {self.root} cannot be listed"
        return f"step {steps[-1]}" if steps else "none"

    def claim(
        self,
        config: Mapping[str, Any],
        defaults: Mapping[str, Any],
        *,
        begun: bool = True,
        movable: Callable[[Mapping[str, Any], Mapping[str, Any]], Container[str]] = lambda *_: (),
        check: Callable[[Mapping[str, Any], Mapping[str, Any]], None] = lambda *_: None,
    ) -> None:
        """Check that the folder belongs to a run of `config`, and write `config` into it.

        A field that the run's own configuration lacks was added later, and gets its default. An unknown
        field is ignored. A run that has not begun is replaced. Each of these cases logs a warning.

        Args:
            config: the configuration as nested dictionaries, as in JSON.
            defaults: the default configuration, in the same form.
            begun: whether the run in the folder, if there is one, has trained a step; see `has_begun`. If
                not, its files are removed (`remove_claim`); the caller must hold the lease.
            movable: (the run's configuration, `config`), both flat -> the fields that may differ in
                addition to `FREE_FIELDS`.
            check: has the arguments of `movable`; raises `ConfigError` if a run that has begun cannot
                resume with the value of a field that may differ.

        Raises:
            ConfigError: the folder contains a run of another configuration (the message names every field
                that differs), or `check` refuses a field; its config.json cannot be read, is not a
                configuration, or is missing although there are checkpoints; or the folder cannot be
                created.
        """
        self.make()
        default = flat(json.loads(json.dumps(defaults)))
        # A dictionary with the user's names as keys, such as objectives.arms, is one field.
        free_form = {name for name, value in default.items() if value == {}}
        wanted = flat(json.loads(json.dumps(config)), free_form)
        found = self._read_config()
        if found is not None:
            check_configuration(found, self.config)
            before = flat(found, free_form)
            added = [name for name in wanted if name not in before and name in default]
            removed = [name for name in before if name not in wanted]
            before = {name: value for name, value in before.items() if name in wanted}
            before |= {name: default[name] for name in added}
            differing = {
                name: f"config.{name}: the run has {shown(one)}, the command has {shown(other)}"
                for name, one, other in differences(before, wanted)
                if name not in FREE_FIELDS
            }
            allowed = movable(before, wanted) if begun and differing else ()
            changed = [text for name, text in differing.items() if name not in allowed]
            if changed and begun:
                raise ConfigError(
                    f"{self.root}: holds a run of another configuration; use another workdir, or its "
                    f"values: {'; '.join(changed)} (docs/operate.md says what may change)"
                )
            if begun:
                check(before, wanted)
            for text in differing.values() if allowed else ():
                logging.warning("%s: %s", self.root, text)
            if changed:
                logging.warning(
                    "%s: held a run of another configuration that ended before its first step; this run "
                    "takes its place: %s",
                    self.root,
                    "; ".join(changed),
                )
            for name in changed_extensions(before.get("imports") or ()):
                logging.warning("%s: the code of %s has changed since the last start", self.config, name)
            if not begun:
                # These files depend on that run's text, source or sizes, which the user may have corrected.
                self.remove_claim()
            for name in added:
                logging.warning(
                    "%s: config.%s is newer than the run; it has its default, %r",
                    self.config,
                    name,
                    default[name],
                )
            for name in removed:
                logging.warning("%s: unknown field config.%s; ignored", self.config, name)
        self.write(self.config, config)

    def remove_claim(self) -> None:
        """Remove the files of a run that has trained no step; the caller must hold the lease.

        Raises:
            OSError: a file cannot be removed.
        """
        for path in (
            *(self.config, self.tokenizer, self.text, self.arms, self.corpora),
            *(self.scan, self.remat),
        ):
            remove(path)

    def remove_if_empty(self) -> None:
        """Remove the folder if it is empty."""
        if not is_remote(self.root):
            with contextlib.suppress(OSError):
                os.rmdir(self.root)

    def keep_text(self, sha256: str, place: str) -> None:
        """Check that the run's text has not changed, and record its identity.

        Args:
            sha256: the identity of the prepared text.
            place: the location of the text, for messages.

        Raises:
            ConfigError: the run began with other text, or text.json cannot be read.
        """
        found = self._read_object(self.text)
        if found is not None and found.get("sha256") != sha256:
            raise ConfigError(
                f"{self.root}: holds a run on other text: text.json names {found.get('place')} (identity "
                f"{found.get('sha256')}); found {place} (identity {sha256}); give it that text with "
                "--config.data.prepared, or use another workdir and --config.init.from"
            )
        # Checkpoints contain the identity of their own text, which may differ from this one.
        if found is None and not self.saved_steps():
            self.write(self.text, {"sha256": sha256, "place": place})

    def write(self, path: epath.Path, value: Any) -> None:
        """Write `value` as JSON to one of the files above."""
        write_json(path, value)

    def write_text(self, path: epath.Path, text: str) -> None:
        """Write `text` to one of the files above."""
        write_whole(path, text.encode())

    def _read_config(self) -> dict[str, Any] | None:
        """Return config.json, or None if there is neither a config.json nor a checkpoint."""
        found = self._read_object(self.config)
        if found is None and (self.saved_steps() or exists(self.damaged_checkpoints)):
            raise ConfigError(
                f"{self.config}: missing, but there are checkpoints, perhaps of another configuration; "
                "put the run's config.json back, or use another workdir"
            )
        return found

    def _read_object(self, path: epath.Path) -> dict[str, Any] | None:
        """Return the JSON object in a file, or None if there is no file."""
        try:
            found = parse_json(read_bytes(path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be used: {error}") from error
        if not isinstance(found, dict):
            raise ConfigError(f"{path}: cannot be used: found {type(found).__name__}; allowed: an object")
        return found


def is_configuration(found: Mapping[str, Any]) -> bool:
    """Return whether a config.json has the sections that the runs of all versions have."""
    return not _missing_sections(found)


def _missing_sections(found: Mapping[str, Any]) -> list[str]:
    return [name for name in _SECTIONS if not isinstance(found.get(name), Mapping)]


def check_configuration(found: Mapping[str, Any], path: epath.PathLike) -> None:
    """Check that a config.json contains the configuration of a run of any version.

    Raises:
        ConfigError: a section that all versions have is missing.
    """
    if missing := _missing_sections(found):
        raise ConfigError(
            f"{path}: is no configuration of a run: found the fields {shown(list(found))}; missing: "
            f"{', '.join(missing)}"
        )


def flat(section: Mapping[str, Any], whole: Container[str] = (), prefix: str = "") -> dict[str, Any]:
    """Return the fields of nested dictionaries by dotted names; each section of `whole` is one field."""
    fields: dict[str, Any] = {}
    for name, value in section.items():
        if isinstance(value, dict) and value and prefix + name not in whole:
            fields.update(flat(value, whole, f"{prefix}{name}."))
        else:
            fields[prefix + name] = value
    return fields


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (field, value in `one`, value in `other`) for each field that differs."""
    return [
        (name, one.get(name), other.get(name))
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]
