"""Unknown names of topologies are refused with the allowed ones."""

import sys
from types import SimpleNamespace

import jax
import pytest

from birdie_jax.engine.chips import CHIPS, chip_of
from birdie_jax.errors import ConfigError, MissingCompilerError
from birdie_jax.planning import topology
from birdie_jax.planning.topology import (
    Topology,
    _parse,
    attached_topology,
    find_tpu_compiler,
    make_topology,
)

REFUSED = {
    "v9:2x2": "chip 'v9' is unknown",
    "v5p:4x4": "2 dimensions instead of 3",
    "v5p": "0 dimensions instead of 3",
    "v5e:4x4x4": "3 dimensions instead of 2",
    "v5e:0x4": "an extent is 0",
    "v5e:32x32": "a slice has at most 256 of them, not 1024",
    "h200:2x9": "a host has at most 8 of them, not 9",
    "h200:2x8,slices=2": "h200 has no slices",
    "cpu:2x2": "2 dimensions instead of 0 or 1",
    "v5e:4x4,slices=0": "an extent is 0",
    "v5p-7": "only a power of two of chips has a default shape",
    "v5p-6144": "only a power of two of chips has a default shape",
    "v5litepod-512": "a slice has at most 256 of them, not 512",
    "v9-8": "chip",
}


# The default shapes of https://cloud.google.com/tpu/docs/v4, v5p, v5e and v6e.
@pytest.mark.parametrize(
    ("slice_name", "shape"),
    [
        ("v4-8", ("v4", (2, 2, 1), 1)),
        ("v4-64", ("v4", (2, 4, 4), 1)),
        ("v5p-128", ("v5p", (4, 4, 4), 1)),
        ("v5p-1024,slices=2", ("v5p", (8, 8, 8), 2)),
        ("v5litepod-8", ("v5e", (2, 4), 1)),
        ("v5litepod-256", ("v5e", (16, 16), 1)),
        ("v6e-32", ("v6e", (4, 8), 1)),
    ],
)
def test_a_google_cloud_name_gives_the_default_shape(slice_name, shape):
    assert _parse(slice_name) == shape


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_topologies_are_refused(name):
    with pytest.raises(ConfigError) as error:
        make_topology(name)
    message = str(error.value)
    assert message.startswith(f"--topology: found '{name}'")
    assert REFUSED[name] in message
    assert "allowed: v4:4x4x4" in message
    assert "\n" not in message


def test_a_chip_is_found_by_its_jax_name():
    found = {kind: chip_of(kind) for chip in CHIPS.values() for kind in chip.kinds}
    assert len(found) == sum(len(chip.kinds) for chip in CHIPS.values())
    assert found["TPU v5 lite"] is CHIPS["v5e"] and chip_of("cpu") is None


def test_attached_devices_have_the_shape_of_their_coordinates():
    devices = [
        SimpleNamespace(device_kind="TPU v5 lite", coords=(x, y, 0), slice_index=0)
        for x in range(2)
        for y in range(4)
    ]
    found = attached_topology(devices)
    assert (found.chip, found.shape, found.slices) == (CHIPS["v5e"], (2, 4), 1)
    assert attached_topology(jax.devices()[:1]).chip is None


def test_nonsense_is_refused():
    with pytest.raises(ConfigError, match="--topology: found 'so many chips'; allowed: v4"):
        make_topology("so many chips")


def test_more_devices_than_exist_are_refused():
    import jax

    jax.devices()
    with pytest.raises(ConfigError, match=r"'cpu:4096', and this process has .* CPU devices"):
        make_topology("cpu:4096")


def test_a_missing_compiler_is_refused_with_its_install_command(monkeypatch, tmp_path):
    monkeypatch.setenv("BIRDIE_COMPILERS", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("birdie_jax.planning.topology._is_importable", lambda module: False)
    with pytest.raises(MissingCompilerError, match=r"-m pip install --no-deps --target=\S+ libtpu=="):
        find_tpu_compiler()


@pytest.mark.slow
def test_plan_downloads_a_missing_compiler(monkeypatch, tmp_path, capfd):
    """Use a package on disk instead of the compiler."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "setup.py").write_text(
        "from setuptools import setup\nsetup(name='none_such', py_modules=['none_such'])"
    )
    (package / "none_such.py").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("BIRDIE_COMPILERS", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    made = Topology("v5e:2x2", None, (), ())

    def make(name):
        topology._find("none_such", "TPUs", f"--no-build-isolation {package}")
        return made

    monkeypatch.setattr(topology, "_make_topology", make)
    logged = []
    assert make_topology("v5e:2x2", logged.append) is made
    assert logged[0].startswith("v5e:2x2: downloading its compiler, once, into ")
    assert "Successfully installed" in capfd.readouterr().out
    with pytest.raises(MissingCompilerError, match=r"^pip could not install --no-such-option: .* -m pip "):
        topology.install_compiler(["--no-such-option"])
