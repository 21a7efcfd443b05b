"""The machine of a plan: its compiler, and its devices, which may be absent.

The environment does not include the compilers for TPUs and GPUs, because with libtpu installed JAX looks
for a TPU at every start, and with a CUDA plugin for a GPU. A plan adds their folder to the path when it
needs them.
"""

import contextlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

import jax
from jax.experimental import topologies

from birdie_jax.engine.chips import CHIPS, Chip, chip_of
from birdie_jax.engine.mesh import Device
from birdie_jax.errors import ConfigError, MissingCompilerError, shown
from birdie_jax.storage.cache_folder import cache_folder

# Without these, libtpu queries the cloud's metadata server and warns that it does not answer.
_WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
}
_TPU_PACKAGE = "libtpu==0.0.51"


def compilers_folder() -> Path:
    """Return the folder for compilers, as in the install command of error messages.

    Raises:
        ConfigError: no folder for caches exists.
    """
    return cache_folder() / f"plan_compilers_jax_{jax.__version__}"


def find_tpu_compiler() -> None:
    """Make `libtpu` importable, and prevent it from looking for a TPU.

    Raises:
        MissingCompilerError: libtpu is not installed.
    """
    for name, value in _WITHOUT_TPU.items():
        os.environ.setdefault(name, value)
    _find("libtpu", "TPUs", _TPU_PACKAGE)


def find_gpu_compiler() -> None:
    """Make the CUDA plugin of this JAX importable.

    Raises:
        MissingCompilerError: the plugin is not installed, or has another version.
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
            # JAX loads every plugin on the path, and a plugin for another version ends the process.
            if not found:
                sys.path.append(folder)
                importlib.invalidate_caches()
    if mismatched:
        raise MissingCompilerError(
            f"the compilers in {' and '.join(mismatched)} are for another version of JAX than this "
            f"{jax.__version__}; {_install_command(packages)}"
        )
    if not _is_importable(module):
        missing = MissingCompilerError(
            f"the compiler for {machines} is not installed; {_install_command(packages)}"
        )
        missing.packages = tuple(packages.split())
        raise missing


def _folders_of_other_versions(folders: Iterable[str]) -> list[str]:
    """Return the folders that have a CUDA plugin for another version of JAX."""
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
    return f"install it with: {shlex.join(_pip(packages.split()))}"


def _pip(packages: Sequence[str]) -> list[str]:
    target = f"--target={compilers_folder()}"
    return [sys.executable, "-m", "pip", "install", "--no-deps", target, *packages]


def install_compiler(packages: Sequence[str]) -> None:
    """Download packages with pip, which prints their sizes, into `compilers_folder`.

    Raises:
        MissingCompilerError: pip failed.
    """
    command = _pip(packages)
    if subprocess.run(command, check=False).returncode:
        raise MissingCompilerError(f"pip could not install {' '.join(packages)}: {shlex.join(command)}")


ALLOWED = (
    "v4:4x4x4 and v5p:4x4x4 (chips along three dimensions), v5e:16x16 and v6e:16x16 (along two), each with "
    "',slices=2' for slices joined by a network; h200:2x8 and h100:2x8 (hosts and GPUs of each); cpu and "
    "cpu:8 (devices of this machine); a Google Cloud slice name such as v5p-128"
)
# Both cores of a chip are one device, as in JAX on Cloud TPUs.
_CHIP_OPTIONS = {"v4": {"chip_config_name": "megacore"}}
# The device properties that XLA requires, as the CUDA driver reports them for an H200. An H100 has
# the same multiprocessors.
_GPU_TARGET = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth} l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: {memory} shared_memory_per_block_optin: 232448
  cuda_compute_capability {{ major: 9 }} registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} runtime_version {{ major: 12 minor: 8 }}
device_description_str: "{title}"
"""
_GPU_MEMORY = {"h100": 85_000_000_000, "h200": 150_000_000_000}


