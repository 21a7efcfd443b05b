"""Create .venv and folders next to it; recreate incomplete ones, and ones from another machine.

Pythons are small scripts: nothing is installed here.
"""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.launch.stand_in import REPOSITORY

# Stands in for Python and for pip; FAKE_VENV, FAKE_PIP and FAKE_VERSION choose its failure.
FAKE_PYTHON = """#!/bin/sh
version="${FAKE_VERSION:-3.11}"
case "$*" in
--version) echo "Python $version.9" ;;
*"version_info < (3, 11)"*) [ "${version#3.}" -ge 11 ] ;;
*"version_info[:2]"*) echo "$version" ;;
"-c import pip") [ ! -e "$(dirname "$0")/no-pip" ] ;;
"-m venv .venv")
    echo venv >>made
    mkdir -p .venv/bin
    if [ "$FAKE_VENV" = fails ]; then
        printf 'The virtual environment was not created successfully.\\n\\nensurepip is not available\\n'
        exit 1
    fi
    echo "version = $version.9" >.venv/pyvenv.cfg
    cp "$0" .venv/bin/python
    if [ "$FAKE_VENV" = waits ]; then : >waiting && exec sleep 20; fi
    : >.venv/bin/activate
    ;;
"-m pip install "*)
    echo "pip" >>made
    case "$*" in
    *--target*)
        folder="${*#*--target }"
        mkdir -p "${folder%% *}"
        ;;
    esac
    if [ -n "$FAKE_SLOW" ]; then sleep "$FAKE_SLOW"; fi
    case "$FAKE_PIP" in
    fails) echo "ERROR: no network" >&2 && exit 1 ;;
    killed) kill -KILL $$ ;;
    waits) : >waiting && exec sleep 20 ;;
    esac
    ;;
*) echo "fake python: $*" >&2 && exit 9 ;;
esac
"""
TOOLS = (
    *("awk", "bash", "cat", "cksum", "cp", "cut", "dirname", "env", "flock", "grep", "head", "mkdir", "mv"),
    *("readlink", "rm", "rmdir", "sed", "sh", "sleep", "tail", "tr", "uname"),
)
FILES = (
    "launch/environment.sh",
    "launch/compilers.sh",
    "tests/oracles.sh",
    "constraints.txt",
    "hashes.txt",
)
# What builds packages, what the project needs, and the project.
INSTALLED = ["pip", "pip", "pip"]
MAKE = ". launch/environment.sh; make_environment ''"
FETCH = f"{MAKE} && . tests/oracles.sh && make_oracles && echo $BIRDIE_ORACLES"


