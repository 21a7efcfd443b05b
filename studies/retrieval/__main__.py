"""Does Birdie's pre-training teach retrieval? All of the study, or a part of it, by one command.

    python -m studies.retrieval --scale=small --results=benchmarks/results/retrieval
    python -m studies.retrieval --scale=110m --results=benchmarks/results/retrieval --list

Each run is pre-trained, measured, fine-tuned over a grid, and its result written as one JSON file. Stopped
at any instant and started again with the same command, it goes on. On other cores: `taskset -c 0 python
...`, which its processes keep to. docs/measurements/retrieval.md tells what is measured and how.
"""

import sys
from functools import partial
from pathlib import Path

from studies.command_line import choose_runs, publish_tables, study_parser, workdirs_of
from studies.results import result_file
from studies.retrieval.figures import draw_figures
from studies.retrieval.matrix import PROCEDURES, Run, runs_of
from studies.retrieval.result import read_results, read_squad_scores
from studies.retrieval.scales import SCALES
from studies.retrieval.study import Study, ask_squad, commands_left, run_to_its_result
from studies.retrieval.tables import all_tables
from studies.study import list_run
from studies.verbs import REPOSITORY, StudyError

PAGE = REPOSITORY / "docs/measurements/retrieval.md"


def main() -> None:
    """Parse the flags, and run, list or draw."""
    parser = study_parser(__doc__, SCALES, PAGE)
    parser.add_argument("--text", help="documents, as prepare_data takes them; default: the scale's")
    parser.add_argument(
        "--final",
        type=Path,
        help="ask the finished runs the questions of this file of SQuAD, once, when all else is decided",
    )
    arguments = parser.parse_args()
    scale = SCALES[arguments.scale]
    study = Study(
        scale=scale,
        results=arguments.results,
        workdirs=workdirs_of(arguments.workdirs, "retrieval_study"),
        text=arguments.text or scale.text,
    )
    runs = choose_runs(runs_of(scale), arguments.only)
    try:
        if arguments.list:
            for run in runs:
                left = partial(commands_left, study, run)
                list_run(study.results, run, left, PROCEDURES[run.procedure].title)
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
        sys.exit(f"studies.retrieval: {error}")


def _write_page(study: Study, runs: list[Run], page: Path) -> None:
    results = read_results(study.results, study.scale.name)
    figures = draw_figures(results, page.parent, f"{page.stem}_{study.scale.name}")
    command = ["python", "-m", "studies.retrieval", f"--scale={study.scale.name}"]
    command.append(f"--results={study.results}")
    squad = read_squad_scores(study.results, study.scale.name)
    text = all_tables(results, runs, command, [Path(figure.name) for figure in figures], squad)
    publish_tables(page, study.scale.name, text, len(results), figures)


if __name__ == "__main__":
    main()