def gpu_target(name: str) -> str:
    """Return the device properties that XLA requires of an absent GPU, by its key in `CHIPS`."""
    chip = CHIPS[name]
    return _GPU_TARGET.format(
        bandwidth=int(chip.memory_bandwidth), memory=_GPU_MEMORY[name], title=chip.title
    )


# More devices than any machine has. JAX creates an object for each device.
_MAX_DEVICES = 1 << 17
_MAX_DIGITS = 9


class DeviceLocation(NamedTuple):
    """The location of a device.

    Attributes:
        domain: the number of the slice or host; links join the devices within it.
        coordinates: the coordinates in the grid of links; empty without a grid.
    """

    domain: int
    coordinates: tuple[int, ...]


class Topology(NamedTuple):
    """Devices that a program can be compiled for.

    Attributes:
        name: the name of the topology, as in --topology.
        chip: the figures of a device; None for the CPU, which has none.
        devices: the devices of JAX.
        shape: the extents of the grid of links of a slice; empty without a grid.
    """

    name: str
    chip: Chip | None
    devices: tuple[Device, ...]
    shape: tuple[int, ...]

    @property
    def known_chip(self) -> Chip:
        """The figures of a device.

        Raises:
            ValueError: the figures of this topology's devices are unknown.
        """
        if self.chip is None:
            raise ValueError(f"topology {self.name}: the figures of its devices are unknown")
        return self.chip

    @property
    def slices(self) -> int:
        """The number of slices of a TPU; 1 for other devices."""
        return len({self.location(device).domain for device in self.devices}) if self.shape else 1

    def location(self, device: Device) -> DeviceLocation:
        """Return the location of a device."""
        if self.shape:
            coordinates = tuple(device.coords[: len(self.shape)])
            return DeviceLocation(getattr(device, "slice_index", 0), coordinates)
        return DeviceLocation(device.process_index, ())

    def is_ring(self, dimension: int) -> bool:
        """Return whether the links of a dimension of the grid close to a ring."""
        return self.known_chip.is_ring(self.shape[dimension], self.shape)


def make_topology(name: str, log: Callable[[str], None] | None = None) -> Topology:
    """Return the topology of a name such as "v5p:4x4x4".

    Args:
        name: the name.
        log: receives a line about the download of a missing compiler; None: does not download.

    Raises:
        ConfigError: the topology is unknown; the message lists the allowed ones.
        MissingCompilerError: its compiler is not installed; the message has the install command.
    """
    try:
        return _make_topology(name)
    except MissingCompilerError as missing:
        if log is None or not missing.packages:
            raise
        packages = missing.packages
    log(f"{name}: downloading its compiler, once, into {compilers_folder()}: {' '.join(packages)}")
    install_compiler(packages)
    return _make_topology(name)


def attached_topology(devices: Sequence[Device]) -> Topology:
    """Return the topology of attached devices, without figures if the chip is unknown."""
    chip = chip_of(devices[0].device_kind)
    shape: tuple[int, ...] = ()
    if chip is not None and not chip.is_gpu:
        coordinates = [device.coords[: chip.grid_dimensions] for device in devices]
        shape = tuple(max(along) + 1 for along in zip(*coordinates, strict=True))
    return Topology("attached", chip, tuple(devices), shape)


def _make_topology(name):
    chip, extents, slices = _parse(name)
    if chip == "cpu":
        return Topology(name, None, tuple(_cpu_devices(name, extents)), ())
    if CHIPS[chip].is_gpu:
        hosts, gpus = extents
        find_gpu_compiler()
        shape = f"1x{hosts}x{gpus}"
        found = topologies.get_topology_desc(shape, "cuda", target_config=gpu_target(chip), topology=shape)
        return Topology(name, CHIPS[chip], tuple(found.devices), ())
    find_tpu_compiler()
    options = _CHIP_OPTIONS.get(chip, {}) | ({"num_slices": slices} if slices > 1 else {})
    try:
        found = topologies.get_topology_desc(
            f"{chip}:{'x'.join(map(str, extents))}", platform="tpu", **options
        )
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raise _refusal(name, str(error).splitlines()[0]) from error
    return Topology(name, CHIPS[chip], tuple(found.devices), extents)


