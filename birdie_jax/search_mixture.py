"""Search a mixture: python -m birdie_jax.search_mixture --config=configs/tiny.py --workdir=runs/search.

Small trainings, the proxies, share a configuration and differ in the shares of the classes of objectives.
The command fits a law to their final validation losses, tests it on left-out proxies, and picks a mixture.
WORKDIR/found.py is the configuration with it, WORKDIR/index.html the page. The same command resumes. A
larger --proxies adds proxies. docs/search_a_mixture.md is the guide.
"""

import shlex

import jax
import numpy as np
from absl import flags, logging
from ml_collections import config_flags

from birdie_jax.command_line import define_path, given_imports, start
from birdie_jax.config import Config, parse_config, to_dict
from birdie_jax.config_flag import define_config
from birdie_jax.mixture_search.config_files import BaseConfig
from birdie_jax.mixture_search.design import stages_text
from birdie_jax.mixture_search.findings import MIN_PROXIES, Findings
from birdie_jax.mixture_search.folder import FOUND, PAGE, RECORD, RESULTS, SearchFolder
from birdie_jax.mixture_search.page import render_page, text_table
from birdie_jax.mixture_search.proxies import ProxyError, read_losses, train_proxies
from birdie_jax.mixture_search.request import choose_numbers, make_design, parse_objective
from birdie_jax.resolve import class_names
from birdie_jax.storage import write_json, write_whole
from birdie_jax.storage.outputs import Output, check_outputs

_MAX_PROXIES, _MAX_STAGES = 10_000, 8

_CONFIG = define_config("Configuration of a proxy: a preset or a Python file, with :variant if it has any.")
_WORKDIR = define_path("workdir", "Folder of the search, with a workdir for each proxy below it.")
_PROXIES = flags.DEFINE_integer(
    "proxies", 32, "Number of mixtures to try.", lower_bound=MIN_PROXIES, upper_bound=_MAX_PROXIES
)
_STAGES = flags.DEFINE_integer(
    "stages",
    1,
    "Mixtures of a proxy, each for an equal part of its run; more than 1 searches a schedule.",
    lower_bound=1,
    upper_bound=_MAX_STAGES,
)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the mixtures.", lower_bound=0, upper_bound=1 << 30)
_OBJECTIVE = flags.DEFINE_string(
    "objective",
    None,
    "Weights of the classes' losses: 'causal_lm=1, copying=2'. Default: the same for every class with a "
    "weight in the mixture. You may change it between calls; no proxy trains again.",
)
_ONLY = flags.DEFINE_string(
    "only",
    None,
    "Train only these proxies: 3, or 0:8 for 0 to 7. Such a call fits the law only if none of them is left "
    "to train.",
)


def run(config: Config, base: BaseConfig) -> None:
    """Train the remaining proxies, fit, print and write.

    Raises:
        ConfigError: the command, the configuration or the folder is unusable.
        ProxyError: proxies failed.
    """
    design, mixture = make_design(config, _STAGES.value, _SEED.value)
    weights = parse_objective(_OBJECTIVE.value, design, mixture)
    proxies, numbers = _PROXIES.value, choose_numbers(_ONLY.value, _PROXIES.value)
    folder = SearchFolder(_WORKDIR.value)
    names = (RECORD, RESULTS, FOUND, PAGE)
    check_outputs([Output("--workdir", str(folder.root), "folder", names)])
    folder.claim(_SEED.value, _STAGES.value, to_dict(config))
    points = design.points(proxies)
    schedules = {number: stages_text(design.classes, points[number]) for number in numbers}
    trained, failed = train_proxies(folder, base, schedules, mixture, imports=given_imports())
    finished = {
        number: losses
        for number in range(proxies)
        if (losses := read_losses(folder.workdir(number), mixture)) is not None
    }
    print(f"{len(finished)} of {proxies} proxies have results")
    if _ONLY.value is None or not trained:
        folder.check_texts()
        if len(finished) < MIN_PROXIES:
            raise ProxyError(f"found {len(finished)} finished proxies; a law needs {MIN_PROXIES} or more")
        measured = class_names(mixture)
        losses = np.array([[of_proxy[name] for name in measured] for of_proxy in finished.values()])
        findings = Findings(design, measured, weights, proxies, np.array(list(finished)), losses)
        _write(findings, folder, base, config)
    else:
        print("the same command without --only trains the others and fits the law")
    if failed:
        raise ProxyError(
            f"{len(failed)} failed; the same command tries them again: "
            f"{', '.join(str(folder.log(number)) for number in failed)}"
        )


def _write(findings: Findings, folder: SearchFolder, base: BaseConfig, config: Config) -> None:
    """Print the found mixture; write results, configuration and page."""
    stages = stages_text(findings.design.classes, findings.found.shares)
    base.write(folder.found, "The mixture that a search found.", stages)
    command = ["python", "-m", "birdie_jax.train", f"--config={folder.found}", "--workdir=runs/found"]
    command = shlex.join([*command, *(f"--import={name}" for name in given_imports())])
    about = {"config": base.name, "shares_of": config.objectives.shares_of, "found_stages": stages}
    write_json(folder.results, about | findings.to_json())
    page = render_page(findings, folder.root.name, base.name, command)
    write_whole(folder.page, page.encode(errors="backslashreplace"))
    print(text_table(findings))
    print(
        f"rank correlation of proxies left out {findings.rank_correlation:.2f}, mean absolute error "
        f"{findings.error:.4f}"
    )
    for warning in findings.warnings():
        print(f"warning: {warning}")
    print(f"{folder.page}\ntrain on the found mixture: {command}")


def main(arguments: list[str]) -> None:
    """Parse the flags and search."""
    logging.set_verbosity(logging.WARNING)
    # The training runs need the devices; this process computes on the host.
    jax.config.update("jax_platforms", "cpu")
    argument = config_flags.get_config_filename(flags.FLAGS["config"])
    run(parse_config(_CONFIG.value), BaseConfig(argument, _CONFIG.value))


if __name__ == "__main__":
    flags.mark_flags_as_required(["config", "workdir"])
    start("search_mixture", main, OSError)
