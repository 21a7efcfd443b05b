"""Where the compilers for TPUs and GPUs are found on a machine that has none.

They are kept out of the program's environment: with libtpu in it, JAX looks for a TPU at every start, and
with a CUDA plugin for a GPU. A folder of their own is added to the path when a plan needs it.
"""

import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import jax

from birdie_jax.storage.cache_folder import cache_folder

# Without these libtpu asks the metadata server of the cloud, and warns that there is none.
_WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
}
_TPU_PACKAGE = "libtpu==0.0.51"


class MissingCompilerError(RuntimeError):
    """A compiler is not installed; the message has the command that installs it."""


def compilers_folder() -> Path:
    """Return the folder that the command in the messages installs compilers into.

    Raises:
        ConfigError: there is no folder for caches.
    """
    return cache_folder() / f"plan_compilers_jax_{jax.__version__}"


def find_tpu_compiler() -> None:
    """Make `libtpu` importable, and keep it from looking for a TPU.

    Raises:
        MissingCompilerError: libtpu is not found.
    """
    for name, value in _WITHOUT_TPU.items():
        os.environ.setdefault(name, value)
    _find("libtpu", "TPUs", _TPU_PACKAGE)


def find_gpu_compiler() -> None:
    """Make the CUDA plugin of this JAX importable.

    Raises:
        MissingCompilerError: the plugin is not found, or is of another version.
    """
    version = jax.__version__
    packages = f"jax-cuda13-pjrt=={version} jax-cuda13-plugin=={version} nvidia-cuda-nvcc nvidia-nvvm"
    _find("jax_plugins.xla_cuda13", "NVIDIA GPUs", packages)


def _find(module: str, machines: str, packages: str) -> None:
    mismatched = _folders_of_other_versions(path for path in sys.path if path)
    for find_folder in (lambda: os.environ.get("BIRDIE_COMPILERS", ""), lambda: str(compilers_folder())):
        if _is_importable(module) and not mismatched:
            return
        folder = find_folder()
        if folder and Path(folder).is_dir() and folder not in sys.path:
            found = _folders_of_other_versions([folder])
            mismatched += found
            # JAX loads every plugin that it sees, and one of another version ends the process.
            if not found:
                sys.path.append(folder)
                importlib.invalidate_caches()
    if mismatched:
        raise MissingCompilerError(
            f"the compilers in {' and '.join(mismatched)} are of another version than this JAX "
            f"{jax.__version__}; {_install_command(packages)}"
        )
    if not _is_importable(module):
        raise MissingCompilerError(
            f"the compiler for {machines} is not installed; {_install_command(packages)}"
        )


def _folders_of_other_versions(folders: Iterable[str]) -> list[str]:
    """Return those folders that have a CUDA plugin for another version of JAX."""
    found = []
    for folder in folders:
        for info in Path(folder).glob("jax_cuda*_plugin-*.dist-info"):
            version = info.name.removesuffix(".dist-info").rpartition("-")[2]
            if version != jax.__version__:
                found.append(folder)
    return found


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _install_command(packages: str) -> str:
    pip = f"{sys.executable} -m pip install --no-deps --target={compilers_folder()}"
    return f"install it with: {pip} {packages}"
