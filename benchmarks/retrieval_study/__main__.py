"""Does Birdie's pre-training teach retrieval? All of the study, or a part of it, by one command.

    python -m benchmarks.retrieval_study --scale=small --results=benchmarks/results/retrieval
    python -m benchmarks.retrieval_study --scale=110m --results=benchmarks/results/retrieval --list

Each run is pre-trained, measured, fine-tuned over a grid, and its result written as one JSON file. Stopped
at any instant and started again with the same command, it goes on. On other cores: `taskset -c 0 python
...`, which its processes keep to. docs/measurements/retrieval.md tells what is measured and how.
"""

import argparse
import fnmatch
import sys
from pathlib import Path

from benchmarks.retrieval_study.figures import draw_figures
from benchmarks.retrieval_study.matrix import PROCEDURES, Run, runs_of
from benchmarks.retrieval_study.result import read_results, result_file
from benchmarks.retrieval_study.scales import SCALES
from benchmarks.retrieval_study.study import Study, ask_squad, commands_left, run_to_its_result
from benchmarks.retrieval_study.tables import all_tables
from benchmarks.studies.markdown import write_tables
from benchmarks.studies.verbs import REPOSITORY, StudyError
from birdie_jax.storage.cache_folder import cache_folder

PAGE = REPOSITORY / "docs/measurements/retrieval.md"


def main() -> None:
    """Parse the flags, and run, list or draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", required=True, choices=list(SCALES))
    parser.add_argument("--results", required=True, type=Path, help="folder of the results, one JSON a run")
    parser.add_argument("--workdirs", type=Path, help="folder of text and checkpoints; default: a cache")
    parser.add_argument("--only", default="*", help="runs whose name MODEL.PROCEDURE.SEED matches")
    parser.add_argument("--text", help="documents, as prepare_data takes them; default: the scale's")
    parser.add_argument("--list", action="store_true", help="print what is done and the commands left")
    parser.add_argument("--tables", action="store_true", help="write tables and figures, and run nothing")
    parser.add_argument(
        "--page", type=Path, default=PAGE, help="page for --tables; figures stand beside it"
    )
    parser.add_argument(
        "--final",
        type=Path,
        help="ask the finished runs the questions of this file of SQuAD, once, when all else is decided",
    )
    arguments = parser.parse_args()
    scale = SCALES[arguments.scale]
    workdirs = arguments.workdirs or cache_folder() / "benchmarks/retrieval_study"
    study = Study(
        scale=scale,
        results=arguments.results,
        workdirs=workdirs.absolute(),
        text=arguments.text or scale.text,
    )
    runs = [run for run in runs_of(scale) if fnmatch.fnmatchcase(run.name, arguments.only)]
    if not runs:
        names = ", ".join(run.name for run in runs_of(scale))
        sys.exit(f"--only={arguments.only}: matches no run; allowed: a pattern of {names}")
    try:
        if arguments.list:
            _list_runs(study, runs)
        elif arguments.tables:
            _write_page(study, runs, arguments.page)
        elif arguments.final:
            for run in runs:
                if result_file(study.results, run).exists():
                    print(f"{run.name}: {ask_squad(study, run, arguments.final)}", flush=True)
        else:
            for run in runs:
                print(f"{run.name}: {PROCEDURES[run.procedure].title}", flush=True)
                print(f"{run.name}: {run_to_its_result(study, run)}", flush=True)
    except StudyError as error:
        sys.exit(f"benchmarks.retrieval_study: {error}")


def _list_runs(study: Study, runs: list[Run]) -> None:
    for run in runs:
        if result_file(study.results, run).exists():
            print(f"# {run.name}: finished, {result_file(study.results, run)}")
            continue
        print(f"# {run.name}: {PROCEDURES[run.procedure].title}; left:")
        for command in commands_left(study, run):
            print(command)


def _write_page(study: Study, runs: list[Run], page: Path) -> None:
    results = read_results(study.results, study.scale.name)
    figures = draw_figures(results, page.parent, f"{page.stem}_{study.scale.name}")
    command = ["python", "-m", "benchmarks.retrieval_study", f"--scale={study.scale.name}"]
    command.append(f"--results={study.results}")
    text = all_tables(results, runs, command, [Path(figure.name) for figure in figures])
    write_tables(page, study.scale.name, text)
    print(f"{page}: {len(results)} results, {len(figures)} figures")


if __name__ == "__main__":
    main()
