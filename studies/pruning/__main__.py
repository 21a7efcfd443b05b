"""What does it cost to prune the tokens of a prompt, and which have to stay? By one command.

    python -m studies.pruning --scale=small --text=corpus.jsonl --results=results/pruning
    python -m studies.pruning --scale=small --text=corpus.jsonl --results=results/pruning --list

Each run is pre-trained, measured on held-out text under every policy and share, fine-tuned and measured
again, and its result written as one JSON file. Stopped at any instant and started again with the same
command, it goes on. On other cores: `taskset -c 0 python ...`. docs/measurements/pruning_study.md tells
what is measured and how.
"""

import sys
from functools import partial
from pathlib import Path

from birdie_jax.compiled_programs import cache_compiled_programs
from birdie_jax.errors import ConfigError
from studies.command_line import choose_runs, publish_tables, study_parser, workdirs_of
from studies.pruning.figures import draw_figures
from studies.pruning.plans import SCALES, Run, runs_of
from studies.pruning.study import Study, commands_left, read_results, run_to_its_result
from studies.pruning.tables import all_tables
from studies.study import list_run
from studies.verbs import REPOSITORY, StudyError

PAGE = REPOSITORY / "docs/measurements/pruning_study.md"


def main() -> None:
    """Parse the flags, and run, list or draw."""
    parser = study_parser(__doc__, SCALES, PAGE)
    parser.add_argument("--text", help="documents, as prepare_data takes them")
    arguments = parser.parse_args()
    scale = SCALES[arguments.scale]
    runs = choose_runs(runs_of(scale), arguments.only)
    if arguments.text is None and not arguments.tables:
        sys.exit("--text: is not given; allowed: documents, as prepare_data takes them")
    workdirs = workdirs_of(arguments.workdirs, "pruning_study")
    study = Study(scale, arguments.results, workdirs, arguments.text or "")
    try:
        if arguments.tables:
            _write_page(study, runs, arguments.page)
            return
        cache_compiled_programs()
        for run in runs:
            if arguments.list:
                list_run(study.results, run, partial(commands_left, study, run))
            else:
                print(f"{run.name}: {run_to_its_result(study, run)}", flush=True)
    except (StudyError, ConfigError) as error:
        sys.exit(f"studies.pruning: {error}")


def _write_page(study: Study, runs: list[Run], page: Path) -> None:
    results = read_results(study.results, study.scale.name)
    figures = draw_figures(study.scale, results, page.parent, f"{page.stem}_{study.scale.name}")
    command = ["python", "-m", "studies.pruning", f"--scale={study.scale.name}"]
    command += ["--text=corpus.jsonl", f"--results={study.results}"]
    text = all_tables(study.scale, results, runs, command, [Path(figure.name) for figure in figures])
    publish_tables(page, study.scale.name, text, len(results), figures)


if __name__ == "__main__":
    main()
