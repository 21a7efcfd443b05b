"""Reads and checks the contents of a workdir: configuration, arms, metrics and summary."""

from dataclasses import dataclass
from typing import Any, TypeVar

from etils import epath

from birdie_jax.errors import ConfigError, DataError, RecordError
from birdie_jax.evaluation_record import EvaluationRecord, parse_evaluation
from birdie_jax.objectives.shares import TARGET_TOKENS
from birdie_jax.reporting.json_records import ArmRecord, is_there, read_arms, read_file, read_json_object
from birdie_jax.reporting.metrics_table import MetricsTable, read_metrics
from birdie_jax.start_record import Start, read_starts
from birdie_jax.storage import list_files
from birdie_jax.storage.typed import parse_typed
from birdie_jax.storage.workdir import Workdir


@dataclass(frozen=True)
class PredictedToken:
    """A token that a model had to predict.

    Attributes:
        token: the token as text.
        shown: the model's input at its position: [MASK], another token, or the token itself; empty if it
            follows the input.
        found: the model's most probable token.
        is_right: whether `found` is the token.
        probability: the probability of `found`.
        loss: the loss in nats.
    """

    token: str
    shown: str
    found: str
    is_right: bool
    probability: float
    loss: float


@dataclass(frozen=True)
class Sample:
    """A held-out example and its first targets.

    Attributes:
        arm: the name of its arm.
        in_place: whether the tokens are hidden within the input; otherwise they follow it.
        texts: the texts before, between and after the tokens.
        hidden: the tokens.
    """

    arm: str
    in_place: bool
    texts: tuple[str, ...]
    hidden: tuple[PredictedToken, ...]


@dataclass(frozen=True)
class SamplesRecord:
    """The predictions at the end of a run.

    Attributes:
        step: the train step.
        samples: the examples.
    """

    step: int
    samples: tuple[Sample, ...]


# The file in runs before 2026-11-26, only for arms with labels in place.
_BEFORE = "masked_samples.json"


def read_samples(files: Workdir) -> SamplesRecord | None:
    """Return the run's predictions, or None if it has written none.

    Raises:
        RecordError: the file is damaged; the message names it and the record.
    """
    path = files.samples
    if is_there(path):
        contents = read_json_object(path)
    elif is_there(path := files.root / _BEFORE):
        contents = read_json_object(path)
        samples = contents.get("samples")
        if isinstance(samples, list):
            contents["samples"] = [
                {"in_place": True} | sample if isinstance(sample, dict) else sample for sample in samples
            ]
    else:
        return None
    record = parse_typed(SamplesRecord, contents, str(path), RecordError)
    for number, sample in enumerate(record.samples):
        if len(sample.texts) != len(sample.hidden) + 1:
            raise RecordError(
                f"{path}.samples[{number}].texts: found {len(sample.texts)} for {len(sample.hidden)} "
                "tokens; allowed: one more"
            )
    return record


_SCORES = ".json"


def read_evaluations(files: Workdir, step: int | None = None) -> tuple[EvaluationRecord, ...]:
    """Return the newest evaluation of each name, or the one of a step, by name.

    Args:
        files: the workdir of the run.
        step: the train step of the evaluated models; None: for each name, the newest.

    Raises:
        RecordError: a file is damaged or cannot be read; the message names it.
    """
    newest: dict[str, str] = {}
    try:
        names = list_files(files.evaluations)
    except OSError as error:
        raise RecordError(f"{files.evaluations}: cannot be listed: {error}") from error
    for path in sorted(names):
        folder, _, name = path.partition("/")
        is_wanted = folder.isdigit() and (step is None or int(folder) == step)
        if is_wanted and name.endswith(_SCORES) and "/" not in name:
            newest[name] = path
    records = []
    for _, path in sorted(newest.items()):
        file = files.evaluations / path
        try:
            records.append(parse_evaluation(read_file(file), str(file)))
        except ConfigError as error:
            raise RecordError(str(error)) from error
    return tuple(records)


