"""Every command of README.md, docs/ and docstrings is checked for the machine it names, or dry-run."""

import argparse
import importlib
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import pytest

from birdie_jax.__main__ import VERBS
from birdie_jax.config import parse_config
from birdie_jax.engine.chips import CHIPS
from birdie_jax.engine.mesh import fill_in_sizes
from birdie_jax.finetuning.stages import read_stages, stage_config
from birdie_jax.mixture_search.request import make_design
from birdie_jax.resolve import configured_mixture
from birdie_jax.vocabulary import padded_vocab_size
from launch import commands
from tests.pages.hardware import (
    ACCELERATOR_TYPES,
    GPU_KINDS,
    MACHINES,
    FakeDevice,
    cpus,
    devices_of,
    gpus,
    tpus,
)
from tests.pages.page_commands import REPOSITORY, commands_of_repository, commands_of_script
from tests.pages.verbs import REQUIRED, parsed

# ml_collections loads the file of --config with a method that Python has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

COMMANDS = commands_of_repository()
LAUNCHERS = ("local", "tpu_pod", "gke_jobset", "slurm")
# Other programs. Only their arguments that are files of this repository are checked.
CLOUDS_AND_SYSTEM = (
    "cd",
    "docker",
    "gcloud",
    "git",
    "kubectl",
    "sbatch",
    "squeue",
    "ssh-add",
    "ssh-keygen",
    "tail",
)
DEVELOPMENT = ("jupyter", "lint-imports", "pre-commit", "pyright", "pytest", "ruff", "tensorboard")
CHIP_KINDS = {"v4": "TPU v4", "v5p": "TPU v5", "v5e": "TPU v5 lite", "v6e": "TPU v6 lite"}
GKE_KINDS = {
    "tpu-v4-podslice": "TPU v4",
    "tpu-v5p-slice": "TPU v5",
    "tpu-v5-lite-podslice": "TPU v5 lite",
    "tpu-v6e-slice": "TPU v6 lite",
}
Machines = Callable[[str], list[list[FakeDevice]]]


def check(arguments: Sequence[str], *, whole: bool) -> None:
    """Check a command; fail if no rule covers it."""
    program, rest = re.sub(r"^\.(venv|beam)/bin/", "", arguments[0]), list(arguments[1:])
    if program in ("python", "python3"):
        check_python(rest, whole=whole)
    elif program == "birdie":
        check_console_command(rest, whole=whole)
    elif program == "export":
        assert all(re.fullmatch(r"[A-Z_]+=\S+", one) for one in rest)
    elif program == "." and rest[0].startswith(".venv/"):
        assert rest == [".venv/bin/activate"]
    elif program in ("bash", "."):
        check_script(rest[0])
    elif program == "make_environment":
        assert "make_environment() {" in (REPOSITORY / "launch/environment.sh").read_text()
        check_extras(rest)
    elif program == "pip":
        check_pip(rest, whole=whole)
    elif program in (*CLOUDS_AND_SYSTEM, *DEVELOPMENT):
        for one in rest:
            if re.fullmatch(r"(--\w+=)?(launch|configs|docs|tests|birdie_jax)/\S*", one):
                assert (REPOSITORY / one.split("=")[-1]).exists(), f"{one}: no such file"
    else:
        pytest.fail(f"{program}: no rule covers this program; add one here")


def check_python(rest: list[str], *, whole: bool) -> None:
    if rest[0] != "-m":
        assert (REPOSITORY / rest[0]).is_file(), f"{rest[0]}: no such file"
        return
    module, rest = rest[1], rest[2:]
    package, _, name = module.partition(".")
    if module == "venv":
        assert rest in ([".venv"], [".beam"])
    elif module == "pip":
        check_pip(rest, whole=whole)
    elif module == "birdie_jax.text.beam_runner":
        # Its options belong to Beam, which is in another environment.
        assert [one.startswith("--") for one in rest] == [False] + [True] * (len(rest) - 1)
    elif module == "birdie_jax.lm_eval":
        # Its options belong to the harness; tests/tasks/test_lm_harness.py, which imports it, checks them.
        assert rest
    elif package == "birdie_jax":
        assert name in REQUIRED, f"{module}: no such verb"
        check_verb(name, rest, machines_without_launcher, whole=whole)
    elif package == "launch":
        check_launcher(name, rest)
    elif package in ("benchmarks", "studies", "tests", "pytest"):
        path = REPOSITORY / module.replace(".", "/")
        assert package == "pytest" or path.with_suffix(".py").is_file() or path.is_dir(), module
    else:
        pytest.fail(f"{module}: no rule covers this module; add one here")


def check_console_command(rest: list[str], *, whole: bool) -> None:
    if rest not in (["--help"], ["--version"]):
        assert rest[0] in VERBS, f"birdie {rest[0]}: no such verb"
        module = rest[0] if rest[0].startswith("launch.") else f"birdie_jax.{rest[0]}"
        check_python(["-m", module, *rest[1:]], whole=whole)


