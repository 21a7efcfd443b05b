"""What are gates and state-space layers worth in an encoder? All of the study, or a part, by one command.

    python -m studies.encoders --scale=small --text=corpus.jsonl --results=results/encoders
    python -m studies.encoders --scale=small --text=corpus.jsonl --results=results/encoders --list

Each run is pre-trained by masked LM, measured, fine-tuned on six tasks over a grid, and its result written
as one JSON file. Stopped at any instant and started again with the same command, it goes on. On other
cores: `taskset -c 0 python ...`. docs/measurements/encoders.md tells what is measured and how.
"""

import sys
from functools import partial
from pathlib import Path

from studies.command_line import choose_runs, publish_tables, study_parser, workdirs_of
from studies.encoders.folders import Study
from studies.encoders.pilot import read_pilot
from studies.encoders.plans import SCALES, TITLES, Run, runs_of
from studies.encoders.study import commands_left, read_results, run_to_its_result
from studies.encoders.tables import all_tables, draw_figures
from studies.study import list_run
from studies.verbs import REPOSITORY, StudyError

PAGE = REPOSITORY / "docs/measurements/encoders.md"


def main() -> None:
    """Parse the flags, and run, list or draw."""
    parser = study_parser(__doc__, SCALES, PAGE)
    parser.add_argument("--text", help="JSON lines with the fields `text` and `source`, one document each")
    arguments = parser.parse_args()
    scale = SCALES[arguments.scale]
    runs = choose_runs(runs_of(scale), arguments.only)
    if arguments.text is None and not arguments.tables:
        sys.exit("--text: is not given; allowed: JSON lines with the fields text and source")
    workdirs = workdirs_of(arguments.workdirs, "encoder_study")
    study = Study(scale, arguments.results, workdirs, arguments.text or "")
    try:
        if arguments.tables:
            _write_page(study, runs, arguments.page)
            return
        for run in runs:
            if arguments.list:
                list_run(study.results, run, partial(commands_left, study, run), TITLES[run.model])
            else:
                print(f"{run.name}: {TITLES[run.model]}", flush=True)
                print(f"{run.name}: {run_to_its_result(study, run)}", flush=True)
    except StudyError as error:
        sys.exit(f"studies.encoders: {error}")


def _write_page(study: Study, runs: list[Run], page: Path) -> None:
    results = read_results(study.results, study.scale.name)
    figures = draw_figures(results, page.parent, f"{page.stem}_{study.scale.name}")
    command = ["python", "-m", "studies.encoders", f"--scale={study.scale.name}"]
    command += ["--text=corpus.jsonl", f"--results={study.results}"]
    pilots = {model: read_pilot(study, model) for model in TITLES}
    done = {model: tried for model, tried in pilots.items() if tried}
    text = all_tables(results, runs, command, [Path(figure.name) for figure in figures], done)
    publish_tables(page, study.scale.name, text, len(results), figures)


if __name__ == "__main__":
    main()
