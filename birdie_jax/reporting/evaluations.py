"""What `evaluate` has left in a workdir."""

from birdie_jax.config_errors import ConfigError
from birdie_jax.evaluation_record import EvaluationRecord, parse_evaluation
from birdie_jax.reporting.json_file import read_file
from birdie_jax.reporting.record_error import RecordError
from birdie_jax.storage import list_files
from birdie_jax.storage.workdir import Workdir

_SCORES = ".json"


def read_evaluations(files: Workdir) -> tuple[EvaluationRecord, ...]:
    """Return the newest evaluation of each name, by name.

    Raises:
        RecordError: a file is damaged or cannot be read; the message names it.
    """
    newest: dict[str, str] = {}
    try:
        names = list_files(files.evaluations)
    except OSError as error:
        raise RecordError(f"{files.evaluations}: cannot be listed: {error}") from error
    for path in sorted(names):
        step, _, name = path.partition("/")
        if step.isdigit() and name.endswith(_SCORES) and "/" not in name:
            newest[name] = path
    records = []
    for _, path in sorted(newest.items()):
        file = files.evaluations / path
        try:
            records.append(parse_evaluation(read_file(file), str(file)))
        except ConfigError as error:
            raise RecordError(str(error)) from error
    return tuple(records)