_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class RunRecord:
    """The record of a run in its workdir.

    Attributes:
        workdir: the folder of the run.
        config: the contents of config.json as nested dicts; empty for a run without that file.
        arms: the objective arms in the order of arms.json; empty for a run without that file.
        metrics: the contents of metrics.jsonl.
        summary: the contents of summary.json; empty until the run writes it.
        evaluations: the newest evaluation of each name, by name.
        predicted: the predictions on held-out examples at the end of the run; None before.
        starts: the starts, oldest first; empty for a run without a record.
    """

    workdir: epath.Path
    config: dict[str, Any]
    arms: tuple[ArmRecord, ...]
    metrics: MetricsTable
    summary: dict[str, Any]
    evaluations: tuple[EvaluationRecord, ...] = ()
    predicted: SamplesRecord | None = None
    starts: tuple[Start, ...] = ()

    @property
    def groups(self) -> dict[str, list[int]]:
        """The classes in the order of their first arms, with the indices of their arms."""
        groups: dict[str, list[int]] = {}
        for index, arm in enumerate(self.arms):
            groups.setdefault(arm.group, []).append(index)
        return groups

    @property
    def last_step(self) -> int:
        """The train step of the last line of metrics.jsonl."""
        return int(self.metrics.steps[-1])

    @property
    def is_complete(self) -> bool:
        """Whether the run ended as planned, by its summary."""
        return self.summary.get("completed") is True

    @property
    def planned_steps(self) -> int | None:
        """The configured number of steps; None if the run has no such setting.

        Raises:
            RecordError: the run has arms, but its configuration lacks the setting or has another type.
        """
        name = "train.num_steps"
        planned = self.setting(name, int) if self.arms else self.find_setting(name)
        return planned if isinstance(planned, int) and planned > 0 else None

    @property
    def has_token_shares(self) -> bool:
        """Whether mixtures have shares of target tokens; older runs have shares of examples."""
        return self.find_setting("objectives.shares_of") == TARGET_TOKENS

    @property
    def probability_title(self) -> str:
        """The name of a mixture's probabilities."""
        return "Requested share of target tokens" if self.has_token_shares else "Sampling probability"

    def find_setting(self, name: str) -> Any:
        """Return a configuration value by its dotted name, or None if the configuration lacks it."""
        value: Any = self.config
        for part in name.split("."):
            if not isinstance(value, dict) or part not in value:
                return None
            value = value[part]
        return value

    def setting(self, name: str, kind: type[_Kind]) -> _Kind:
        """Return a configuration value by its dotted name.

        Args:
            name: the dotted name.
            kind: the type of the value.

        Raises:
            RecordError: config.json lacks it, or has a value of another type.
        """
        value = self.find_setting(name)
        where = f"{Workdir(self.workdir).config}: {name}"
        if value is None:
            raise RecordError(f"{where}: missing")
        return parse_typed(kind, value, where, RecordError)


def read_run(workdir: epath.PathLike) -> RunRecord:
    """Read the workdir of a finished or running run.

    A run with arms must have a configuration. A run without arms, such as one from Python, may lack it.

    Raises:
        RecordError: a file is missing or damaged; the message names it, and its line or record.
    """
    files = Workdir(workdir)
    if not is_there(files.root):
        raise RecordError(
            f"{files.root}: found no such directory; allowed: the --workdir of a training run"
        )
    arms = read_arms(files.arms)
    config = read_json_object(files.config) if arms or is_there(files.config) else {}
    metrics = read_metrics(files, [arm.name for arm in arms])
    summary = read_json_object(files.summary) if is_there(files.summary) else {}
    return RunRecord(
        files.root,
        config,
        arms,
        metrics,
        summary,
        read_evaluations(files),
        read_samples(files),
        _read_starts(files),
    )


def may_log(workdir: epath.PathLike) -> bool:
    """Return whether a run without metrics prepares its text, has not logged yet, or may restart.

    Raises:
        RecordError: the record of its starts is damaged or cannot be read.
    """
    files = Workdir(workdir)
    starts = _read_starts(files)
    if starts:
        return starts[-1].ended is None or starts[-1].was_preempted
    # The command writes the first of them before it prepares text. A run from Python has only the second.
    return is_there(files.config) or is_there(files.metrics)


def _read_starts(files: Workdir) -> tuple[Start, ...]:
    try:
        return tuple(read_starts(files))
    except DataError as error:
        raise RecordError(str(error)) from error
