"""Writes hashes.txt from constraints.txt: `python -m tests.hashes`.

It queries PyPI through uv (`pip install uv`) for the files of each pinned version and the packages of each
extra. A block of hashes.txt is a requirement with the hashes of its files. The line before it has the
package's name in constraints.txt and its sets: [base], for every installation, or an extra, such as [gcs].
"""

import configparser
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
# Its build for CPUs, which the tests use, is not on PyPI; PyPI's build needs CUDA libraries.
LEFT_OUT = frozenset({"torch"})
# Platforms for which JAX has no wheels; uv names their packages too.
_ELSEWHERE = re.compile(r"sys_platform == '(win32|emscripten)'")
_WHEEL = re.compile(
    r".*-(?:py2\.py3|py3(?:1\d+)?|cp31[1-9]|cp3\d+(?=-abi3))-[^-]*(?<!t)-"
    r"(?:any|(?:[\w.]*\.)?(?:manylinux\w*|linux)_(?:x86_64|aarch64)(?:\.\w+)*|macosx_\w+(?:\.macosx_\w+)*)\.whl"
)
_HEAD = (
    "# SHA-256 of the files of the versions in constraints.txt, for Linux, macOS and Python 3.11 or newer.",
    "# Written by `python -m tests.hashes`; launch/environment.sh installs by it.",
)


def normal(name: str) -> str:
    """Return the normalized name of a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, list[str]]:
    """Return the requirements of constraints.txt by the names of their packages."""
    found: dict[str, list[str]] = {}
    for line in (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if match := re.match(r"[\w.-]+(?===)", line):
            found.setdefault(match[0], []).append(re.sub(r" *; *", " ; ", line))
    return found


def extras() -> list[str]:
    """Return the extras of setup.cfg."""
    config = configparser.ConfigParser()
    config.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    return list(config["options.extras_require"])


def main() -> None:
    """Write hashes.txt."""
    pinned = {normal(name): name for name in pins()}
    sets: dict[str, list[str]] = {name: [] for name in pinned}
    base: set[str] = set()
    for extra in ["", *extras()]:
        names = {normal(name) for name in _packages_of(extra)}
        if missing := sorted(names - pinned.keys()):
            print(f"[{extra or 'base'}] is left out: constraints.txt has no {', '.join(missing)}")
            continue
        base = base or names
        for name in names if not extra else names - base:
            sets[name].append(f"[{extra or 'base'}]")
    files = tomllib.loads(_compile("--no-deps", "--format=pylock.toml", "constraints.txt"))["packages"]
    blocks = []
    for name, requirements in pins().items():
        for requirement in requirements if name not in LEFT_OUT else ():
            version = re.sub(r".*==([^ ;]+).*", r"\1", requirement)
            (package,) = (p for p in files if (p["name"], p["version"]) == (normal(name), version))
            hashes = [f"    --hash=sha256:{value}" for value in _hashes(package)]
            blocks.append(
                f"# {' '.join([name, *sets[normal(name)]])}\n" + " \\\n".join([requirement, *hashes])
            )
    text = "\n\n".join(["\n".join(_HEAD), *blocks]) + "\n"
    (REPOSITORY / "hashes.txt").write_text(text, encoding="utf-8")


def _packages_of(extra: str) -> list[str]:
    flags = [f"--extra={extra}"] if extra else []
    lines = _compile("--constraint=constraints.txt", *flags, "setup.py").splitlines()
    return [line.partition("==")[0] for line in lines if "==" in line and not _ELSEWHERE.search(line)]


def _compile(*arguments: str) -> str:
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version=3.11"]
    command += ["--no-header", "--no-annotate", *arguments]
    try:
        done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True)
    except FileNotFoundError:
        sys.exit("needs uv: pip install uv")
    return done.stdout


def _hashes(package: dict[str, Any]) -> list[str]:
    wheels = [w for w in package.get("wheels", ()) if _WHEEL.fullmatch(w["url"].rsplit("/", 1)[1])]
    chosen = [*wheels, *([package["sdist"]] if "sdist" in package else [])]
    return sorted(file["hashes"]["sha256"] for file in chosen)


if __name__ == "__main__":
    main()