def check_script(path: str) -> None:
    assert (REPOSITORY / path).is_file(), f"{path}: no such file"
    subprocess.run(["bash", "-n", REPOSITORY / path], check=True)
    for inner in commands_of_script((REPOSITORY / path).read_text()):
        check(inner, whole=False)


def check_pip(rest: list[str], *, whole: bool) -> None:
    assert rest[0] == "install"
    if not whole:
        return
    options = argparse.ArgumentParser(exit_on_error=False)
    options.add_argument("--constraint", type=lambda name: (REPOSITORY / name).resolve(strict=True))
    options.add_argument("--editable", action="store_true")
    options.add_argument("projects", nargs="+")
    pinned = re.findall(r"^(\S+)==", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    given = options.parse_args(rest[1:])
    for project in given.projects:
        ours = re.match(r"(?:\.|birdie-jax)(?:\[(.*)\])?$", project)
        if given.constraint and not ours:
            assert project in pinned, f"{project}: constraints.txt does not pin it"
        check_extras([ours[1]] if ours and ours[1] else [])


def check_extras(extras: Sequence[str]) -> None:
    known = re.findall(r"^(\w+) =$", (REPOSITORY / "setup.cfg").read_text(), re.MULTILINE)
    for extra in filter(None, extras):
        assert extra in known, f"{extra}: no such extra of setup.cfg"


def check_verb(verb: str, rest: list[str], machines: Machines, *, whole: bool) -> None:
    """Parse the flags of a verb; if it has a configuration, check it and its mesh for each machine."""
    rest = [one.replace("[:VARIANT]", "").replace("FILE", "configs/birdie_110m.py") for one in rest]
    with parsed(verb, rest, whole=whole) as module:
        if verb not in ("train", "plan", "search_mixture", "check_device") or module._CONFIG.value is None:
            return
        config = parse_config(module._CONFIG.value)
        stages = read_stages(config)
        assert stages or configured_mixture(config).arms
        if verb == "search_mixture" and whole:
            make_design(config, module._STAGES.value, module._SEED.value)
        batches = [stage_config(config, stage) for stage in stages] or [config]
        meshes = [config.mesh]
        if verb == "plan" and module._TOPOLOGY.value is None:
            return
        if verb == "plan":
            lists = [devices_of_topology(module._TOPOLOGY.value)]
            meshes = [module.parse_mesh(text) for text in module._COMPARE.value] or meshes
        else:
            lists = machines(next(one for one in rest if one.startswith("--config=")))
        for devices in lists:
            for mesh in meshes:
                vocab_size = padded_vocab_size(config.data.vocab_size)
                for one in batches:
                    fill_in_sizes(replace(one, mesh=mesh), vocab_size, devices)


def machines_without_launcher(config: str) -> list[list[FakeDevice]]:
    """Return the machines for a training command if its page names none."""
    if "tiny" in config:
        return [cpus(1), cpus(8)]
    if "paper" in config:
        return [gpus(GPU_KINDS["A100"], 20, per_host=4)]
    return [devices_of(machine) for machine in MACHINES]


def devices_of_topology(name: str) -> list[FakeDevice]:
    """Return the devices of `plan --topology`."""
    found = re.fullmatch(r"(\w+)(?::([\dx]+))?(?:,slices=(\d+))?", name)
    assert found, f"--topology={name}"
    chip, shape, slices = found.groups()
    extents = [int(extent) for extent in (shape or "1").split("x")]
    if chip == "cpu":
        return cpus(prod(extents))
    assert chip in CHIPS, f"--topology={name}: no such chip"
    if CHIPS[chip].is_gpu:
        return gpus(CHIPS[chip].kinds[0], prod(extents), per_host=extents[1])
    assert len(extents) == CHIPS[chip].grid_dimensions, f"--topology={name}"
    return tpus(CHIP_KINDS[chip], prod(extents), int(slices or 1))


def check_launcher(name: str, rest: list[str]) -> None:
    """Dry-run a launcher, and check the command that it starts for its devices."""
    assert name in LAUNCHERS, f"launch.{name}: no such launcher"
    launcher = importlib.import_module(f"launch.{name}")
    options, command = commands.parse_arguments(launcher.make_parser(), rest)
    end = rest.index("--") if "--" in rest else len(rest)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert launcher.main([*rest[:end], "--dry_run", *rest[end:]]) == 0
    finally:
        signal.signal(signal.SIGTERM, handler)
    if command:
        assert command[0].removeprefix(".venv/bin/") in ("python", "python3")
        assert command[1:3] == ["-m", "birdie_jax.train"]
        check_verb("train", command[3:], lambda _: launched_devices(name, options), whole=True)


def launched_devices(name: str, options: argparse.Namespace) -> list[list[FakeDevice]]:
    """Return the devices that a launcher requests; for GPUs, each possible kind."""
    if name == "tpu_pod":
        kind, chips = ACCELERATOR_TYPES[options.accelerator_type]
        return [tpus(kind, chips, options.slices)]
    if name == "gke_jobset":
        chips = prod(map(int, options.topology.split("x")))
        return [tpus(GKE_KINDS[options.accelerator], chips, options.slices)]
    if name == "slurm":
        each = options.gpus_per_node
        return [gpus(kind, options.nodes * each, each) for kind in GPU_KINDS.values()]
    if options.gpus:
        return [gpus(kind, options.gpus) for kind in GPU_KINDS.values()]
    return [cpus(options.fake_devices or options.processes)]


@pytest.fixture(autouse=True)
def nothing_is_started(monkeypatch, tmp_path):
    """Prevent launchers from starting programs and from writing to the repository."""

    def refuse(self, command, **options):
        raise AssertionError(f"a dry run started {command}")

    monkeypatch.setattr(commands.Commands, "_subprocess", refuse)
    monkeypatch.setattr("launch.gke_jobset.REPOSITORY", tmp_path)
    monkeypatch.chdir(REPOSITORY)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: f"{one.page}: {' '.join(one.arguments)[:70]}")