# See https://cloud.google.com/tpu/docs: names of v4 and v5p count cores, two per chip; others count chips.
_ACCELERATOR_TYPES = {"v4": ("v4", 2), "v5p": ("v5p", 2), "v5litepod": ("v5e", 1), "v6e": ("v6e", 1)}


def _with_shape(name: str) -> str:
    """Return "v5p:4x4x4" for "v5p-128", Google Cloud's name of a slice, and other names unchanged.

    The slice has its default shape: its extents are powers of two, as equal as possible, in ascending
    order, except that 1 is last.

    Raises:
        ConfigError: the number of chips is not a power of two.
    """
    found = re.fullmatch(r"([a-z0-9]+)-(\d+)(,slices=\d+)?", name, re.ASCII)
    if found is None or found[1] not in _ACCELERATOR_TYPES or len(found[2]) > _MAX_DIGITS:
        return name
    chip, parts = _ACCELERATOR_TYPES[found[1]]
    chips, rest = divmod(int(found[2]), parts)
    if rest or chips.bit_count() != 1:
        raise _refusal(name, "only a power of two of chips has a default shape")
    dimensions = CHIPS[chip].grid_dimensions
    doublings, more = divmod(chips.bit_length() - 1, dimensions)
    extents = [2 ** (doublings + (number >= dimensions - more)) for number in range(dimensions)]
    extents.sort(key=lambda extent: extent == 1)
    return f"{chip}:{'x'.join(map(str, extents))}{found[3] or ''}"


def _parse(name: str) -> tuple[str, tuple[int, ...], int]:
    pattern = r"([a-z0-9]+)(?::(\d+(?:x\d+)*))?(?:,slices=(\d+))?"
    found = re.fullmatch(pattern, _with_shape(name), re.ASCII)
    if found is None or any(len(digits) > _MAX_DIGITS for digits in re.findall("[0-9]+", name)):
        raise _refusal(name)
    chip, shape, slices = found.groups()
    if chip != "cpu" and chip not in CHIPS:
        raise _refusal(name, f"chip {shown(chip, 60)} is unknown")
    extents = tuple(int(extent) for extent in shape.split("x")) if shape else ()
    if 0 in extents or slices == "0":
        raise _refusal(name, "an extent is 0")
    known = CHIPS.get(chip)
    dimensions = (0, 1) if known is None else (known.grid_dimensions or 2,)
    if len(extents) not in dimensions:
        wanted = " or ".join(map(str, dimensions))
        raise _refusal(name, f"its shape has {len(extents)} dimensions instead of {wanted}")
    if slices and (known is None or known.is_gpu):
        raise _refusal(name, f"{chip} has no slices")
    if known is not None:
        in_domain, where = (extents[1:], "a host") if known.is_gpu else (extents, "a slice")
        if prod(in_domain) > known.max_devices:
            raise _refusal(name, f"{where} has at most {known.max_devices} of them, not {prod(in_domain)}")
    devices = prod(extents) * int(slices or 1)
    if devices > _MAX_DEVICES:
        raise _refusal(name, f"it has {devices:,} devices, more than {_MAX_DEVICES:,}")
    return chip, extents, int(slices or 1)


def _refusal(name: str, reason: str = "") -> ConfigError:
    because = f" ({reason})" if reason else ""
    return ConfigError(f"--topology: found {shown(name)}{because}; allowed: {ALLOWED}")


def _cpu_devices(name: str, extents: Sequence[int]) -> Sequence[Device]:
    if extents:
        # JAX refuses this once its devices exist.
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", prod(extents))
    devices = jax.devices("cpu")
    wanted = prod(extents) if extents else len(devices)
    if len(devices) < wanted:
        raise ConfigError(
            f"--topology: found {name!r}, and this process has {len(devices)} CPU devices; "
            "allowed: at most as many, because JAX has already created its devices"
        )
    return devices[:wanted]
