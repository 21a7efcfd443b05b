"""Write the page of a run: python -m birdie_jax.report --workdir=runs/tiny.

The page, <workdir>/report.html, is one file with all its plots; its path is printed. With --follow it is
rewritten every minute until the run ends, and a browser that shows it reloads it. SIGTERM does not end a
run, because launchers restart it. With --compare, the page compares runs:
python -m birdie_jax.report --compare=runs/one,runs/other.
"""

import sys

from absl import flags

from birdie_jax.command_line import define_path, start, with_example
from birdie_jax.errors import ConfigError
from birdie_jax.reporting import follow_report, write_report
from birdie_jax.storage.outputs import Input, Output, check_outputs

_FOLLOW_SECONDS = 60

_WORKDIR = define_path("workdir", "Folder of the run, which may be finished or still training.")
_FOLLOW = flags.DEFINE_bool("follow", False, "Write the page every minute until the run ends.")
_COMPARE = flags.DEFINE_list(
    "compare",
    None,
    "Runs to compare, in place of --workdir: workdirs, or folders of workdirs, whose runs are averaged "
    "like seeds. Differences are from the first.",
)
_OUTPUT = define_path(
    "output", "File of the page of --compare; default: comparison.html in the current folder."
)


def main(arguments: list[str]) -> None:
    """Write the page and print its path."""
    compared = _COMPARE.value
    if (_WORKDIR.value is None) == (compared is None):
        raise ConfigError(with_example("give either --workdir (one run) or --compare (several)"))
    if compared is None:
        if _OUTPUT.value is not None:
            raise ConfigError("--output: names the page of --compare; --workdir always writes report.html")
        if not _FOLLOW.value:
            print(write_report(_WORKDIR.value))
            return
        for number, page in enumerate(follow_report(_WORKDIR.value, _FOLLOW_SECONDS, say=_say)):
            if number == 0:
                print(page, flush=True)
        return
    if _FOLLOW.value:
        raise ConfigError("--follow: needs --workdir; a comparison is written once")
    if not all(compared):
        raise ConfigError("--compare: found an empty name; allowed: names of folders, separated by commas")
    # The comparison imports the tasks and thus JAX, which the page of a run does not need.
    from birdie_jax.comparison import write_comparison

    output = _OUTPUT.value or "comparison.html"
    check_outputs([Output("--output", output)], [Input("--compare", each) for each in compared])
    print(write_comparison(compared, output))


def _say(line: str) -> None:
    print(f"birdie_jax.report: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    start("report", main, OSError)