def test_command_is_accepted(command):
    check(command.arguments, whole=command.whole)


def test_every_launcher_verb_and_configuration_is_shown():
    modules = {one.arguments[2] for one in COMMANDS if one.arguments[1:2] == ("-m",)}
    pages = {one.page for one in COMMANDS}
    assert {f"launch.{name}" for name in LAUNCHERS} <= modules
    assert {f"birdie_jax.{verb}" for verb in REQUIRED} <= modules
    assert {f"configs/{path.name}" for path in (REPOSITORY / "configs").glob("*.py")} <= pages
    assert {f"docs/launch_{name}.md" for name in ("local", "tpu_pod", "gke", "slurm")} <= pages


PIP = ("python", "-m", "pip", "install")
TRAIN = ("python", "-m", "birdie_jax.train", "--workdir=runs/a")
ON_A_POD = (
    *("python", "-m", "launch.tpu_pod", "train", "--name=birdie", "--zone=a"),
    *("--accelerator_type=v5p-128", "--runtime_version=b", "--"),
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rm", "-r", "x"), "rm: no rule covers this program"),
        (("python", "-m", "birdie_jax.trian"), "birdie_jax.trian: no such verb"),
        (("birdie", "trian"), "birdie trian: no such verb"),
        (("birdie", "generate", "--promt=x"), "Unknown command line flag 'promt'"),
        (("python", "-m", "antigravity"), "antigravity: no rule covers this module"),
        (("python", "-m", "birdie_jax.generate", "--promt=x"), "Unknown command line flag 'promt'"),
        (("bash", "launch/quick.sh"), "launch/quick.sh: no such file"),
        (("docker", "build", "--file=launch/Image"), "launch/Image: no such file"),
        ((*PIP, "--editable", ".[gpus]"), "gpus: no such extra"),
        ((*PIP, "--constraint=constraints.txt", "tranformers"), "constraints.txt does not pin it"),
        ((*TRAIN[:3], "--config=configs/tiny.py"), "['workdir'] not given"),
        ((*TRAIN, "--config=configs/tiny.py", "--config.model.width=3"), "unknown field 'width'"),
        ((*TRAIN, "--config=configs/tiny.py", "--config.mesh.data=3"), "config.mesh: found data=3"),
        ((*TRAIN, "--config=configs/birdie_1_4b.py", "--config.batching.rows=520"), "rows: found 520"),
        (
            (*ON_A_POD, *TRAIN[:3], "--workdir=gs://b/a", "--config=configs/birdie_1_4b.py:paper"),
            "a multiple of mesh.data * mesh.fsdp * train.accumulation_steps = 64 * 2 = 128",
        ),
    ],
)
def test_invalid_command_is_refused(arguments, message):
    with pytest.raises((Exception, pytest.fail.Exception), match=re.escape(message)):
        check(arguments, whole=True)


@pytest.mark.parametrize("rest", [["--name=birdie"], ["--name=B", "--nodes=1"]])
def test_launcher_refuses_invalid_options(rest):
    with pytest.raises(SystemExit):
        check(["python", "-m", "launch.slurm", *rest], whole=True)


def test_launcher_refuses_an_invalid_workdir(capsys):
    with pytest.raises(SystemExit, match="2"):
        check([*ON_A_POD, *TRAIN, "--config=configs/birdie_1_4b.py"], whole=True)
    said = "launch.tpu_pod: --workdir: found 'runs/a', which the workers do not share"
    assert capsys.readouterr().err.startswith(said)
