"""Where the compilers for machines that are not there are found.

They are kept out of the environment of the program: with libtpu beside it, JAX looks for a TPU at every
start, and a CUDA plugin for a GPU. A folder of their own is put on the path when a plan asks for it.
"""

import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import jax

# It would otherwise ask the cloud's metadata server for all this, and complain.
_NO_TPU_HERE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
}
_TPU_PACKAGE = "libtpu==0.0.51"


class MissingCompiler(RuntimeError):  # noqa: N818 - told to the user as it is
    """A compiler is not installed; the message tells the command that installs it."""


def compilers_folder() -> Path:
    """Return the folder that the command in the messages installs compilers into."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return cache / "birdie_jax" / f"plan_compilers_jax_{jax.__version__}"


def find_tpu_compiler() -> None:
    """Make `libtpu` importable, and keep it from looking for a TPU.

    Raises:
        MissingCompiler: it is nowhere.
    """
    for name, value in _NO_TPU_HERE.items():
        os.environ.setdefault(name, value)
    _find("libtpu", "TPUs", _TPU_PACKAGE)


def find_gpu_compiler() -> None:
    """Make the CUDA plugin of this JAX importable.

    Raises:
        MissingCompiler: it is nowhere, or of another version.
    """
    version = jax.__version__
    packages = f"jax-cuda13-pjrt=={version} jax-cuda13-plugin=={version} nvidia-cuda-nvcc nvidia-nvvm"
    _find("jax_plugins.xla_cuda13", "NVIDIA GPUs", packages)


def _find(module: str, machines: str, packages: str) -> None:
    unfit = _of_another_jax(path for path in sys.path if path)
    for folder in (os.environ.get("BIRDIE_COMPILERS", ""), str(compilers_folder())):
        if _is_there(module) and not unfit:
            return
        if folder and Path(folder).is_dir() and folder not in sys.path:
            found = _of_another_jax([folder])
            unfit += found
            # JAX loads every plugin that it sees, and one of another version ends the process.
            if not found:
                sys.path.append(folder)
                importlib.invalidate_caches()
    if unfit:
        raise MissingCompiler(
            f"the compilers in {' and '.join(unfit)} are of another version than this JAX "
            f"{jax.__version__}; {_how_to_install(packages)}"
        )
    if not _is_there(module):
        raise MissingCompiler(f"the compiler for {machines} is not installed; {_how_to_install(packages)}")


def _of_another_jax(folders: Iterable[str]) -> list[str]:
    """Return the folders with CUDA plugins of other versions of JAX."""
    found = []
    for folder in folders:
        for info in Path(folder).glob("jax_cuda*_plugin-*.dist-info"):
            version = info.name.removesuffix(".dist-info").rpartition("-")[2]
            if version != jax.__version__:
                found.append(folder)
    return found


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _how_to_install(packages: str) -> str:
    pip = f"{sys.executable} -m pip install --no-deps --target={compilers_folder()}"
    return f"install it with: {pip} {packages}"
