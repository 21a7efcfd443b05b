"""A wheel in a separate environment has everything that a user needs in an empty folder."""

import json
import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from birdie_jax import __version__
from birdie_jax.config_flag import load_config, preset_files
from tests.pages.page_commands import REPOSITORY
from tests.pages.test_tiny_runs import of_micro_size
from tests.quick_jit import QUICK_FLAGS

pytestmark = pytest.mark.slow

PACKAGES = ("birdie_jax", "hlo_analysis", "pallas_kernels", "configs", "launch")
FILES = ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
# Files that only a checkout uses.
CHECKOUT_ONLY = {
    "Dockerfile",
    "compilers.sh",
    "docs.sh",
    "environment.sh",
    "quickstart.sh",
    "tpu_worker.sh",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Install the wheel next to the packages of this environment, without the link to the checkout."""
    source, environment = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("environment")
    # The build writes to its source.
    for name in PACKAGES:
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(REPOSITORY / name, source)
    venv.create(environment)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(environment)}))
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    options = ("-qq", "--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed")
    subprocess.run([environment / "bin/python", "-m", "pip", "install", *options, source], check=True)
    return environment / "bin", packages


def run(command, folder):
    environment = os.environ | {"XLA_FLAGS": QUICK_FLAGS}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_file_of_the_packages_is_installed(installed):
    for name in PACKAGES:
        place = installed[1] / ("" if name in PACKAGES[:3] else "birdie_jax") / name
        files = [path for path in (REPOSITORY / name).rglob("*") if path.is_file()]
        wanted = {path for path in files if not {"__pycache__", *CHECKOUT_ONLY} & {*path.parts}}
        missing = [path for path in wanted if not (place / path.relative_to(REPOSITORY / name)).is_file()]
        assert wanted and not missing


def test_the_first_steps_of_the_quickstart(installed, tmp_path):
    command = [installed[0] / "birdie", "train", "--config=tiny", "--workdir=a"]
    # Its text has more characters than the micro size has pieces.
    run([*command, *of_micro_size(), "--config.data.vocab_size=512"], tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    assert max(row["step"] for row in rows if "loss" in row) == 4
    assert (tmp_path / "a/report.html").stat().st_size > 10_000


def test_a_wheel_has_the_presets_of_the_checkout(installed, tmp_path):
    program = (
        "import json, birdie_jax\n"
        "from birdie_jax.config_flag import load_config, preset_files\n"
        "config = load_config('birdie_1_4b:gated_ssm').to_json_best_effort()\n"
        "print(json.dumps([birdie_jax.__file__, birdie_jax.__version__, list(preset_files()), config]))"
    )
    file, version, presets, config = json.loads(run([installed[0] / "python", "-c", program], tmp_path))
    assert Path(file).is_relative_to(installed[1])
    assert (version, presets) == (__version__, list(preset_files()))
    expected = load_config(f"{REPOSITORY}/configs/birdie_1_4b.py:gated_ssm").to_json_best_effort()
    assert config == expected


def test_a_launcher_finds_its_script(installed, tmp_path):
    options = ("--name=a", "--nodes=1", "--gpus_per_node=1", "--time=1:00:00", "--dry_run")
    command = ("--", "python", "-m", "birdie_jax.train", f"--workdir={tmp_path}")
    output = run([installed[0] / "birdie", "launch.slurm", *options, *command], tmp_path)
    assert f" {installed[1]}/birdie_jax/launch/slurm.sbatch " in output
