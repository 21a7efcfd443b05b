r"""Run on the GPUs of several nodes of a Slurm cluster.

    python -m launch.slurm --name=birdie --nodes=2 --gpus_per_node=8 --time=24:00:00 -- \
        .venv/bin/python -m birdie_jax.train --config=configs/birdie_1_4b.py --workdir=/shared/birdie

The launcher submits launch/slurm.sbatch, which starts the command once on every node, with all GPUs of the
node. This folder and the workdir must be on a file system that all nodes share.

Slurm requeues a job that is preempted or loses a node. A job that fails, or that gets a signal
`--stop_seconds` before its time limit to save and end, requeues itself, unless it has been requeued
`--restarts` times. In both cases, the same command resumes from its checkpoint. A command that ends with 2,
because it or its configuration is wrong, is not requeued.

The job gets HOME, PATH, USER, LD_LIBRARY_PATH, XDG_CACHE_HOME and the proxies of the environment, if they
are set, and the variables that `--pass_env` names. Slurm takes their values from the environment of sbatch,
and they are never on a command line.

Sources:
https://slurm.schedmd.com/sbatch.html
https://slurm.schedmd.com/srun.html
https://slurm.schedmd.com/preempt.html
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from .commands import (
    IS_CHECKOUT,
    REPOSITORY,
    Commands,
    LaunchError,
    Parser,
    check_configuration,
    exit_with_error,
    parse_arguments,
    parse_name,
    parse_non_negative,
    parse_positive,
    parse_text,
    parse_variable,
    program,
    require_command,
)
from .storage import check_workdir_url, workdir_of

# Variables that programs need on every node: the paths of files and libraries, and the proxies.
_ENVIRONMENT = (
    *("HOME", "PATH", "USER", "LD_LIBRARY_PATH", "XDG_CACHE_HOME"),
    *(name for proxy in ("http_proxy", "https_proxy", "no_proxy") for name in (proxy, proxy.upper())),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Submit the job; return the exit status."""
    options, command = parse_arguments(make_parser(), arguments)
    run = Commands(options.dry_run)
    try:
        require_command(command)
        check_workdir_url(workdir_of(command) or "")
        check_configuration(run, "slurm", command)
        run.run(make_sbatch_command(options, command))
    except LaunchError as error:
        exit_with_error("slurm", error)
    return 0


def make_sbatch_command(options: argparse.Namespace, command: Sequence[str]) -> list[str]:
    """Return the command that submits the job."""
    submit = [
        "sbatch",
        f"--job-name={options.name}",
        f"--nodes={options.nodes}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={options.gpus_per_node}",
        f"--time={options.time}",
        "--exclusive",
        "--mem=0",
        "--requeue",
        "--open-mode=append",
        f"--output={options.name}-%j.log",
        # Slurm sends the signal to the processes of srun, not to the script.
        f"--signal=TERM@{options.stop_seconds}",
        f"--export={','.join(_exported(options.pass_env, os.environ))}",
    ]
    for option in ("partition", "account", "qos", "constraint"):
        if getattr(options, option):
            submit.append(f"--{option}={getattr(options, option)}")
    script = Path(__file__).resolve().with_name("slurm.sbatch")
    script = script.relative_to(REPOSITORY) if IS_CHECKOUT else script
    return [*submit, str(script), str(options.restarts), *command]


def _exported(passed: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the names of the job's variables; Slurm reads their values from the environment."""
    return [*(name for name in _ENVIRONMENT if name in environment), *passed]


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the launcher's own options."""
    parser = Parser(
        prog=program("slurm"),
        usage="%(prog)s [options] -- COMMAND",
        description="Run on the GPUs of several nodes of a Slurm cluster.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--name", type=parse_name, required=True, help="name of the job")
    add("--nodes", type=parse_positive, required=True, help="number of nodes")
    add(
        "--gpus_per_node",
        type=parse_positive,
        required=True,
        help="GPUs of a node; the job uses all of them",
    )
    add(
        "--time",
        type=parse_text,
        required=True,
        help="time limit of the job before it is requeued, e.g. 24:00:00",
    )
    add("--partition", type=parse_text, help="partition of the cluster")
    add("--account", type=parse_text, help="account to charge")
    add("--qos", type=parse_text, help="quality of service")
    add("--constraint", type=parse_text, help="features that the nodes must have, e.g. h200")
    add(
        "--pass_env",
        type=parse_variable,
        action="append",
        default=[],
        help="NAME of an environment variable",
    )
    add("--restarts", type=parse_non_negative, default=100, help="maximum of restarts; default 100")
    add(
        "--stop_seconds",
        type=parse_positive,
        default=300,
        help="time for saving before the limit; default 300",
    )
    add("--dry_run", action="store_true", help="print the command, run nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
