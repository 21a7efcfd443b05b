"""Runs the units of a plan on any Apache Beam runner: Dataflow, Flink, Spark, or local processes.

    python -m birdie_jax.text.beam_runner OUTPUT [--runner=FlinkRunner and other options of Beam]

OUTPUT contains a plan (`prepare_data --units=N --runner=none`). Beam and training need different versions
of some packages, so Beam has its own environment and no other module imports it.
"""

import sys

import apache_beam  # pyright: ignore[reportMissingImports]
from apache_beam.options.pipeline_options import PipelineOptions  # pyright: ignore[reportMissingImports]

from birdie_jax.errors import BirdieError, exit_status, one_line, without_secrets
from birdie_jax.text.locations import Location, locate
from birdie_jax.text.units import advance, count_units, run_unit


def run_with_beam(directory: Location, options: list[str]) -> None:
    """Run all units of a plan and combine their results.

    Args:
        directory: the folder of the plan; all workers must be able to read and write it.
        options: Beam's command-line options.

    Raises:
        DataError: as for `run_unit` and `advance`.
    """
    is_complete = False
    while not is_complete:
        count = count_units(directory)
        with apache_beam.Pipeline(options=PipelineOptions(options)) as pipeline:
            numbers = pipeline | "units" >> apache_beam.Create(range(count))
            # Without this, a runner may give all units to one worker.
            spread = numbers | "spread" >> apache_beam.Reshuffle()
            _ = spread | "run" >> apache_beam.Map(_run_unit, str(directory))
        is_complete = advance(directory)


def _run_unit(number: int, directory: str) -> None:
    run_unit(locate(directory), number)


def main() -> None:
    """Run the plan in the folder given on the command line."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("python -m birdie_jax.text.beam_runner OUTPUT [options of Beam]")
    try:
        run_with_beam(locate(sys.argv[1]), sys.argv[2:])
    except BirdieError as error:
        print(f"birdie_jax.text.beam_runner: {one_line(without_secrets(str(error)))}", file=sys.stderr)
        sys.exit(exit_status(error))


if __name__ == "__main__":
    main()
