r"""Run on the GPUs of several nodes of a Slurm cluster.

    python -m launch.slurm --name=birdie --nodes=2 --gpus_per_node=8 --time=24:00:00 -- \
        .venv/bin/python -m birdie_jax.train --config=configs/birdie_1_4b.py --workdir=/shared/birdie

Submits launch/slurm.sbatch, which starts the command once on every node, with all of the node's GPUs. This
folder and the workdir have to be on a file system that all nodes share.

A job that is preempted, or loses a node, is put back in the queue by Slurm. One that fails, or has come to
`--stop_seconds` before its time limit and so was told to save and end, puts itself back, unless it has been
put back `--restarts` times. Either way the same command goes on from its checkpoint.

Of the environment the job has HOME, PATH and USER, and what `--pass_env` names; Slurm takes the values from
the environment of sbatch, and they are never on a command line.

Written after
https://slurm.schedmd.com/sbatch.html
https://slurm.schedmd.com/srun.html
https://slurm.schedmd.com/preempt.html
"""

import argparse
import sys
from collections.abc import Sequence

from launch.commands import (
    Commands,
    LaunchError,
    exit_with,
    name,
    need,
    not_negative,
    parse,
    positive,
    variable,
)

_ENVIRONMENT = ("HOME", "PATH", "USER")


def main(arguments: Sequence[str] | None = None) -> int:
    """Submit the job; return the exit status."""
    options, command = parse(make_parser(), arguments)
    try:
        need(command)
        Commands(options.dry_run).run(submission(options, command))
    except LaunchError as error:
        exit_with("slurm", error)
    return 0


def submission(options: argparse.Namespace, command: Sequence[str]) -> list[str]:
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
        # To what srun started, not to the script.
        f"--signal=TERM@{options.stop_seconds}",
        f"--export={','.join((*_ENVIRONMENT, *options.pass_env))}",
    ]
    for option in ("partition", "account", "qos", "constraint"):
        if getattr(options, option):
            submit.append(f"--{option}={getattr(options, option)}")
    return [*submit, "launch/slurm.sbatch", str(options.restarts), *command]


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the launcher's own options."""
    parser = argparse.ArgumentParser(
        prog="python -m launch.slurm",
        usage="%(prog)s [options] -- COMMAND",
        description="Run on the GPUs of several nodes of a Slurm cluster.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--name", type=name, required=True, help="of the job")
    add("--nodes", type=positive, required=True, help="how many")
    add("--gpus_per_node", type=positive, required=True, help="all that a node has")
    add("--time", required=True, help="limit of the job before it goes back to the queue, e.g. 24:00:00")
    add("--partition", help="of the cluster")
    add("--account", help="to charge")
    add("--qos", help="quality of service")
    add("--constraint", help="on the nodes, e.g. h200")
    add("--pass_env", type=variable, action="append", default=[], help="NAME of a variable for the command")
    add("--restarts", type=not_negative, default=100, help="at most so many; default 100")
    add("--stop_seconds", type=positive, default=300, help="for saving before the limit; default 300")
    add("--dry_run", action="store_true", help="print the command, run nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