class Clone:
    """A folder with the scripts of the repository, and a PATH with nothing but tools and fake Pythons."""

    def __init__(self, root: Path):
        self.folder, self.bin, self.home = root / "clone", root / "bin", root / "home"
        self.folder.mkdir()
        self.bin.mkdir()
        self.home.mkdir()
        for name in FILES:
            target = self.folder / name
            target.parent.mkdir(exist_ok=True)
            shutil.copy(REPOSITORY / name, target)
        for name in ("setup.py", "setup.cfg", "pyproject.toml"):
            (self.folder / name).write_text("")
        for tool in TOOLS:
            if found := shutil.which(tool):
                (self.bin / tool).symlink_to(found)
        self.add_python("python3")

    @property
    def venv(self) -> Path:
        return self.folder / ".venv"

    @property
    def made(self) -> list[str]:
        """What was made and installed since the last look."""
        log = self.folder / "made"
        text = log.read_text() if log.exists() else ""
        log.unlink(missing_ok=True)
        return text.split()

    def add_python(self, name: str) -> None:
        (self.bin / name).write_text(FAKE_PYTHON)
        (self.bin / name).chmod(0o755)

    def start(self, script: str = MAKE, **environment: str) -> subprocess.Popen:
        return subprocess.Popen(
            ["bash", "-c", f"set -euo pipefail; {script}"],
            cwd=self.folder,
            env={"PATH": str(self.bin), "HOME": str(self.home), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, script: str = MAKE, **environment: str) -> tuple[int, str, str]:
        process = self.start(script, **environment)
        stdout, stderr = process.communicate(timeout=30)
        return process.returncode, stdout, stderr

    def refusal(self, script: str = MAKE, **environment: str) -> str:
        """Run a script that fails, and return its one line."""
        status, _, stderr = self.run(script, **environment)
        assert status == 1
        (line,) = stderr.splitlines()
        assert line.startswith("birdie-jax: ")
        return line


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


def test_a_clone_gets_its_environment_once(clone):
    status, stdout, stderr = clone.run()
    assert (status, stderr) == (0, "")
    assert stdout.splitlines() == [
        "making .venv with Python 3.11.9",
        "installing birdie-jax and what it needs into .venv",
    ]
    assert clone.made == ["venv", *INSTALLED]
    assert clone.run() == (0, "", "")
    assert not clone.made
    (clone.folder / "setup.cfg").write_text("changed")
    assert clone.run()[0] == 0
    assert clone.made == INSTALLED


def test_packages_of_other_pins_are_replaced_whichever_extras_brought_them(clone):
    docs = MAKE.replace("''", "docs")
    for script in (MAKE, docs):
        assert clone.run(script)[0] == 0
    assert clone.made == ["venv", *INSTALLED, *INSTALLED]
    assert clone.run(MAKE) == (0, "", "")
    pins = clone.folder / "setup.cfg"
    pins.write_text("other pins")
    assert clone.run(docs)[0] == 0
    pins.write_text("")
    assert clone.made == INSTALLED
    assert clone.run(MAKE)[0] == 0
    assert clone.made == INSTALLED


@pytest.mark.parametrize("given", ["--workdir=runs/mine", "--seed=1 --workdir runs/mine"])
def test_the_quickstart_refuses_a_workdir_that_only_training_would_get(clone, given):
    shutil.copy(REPOSITORY / "launch/quickstart.sh", clone.folder / "launch")
    status, stdout, stderr = clone.run(f"bash launch/quickstart.sh {given}")
    assert (status, stdout, clone.made) == (2, "", [])
    (line,) = stderr.splitlines()
    assert line.startswith("birdie-jax: found --workdir") and "WORKDIR=FOLDER" in line


def broken(clone, how):
    """Break the environment of a clone in one of the ways of `FAULTS`."""
    python, venv = clone.venv / "bin/python", clone.venv
    match how:
        case "half made":
            (venv / ".making").touch()
        case "without scripts":
            (venv / "bin/activate").unlink()
        case "without pip":
            (venv / "bin/no-pip").touch()
        case "dangling":
            python.unlink()
            python.symlink_to("/no/such/python3")
        case "other processor":
            python.write_bytes(b"\x7fELF of another machine")
        case "other machine":
            (venv / ".made-for").write_text("Linux m68k in /elsewhere\n")
        case "other version":
            (venv / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.10.4\n")
        case "moved":
            clone.folder = clone.folder.rename(clone.folder.with_name("moved"))


FAULTS = {
    "half made": "was left half made",
    "without scripts": "has no pip, or was left half made",
    "without pip": "has no pip, or was left half made",
    "dangling": "has no Python that runs",
    "other processor": "has no Python that runs",
    "other machine": "was made for Linux m68k in /elsewhere, and is used as",
    "other version": "was made by Python 3.10, and its Python is 3.11 now",
    "moved": "was made for",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_environment_that_does_not_work_is_made_anew(clone, fault):
    assert clone.run()[0] == 0
    assert clone.made
    broken(clone, fault)
    status, stdout, stderr = clone.run()
    assert (status, stderr) == (0, "")
    assert stdout.startswith(f"making .venv anew: it {FAULTS[fault]}")
    assert clone.made == ["venv", *INSTALLED]
    assert clone.run() == (0, "", "")


def test_a_failed_creation_leaves_nothing_and_names_the_packages(clone):
    line = clone.refusal(FAKE_VENV="fails")
    assert "python3 cannot make .venv (ensurepip is not available)" in line
    assert "apt install python3-venv" in line
    assert not clone.venv.exists()
    # An empty folder is filled.
    clone.venv.mkdir()
    assert clone.run()[0] == 0


@pytest.mark.usefixtures("enabled_interrupts")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("variable", ["FAKE_VENV", "FAKE_PIP"])
def test_after_a_signal_the_next_command_makes_a_whole_one(clone, variable, sent):
    process = clone.start(**{variable: "waits"})
    # A signal between a shell's fork and exec is lost.
    wait_for(clone.folder / "waiting")
    os.killpg(process.pid, sent)
    process.communicate(timeout=30)
    assert process.returncode != 0
    if variable == "FAKE_VENV" and sent != signal.SIGKILL:
        assert not clone.venv.exists()
    assert clone.made
    status, stdout, _ = clone.run()
    assert status == 0
    assert "installing birdie-jax" in stdout
    assert clone.made == ["venv", *INSTALLED]
    assert clone.run() == (0, "", "")


def test_an_installation_that_pip_gives_up_is_tried_again_in_the_same_environment(clone):
    status, _, stderr = clone.run(FAKE_PIP="fails")
    assert status == 1
    assert stderr.splitlines() == [
        "ERROR: no network",
        "birdie-jax: installing into .venv failed (pip ended with 1); the same command tries again",
    ]
    assert clone.made == ["venv", "pip"]
    assert clone.run()[0] == 0
    assert clone.made == INSTALLED


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link", "link to a folder", "made by uv"])
def test_a_foreign_folder_is_refused_and_kept(clone, kind):
    elsewhere = clone.folder / "elsewhere"
    mine = clone.venv / "mine"
    if kind == "folder":
        clone.venv.mkdir()
        mine.touch()
    elif kind == "file":
        clone.venv.touch()
        mine = clone.venv
    elif kind == "made by uv":
        clone.venv.joinpath("bin").mkdir(parents=True)
        clone.venv.joinpath("pyvenv.cfg").write_text("uv = 0.9\nversion_info = 3.11.9\n")
        shutil.copy(clone.bin / "python3", clone.venv / "bin/python")
        mine.touch()
    else:
        clone.venv.symlink_to(elsewhere)
        if kind == "link to a folder":
            elsewhere.mkdir()
            elsewhere.joinpath("pyvenv.cfg").touch()
            mine.touch()
    line = clone.refusal()
    assert ".venv: " in line
    assert "move it away" in line or "remove" in line
    assert mine.exists() or clone.venv.is_symlink()
    assert not clone.made


def test_a_link_to_a_working_environment_is_used(clone):
    assert clone.run()[0] == 0
    shared = clone.folder.with_name("shared")
    clone.venv.rename(shared)
    shared.joinpath(".made-for").unlink()
    clone.venv.symlink_to(shared)
    assert clone.run() == (0, "", "")
    assert clone.venv.is_symlink()


def test_no_python_or_an_old_one(clone):
    line = clone.refusal(FAKE_VERSION="3.9")
    assert line.startswith("birdie-jax: needs Python 3.11 or newer on PATH; found: ")
    assert line.endswith("bin/python3 (Python 3.9.9)")
    (clone.bin / "python3").unlink()
    assert clone.refusal() == "birdie-jax: needs Python 3.11 or newer on PATH; found: none"


def test_a_newer_python_beside_an_old_one(clone):
    (clone.bin / "python3").write_text("#!/bin/sh\necho Python 2.7.18; exit 1\n")
    clone.add_python("python3.12")
    assert clone.run(FAKE_VERSION="3.12")[0] == 0


@pytest.mark.parametrize("script", [MAKE, FETCH])
def test_two_at_a_time_make_one(clone, script):
    first = clone.start(script, FAKE_SLOW="0.5")
    second = clone.start(script, FAKE_SLOW="0.5")
    outputs = [process.communicate(timeout=30) for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0]
    assert sorted(clone.made) == [*INSTALLED, *([] if script == MAKE else ["pip"]), "venv"]
    assert sum("waiting: another command is making .venv" in stdout for stdout, _ in outputs) == 1


@pytest.mark.parametrize(
    ("driver", "extra"),
    [
        ("580.65.06", "cuda13"),
        ("610.1", "cuda13"),
        ("579.99", "cuda12"),
        ("525.60.13", "cuda12"),
        ("470.2", ""),
        ("", ""),
        ("NVIDIA-SMI has failed", ""),
    ],
)
def test_the_extra_for_the_driver(clone, driver, extra):
    script = 'extra=$(. launch/environment.sh; gpu_extra); echo "<$extra>"'
    assert clone.run(script) == (0, "<>\n", ""), "there is no driver"
    smi = clone.bin / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho '{driver}'\n")
    smi.chmod(0o755)
    status, stdout, stderr = clone.run(script)
    assert (status, stdout) == (0, f"<{extra}>\n")
    assert stderr == (
        "NVIDIA driver 470.2: JAX needs 525 or newer; the CPU is used\n" if driver == "470.2" else ""
    )


def test_without_flock(clone):
    (clone.bin / "flock").unlink()
    assert clone.run(FETCH)[0] == 0


@pytest.mark.parametrize("how", ["fails", "killed"])
def test_a_fetch_that_fails_leaves_no_folder(clone, how):
    assert clone.run()[0] == 0
    status, _, stderr = clone.run(FETCH, FAKE_PIP=how)
    assert status == 1
    assert "birdie-jax: fetching implementations to compare with failed" in stderr
    cache = clone.home / ".cache/birdie_jax"
    assert not [path for path in cache.iterdir() if path.is_dir()]
    status, stdout, _ = clone.run(FETCH)
    assert status == 0
    assert Path(stdout.splitlines()[-1]).is_dir()


def test_parts_of_a_killed_fetch_are_removed(clone):
    assert clone.run(FETCH)[0] == 0
    cache = clone.home / ".cache/birdie_jax"
    (whole,) = (path for path in cache.iterdir() if path.is_dir())
    part = whole.rename(f"{whole}.part")
    assert clone.run(FETCH)[0] == 0
    assert whole.is_dir()
    assert not part.exists()


@pytest.mark.parametrize("ignored", ["", "relative/cache"])
def test_a_relative_cache_path_counts_as_unset(clone, ignored):
    status, stdout, _ = clone.run(FETCH, XDG_CACHE_HOME=ignored)
    assert status == 0
    assert stdout.splitlines()[-1].startswith(f"{clone.home}/.cache/birdie_jax/oracles-")
    elsewhere = clone.home / "elsewhere"
    _, stdout, _ = clone.run(FETCH, XDG_CACHE_HOME=str(elsewhere))
    assert stdout.splitlines()[-1].startswith(f"{elsewhere}/birdie_jax/oracles-")


@pytest.mark.parametrize("home", ["", "relative"])
def test_without_a_home_the_message_names_the_variable(clone, home):
    assert clone.run()[0] == 0
    line = clone.refusal(FETCH, HOME=home)
    assert "neither XDG_CACHE_HOME nor HOME is an absolute path; set one of them" in line


def wait_for(path: Path) -> None:
    for _ in range(500):
        if path.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} did not come")
