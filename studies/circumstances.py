"""Under what circumstances a result was found: date, commit, versions, machine."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from studies.verbs import REPOSITORY, cores

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "sentencepiece", "grain", "orbax-checkpoint")


def circumstances() -> dict[str, Any]:
    """Return date, commit, versions and machine."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "changed_since_commit": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "machine": {
            "processor": _processor(),
            "cores_used": len(cores()),
            "cores": os.cpu_count(),
            "system": platform.platform(),
        },
    }


def _git(*arguments: str) -> str | None:
    """Return what git says of the repository; None where it is none, as in an unpacked archive."""
    try:
        found = subprocess.run(
            ["git", "-C", str(REPOSITORY), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
