"""Write the page of a run: python -m birdie_jax.report --workdir=runs/tiny.

The page, <workdir>/report.html, is one file with all its plots; its path is printed. With --follow it is
written anew every minute until the run ends, and a browser that shows it loads it again. With --compare,
runs are set side by side: python -m birdie_jax.report --compare=runs/one,runs/other.
"""

from absl import flags

from birdie_jax.command_line import define_path, start, with_example
from birdie_jax.errors import ConfigError
from birdie_jax.reporting import follow_report, write_report
from birdie_jax.storage.outputs import Input, Output, check_outputs

_FOLLOW_SECONDS = 60

_WORKDIR = define_path("workdir", "Folder of the run, which may be finished or still going on.")
_FOLLOW = flags.DEFINE_bool("follow", False, "Write the page every minute until the run ends.")
_COMPARE = flags.DEFINE_list(
    "compare",
    None,
    "Runs to set side by side, in place of --workdir: workdirs, and folders of workdirs, whose runs are "
    "averaged, as seeds are. Differences are those from the first.",
)
_OUTPUT = define_path("output", "File of the page of --compare; default: comparison.html in this folder.")


def main(arguments: list[str]) -> None:
    """Write the page and print its path."""
    compared = _COMPARE.value
    if (_WORKDIR.value is None) == (compared is None):
        raise ConfigError(with_example("give either --workdir, a run, or --compare, several"))
    if compared is None:
        if _OUTPUT.value is not None:
            raise ConfigError("--output: names the page of --compare; that of --workdir is its report.html")
        if not _FOLLOW.value:
            print(write_report(_WORKDIR.value))
            return
        for number, page in enumerate(follow_report(_WORKDIR.value, _FOLLOW_SECONDS)):
            if number == 0:
                print(page, flush=True)
        return
    if _FOLLOW.value:
        raise ConfigError("--follow: is of --workdir; a comparison is written once")
    if not all(compared):
        raise ConfigError("--compare: found an empty name; allowed: names of folders, separated by commas")
    # It knows the tasks, and so imports JAX, which the page of a run does without.
    from birdie_jax.comparison import write_comparison

    output = _OUTPUT.value or "comparison.html"
    check_outputs([Output("--output", output)], [Input("--compare", each) for each in compared])
    print(write_comparison(compared, output))


if __name__ == "__main__":
    start("report", main, OSError)
