"""What are gates and state-space layers worth in an encoder? All of the study, or a part, by one command.

    python -m benchmarks.encoder_study --scale=small --text=corpus.jsonl --results=results/encoders
    python -m benchmarks.encoder_study --scale=small --text=corpus.jsonl --results=results/encoders --list

Each run is pre-trained by masked LM, measured, fine-tuned on six tasks over a grid, and its result written
as one JSON file. Stopped at any instant and started again with the same command, it goes on. On other
cores: `taskset -c 0 python ...`. docs/measurements/encoders.md tells what is measured and how.
"""

import argparse
import fnmatch
import sys
from pathlib import Path

from benchmarks.encoder_study.plans import SCALES, TITLES, Run, runs_of
from benchmarks.encoder_study.study import (
    Study,
    commands_left,
    read_results,
    result_file,
    run_to_its_result,
)
from benchmarks.encoder_study.tables import all_tables, draw_figures
from benchmarks.studies.markdown import write_tables
from benchmarks.studies.verbs import REPOSITORY, StudyError
from birdie_jax.storage.cache_folder import cache_folder

PAGE = REPOSITORY / "docs/measurements/encoders.md"


def main() -> None:
    """Parse the flags, and run, list or draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", required=True, choices=list(SCALES))
    parser.add_argument("--results", required=True, type=Path, help="folder of the results, one JSON a run")
    parser.add_argument("--workdirs", type=Path, help="folder of text and checkpoints; default: a cache")
    parser.add_argument("--only", default="*", help="runs whose name MODEL.SEED matches")
    parser.add_argument("--text", help="JSON lines with the fields `text` and `source`, one document each")
    parser.add_argument("--list", action="store_true", help="print what is done and the commands left")
    parser.add_argument("--tables", action="store_true", help="write tables and figures, and run nothing")
    parser.add_argument(
        "--page", type=Path, default=PAGE, help="page for --tables; figures stand beside it"
    )
    arguments = parser.parse_args()
    scale = SCALES[arguments.scale]
    runs = [run for run in runs_of(scale) if fnmatch.fnmatchcase(run.name, arguments.only)]
    if not runs:
        names = ", ".join(run.name for run in runs_of(scale))
        sys.exit(f"--only={arguments.only}: matches no run; allowed: a pattern of {names}")
    if arguments.text is None and not arguments.tables:
        sys.exit("--text: is not given; allowed: JSON lines with the fields text and source")
    workdirs = arguments.workdirs or cache_folder() / "benchmarks/encoder_study"
    study = Study(scale, arguments.results, workdirs.absolute(), arguments.text or "")
    try:
        if arguments.tables:
            _write_page(study, runs, arguments.page)
            return
        for run in runs:
            if arguments.list:
                _list_run(study, run)
            else:
                print(f"{run.name}: {TITLES[run.model]}", flush=True)
                print(f"{run.name}: {run_to_its_result(study, run)}", flush=True)
    except StudyError as error:
        sys.exit(f"benchmarks.encoder_study: {error}")


def _list_run(study: Study, run: Run) -> None:
    if result_file(study.results, run).exists():
        print(f"# {run.name}: finished, {result_file(study.results, run)}")
        return
    print(f"# {run.name}: {TITLES[run.model]}; left:")
    for command in commands_left(study, run):
        print(command)


def _write_page(study: Study, runs: list[Run], page: Path) -> None:
    results = read_results(study.results, study.scale.name)
    figures = draw_figures(results, page.parent, f"{page.stem}_{study.scale.name}")
    command = ["python", "-m", "benchmarks.encoder_study", f"--scale={study.scale.name}"]
    command += ["--text=corpus.jsonl", f"--results={study.results}"]
    text = all_tables(results, runs, command, [Path(figure.name) for figure in figures])
    write_tables(page, study.scale.name, text)
    print(f"{page}: {len(results)} results, {len(figures)} figures")


if __name__ == "__main__":
    main()
