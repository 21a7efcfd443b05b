"""The console command `birdie`: `birdie train` is `python -m birdie_jax.train`, from any folder.

It imports only the module of the verb. Launchers, such as `launch.local`, are verbs too.
"""

import ast
import importlib.util
import re
import runpy
import sys
from pathlib import Path

from birdie_jax import __version__
from birdie_jax.errors import nearest_first

VERBS = (
    *("train", "evaluate", "generate", "prune", "export", "import_model", "plan", "report"),
    *(
        "check_device",
        "search_mixture",
        "draw_kernels",
        "prepare_data",
        "lm_eval",
        "tasks.seed_summary",
        "tasks.infilling_filter",
    ),
    *("launch.local", "launch.slurm", "launch.tpu_pod", "launch.gke_jobset"),
)
_BAD_COMMAND_LINE = 2


def main() -> None:
    """Run the verb of the command line with the arguments after it."""
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    if verb in VERBS:
        # Leave the module its own name and arguments, as with `python -m`.
        del sys.argv[1]
        runpy.run_module(_module_of(verb), run_name="__main__", alter_sys=True)
    elif verb in ("--help", "-h", "-help"):
        print(_help())
    elif verb == "--version":
        print(f"birdie-jax {__version__}")
    else:
        found = f"found {verb[:80]!r}" if verb else "found no verb"
        allowed = f"{nearest_first(verb, VERBS)}, --help, --version"
        print(f"birdie: {found}; allowed: {allowed}", file=sys.stderr)
        sys.exit(_BAD_COMMAND_LINE)


def _module_of(verb: str) -> str:
    # A wheel has launch/ below birdie_jax/; a checkout has it next to birdie_jax/.
    beside = verb.startswith("launch.") and importlib.util.find_spec("birdie_jax.launch") is None
    return verb if beside else f"birdie_jax.{verb}"


def _help() -> str:
    lines = [f"  {verb:<22} {_purpose(verb)}" for verb in VERBS]
    return "\n".join(
        ("usage: birdie VERB [--flag=value ...]", "", *lines, "", "birdie VERB --help: its flags")
    )


def _purpose(verb: str) -> str:
    """Return the first sentence of a verb's docstring, without an import of the module."""
    spec = importlib.util.find_spec(_module_of(verb).rpartition(".")[0])
    assert spec is not None and spec.submodule_search_locations  # this package's wheel includes it
    path = Path(spec.submodule_search_locations[0], f"{verb.rpartition('.')[2]}.py")
    first = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
    return re.split(": `?python -m", first)[0].rstrip(".")


if __name__ == "__main__":
    main()
