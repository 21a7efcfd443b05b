"""Runs the units of a plan on any Apache Beam runner: Dataflow, Flink, Spark, or local processes.

    python -m birdie_jax.text.beam_runner OUTPUT [--runner=FlinkRunner and other options of Beam]

OUTPUT contains a plan (`prepare_data --units=N --runner=none`). Beam and training need different versions
of some packages, so Beam has its own environment and no other module imports it.
"""

import importlib
import sys
from typing import Any

from birdie_jax.errors import BirdieError, ConfigError, exit_status, one_line, shown, without_secrets
from birdie_jax.storage import absolute, make_path
from birdie_jax.text.locations import Location, locate
from birdie_jax.text.units import advance, count_units, run_unit


def run_with_beam(directory: Location, options: list[str]) -> None:
    """Run all units of a plan and combine their results.

    Args:
        directory: the folder of the plan, absolute; all workers must be able to read and write it.
        options: Beam's command-line options.

    Raises:
        ConfigError: Beam is not installed, or has no such runner.
        DataError: as for `run_unit` and `advance`.
    """
    apache_beam = _import_beam("apache_beam")
    of_pipeline = _import_beam("apache_beam.options.pipeline_options")
    standard = of_pipeline.StandardOptions
    if name := of_pipeline.PipelineOptions(options).view_as(standard).runner:
        _check_runner(apache_beam, name, standard.KNOWN_RUNNER_NAMES)
    is_complete = False
    while not is_complete:
        count = count_units(directory)
        with apache_beam.Pipeline(options=of_pipeline.PipelineOptions(options)) as pipeline:
            numbers = pipeline | "units" >> apache_beam.Create(range(count))
            # Without this, a runner may give all units to one worker.
            spread = numbers | "spread" >> apache_beam.Reshuffle()
            _ = spread | "run" >> apache_beam.Map(_run_unit, str(directory))
        is_complete = advance(directory)


def _import_beam(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{name}: found {error}; allowed: an environment with Apache Beam, which `python -m pip "
            "install apache-beam` installs (docs/prepare_text.md)"
        ) from error


def _check_runner(apache_beam: Any, name: str, known: list[str]) -> None:
    try:
        apache_beam.runners.create_runner(name)
    except (ValueError, ImportError, AttributeError, TypeError) as error:
        # The message about an unknown name lists the known ones; the others say what is missing.
        reason = "" if isinstance(error, ValueError) else f" ({error})"
        raise ConfigError(
            f"--runner: found {shown(name)}{reason}; allowed: {', '.join(known)}, or another MODULE.CLASS"
        ) from error


def _run_unit(number: int, directory: str) -> None:
    run_unit(locate(directory), number)


def main() -> None:
    """Run the plan in the folder given on the command line."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("python -m birdie_jax.text.beam_runner OUTPUT [options of Beam]")
    try:
        run_with_beam(absolute(make_path(sys.argv[1])), sys.argv[2:])
    except BirdieError as error:
        print(f"birdie_jax.text.beam_runner: {one_line(without_secrets(str(error)))}", file=sys.stderr)
        sys.exit(exit_status(error))


if __name__ == "__main__":
    main()
