"""Automatic sizes depend only on the configuration and the machine."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest

from birdie_jax.config import Config, MeshConfig, ModelConfig
from birdie_jax.engine import automatic_sizes
from birdie_jax.engine.automatic_sizes import (
    Machine,
    choose_accumulation_steps,
    choose_fsdp,
    describe_machine,
)
from birdie_jax.engine.mesh import fill_in_sizes
from birdie_jax.errors import ConfigError
from tests.pages.hardware import FakeDevice, devices_of

LARGE = Config()  # 1.4B parameters, 21 GiB with gradients and optimizer state
SMALL = replace(LARGE, model=ModelConfig(layers=1, features=32, state=16, mlp_features=16))


def on(kind: str, devices: int, slices: int = 1, ring: int = 1) -> Machine:
    return Machine("cpu" if kind == "cpu" else "tpu", kind, devices, slices, ring)


@pytest.mark.parametrize(
    ("config", "machine", "fsdp"),
    [
        (LARGE, on("TPU v5", 64), 1),
        (LARGE, on("TPU v4", 64), 2),
        (LARGE, on("TPU v5 lite", 256), 4),
        (LARGE, on("NVIDIA H100 80GB HBM3", 8), 1),
        (LARGE, on("NVIDIA A100-SXM4-40GB", 20), 2),
        # No more than divides the devices, those of a slice, and the features.
        (LARGE, on("TPU v5 lite", 6), 2),
        (LARGE, on("TPU v5 lite", 16, slices=8), 2),
        (LARGE, on("TPU v5 lite", 3), 1),
        (replace(LARGE, model=replace(LARGE.model, features=2046)), on("TPU v5 lite", 256), 2),
        # Other axes take their devices, and `tensor` its part of the parameters, first.
        (replace(LARGE, mesh=MeshConfig(tensor=2)), on("TPU v5 lite", 256), 2),
        (replace(LARGE, mesh=MeshConfig(sequence=8)), on("TPU v5 lite", 16), 2),
        # Around a whole ring of links, or not at all.
        (LARGE, on("TPU v5 lite", 256, ring=16), 16),
        (LARGE, on("TPU v4", 64, ring=4), 4),
        (LARGE, on("TPU v5", 64, ring=4), 1),
        (replace(LARGE, model=replace(LARGE.model, features=2056)), on("TPU v5 lite", 256, ring=16), 4),
        (SMALL, on("TPU v5 lite", 256), 1),
        (LARGE, on("cpu", 8), 1),
    ],
)
def test_the_smallest_power_of_two_that_leaves_half_of_the_memory(config, machine, fsdp):
    assert choose_fsdp(config, 0, machine).size == fsdp


def test_the_share_of_memory_is_where_the_choice_changes(monkeypatch):
    machine = on("TPU v5", 64)
    state = 16 * choose_parameters(LARGE)
    for memory, fsdp in ((2 * state, 1), (2 * state - 16, 2)):
        monkeypatch.setattr(automatic_sizes, "listed_memory", lambda kind, memory=memory: memory)
        assert choose_fsdp(LARGE, 0, machine).size == fsdp


def choose_parameters(config: Config) -> int:
    reason = choose_fsdp(config, 0, on("TPU v5", 1)).reason
    return int(reason.split("16 bytes for each of ")[1].split(" ")[0].replace(",", ""))


def test_a_larger_vocabulary_counts():
    rows = choose_parameters(LARGE)
    assert choose_fsdp(LARGE, 1_000_064, on("TPU v5", 64)).size == 2
    assert choose_parameters(replace(LARGE, data=replace(LARGE.data, vocab_size=64_000))) > rows


def test_the_choice_uses_the_properties_of_devices():
    devices = devices_of("v5e-256") + [FakeDevice("tpu", "TPU v5 lite", 1)] * 256
    assert describe_machine(devices) == Machine("tpu", "TPU v5 lite", 512, 2)


@pytest.mark.parametrize(
    ("kind", "extents", "ring"),
    [
        ("TPU v5 lite", (16, 16, 1), 16),
        ("TPU v5 lite", (8, 16, 1), 16),
        ("TPU v6 lite", (8, 8, 1), 1),
        ("TPU v5", (4, 4, 8), 4),
        ("TPU v4", (2, 4, 4), 1),
    ],
)
def test_the_smallest_ring_is_that_of_the_slice(kind, extents, ring):
    devices = [
        SimpleNamespace(platform="tpu", device_kind=kind, slice_index=0, coords=coordinates)
        for coordinates in product(*map(range, extents))
    ]
    assert describe_machine(devices).ring == ring


@pytest.mark.parametrize(
    ("mesh", "sizes"),
    [
        (MeshConfig(), (64, 4, 1, 1)),
        (MeshConfig(fsdp=1), (256, 1, 1, 1)),
        (MeshConfig(fsdp=-1, data=16), (16, 16, 1, 1)),
        (MeshConfig(data=256), (256, 1, 1, 1)),
        (MeshConfig(tensor=2), (64, 2, 2, 1)),
    ],
)
def test_a_requested_mesh_is_used(mesh, sizes):
    found = fill_in_sizes(replace(LARGE, mesh=mesh), 0, devices_of("v5e-256"))
    assert tuple(found.mesh_sizes.values()) == sizes


def test_a_numeric_data_size_is_used():
    with pytest.raises(ConfigError) as error:
        fill_in_sizes(replace(LARGE, mesh=MeshConfig(data=64)), 0, devices_of("v5e-256"))
    assert str(error.value) == (
        "config.mesh: found data=64, fsdp=1, tensor=1, sequence=1; allowed: sizes whose product is 256, "
        "the number of devices, such as data=256 or fsdp=4 or tensor=4 or sequence=4"
    )


def explain(config: Config, devices: list[FakeDevice]) -> str:
    return fill_in_sizes(config, 0, devices).explanation


def with_parts(config: Config, parts: int) -> Config:
    return replace(config, train=replace(config.train, accumulation_steps=parts))


DEEP = replace(LARGE, model=replace(LARGE.model, layers=4 * 24))
DEEP_IN_FLOAT32 = replace(DEEP, model=replace(DEEP.model, residual_dtype="float32"))


@pytest.mark.parametrize(
    ("config", "row_shards", "kind", "parts"),
    [
        (LARGE, 256, "TPU v5 lite", 1),
        (LARGE, 64, "TPU v4", 1),
        # 64 rows a device: 32 of them are 65,536 tokens.
        (LARGE, 8, "NVIDIA H100 80GB HBM3", 2),
        (LARGE, 8, "NVIDIA H200", 1),
        # The residual stream of 96 layers, 384 KiB a token, leaves room for 12 rows.
        (DEEP, 8, "NVIDIA H100 80GB HBM3", 8),
        # In float32 for 6 rows, and 4 is the next divisor of 64.
        (DEEP_IN_FLOAT32, 8, "NVIDIA H100 80GB HBM3", 16),
        # A divisor of 26 rows.
        (replace(LARGE, batching=replace(LARGE.batching, rows=520)), 20, "TPU v4", 2),
        (replace(LARGE, batching=replace(LARGE.batching, rows=2, length=65_536)), 1, "TPU v5", 2),
        (replace(LARGE, batching=replace(LARGE.batching, rows=2, length=1_048_576)), 1, "TPU v5", 2),
        (replace(LARGE, mesh=MeshConfig(sequence=4)), 8, "TPU v5 lite", 4),
        (LARGE, 8, "cpu", 16),
    ],
)
def test_the_fewest_parts_of_few_tokens(config, row_shards, kind, parts):
    assert choose_accumulation_steps(config, row_shards, on(kind, 8)).size == parts


def test_only_automatic_parts_are_filled_in():
    devices = devices_of("H100x8")
    for asked, parts in ((0, 2), (1, 1), (64, 64)):
        assert fill_in_sizes(with_parts(LARGE, asked), 0, devices).config.train.accumulation_steps == parts
    filled = fill_in_sizes(with_parts(LARGE, 0), 0, devices).config
    assert filled == replace(with_parts(LARGE, 2), mesh=MeshConfig(fsdp=1))
    again = fill_in_sizes(filled, 0, devices)
    assert (again.config, again.explanation) == (filled, "")


def test_the_rules_are_printed_in_one_line():
    parameters = choose_parameters(LARGE)
    gib = 16 * parameters / 4 / 2**30
    assert explain(with_parts(LARGE, 0), devices_of("v5e-256")) == (
        "mesh data=64, fsdp=4 of 256 x TPU v5 lite, accumulation_steps=1; config.mesh.fsdp = 0 means "
        "the smallest power of two with which parameters, gradients and optimizer state, 16 bytes for each "
        f"of {parameters:,} parameters, take at most 50% of a device's 15.75 GiB: they take {gib:.2f} GiB; "
        "config.train.accumulation_steps = 0 means the fewest parts with which a device computes at most "
        "16,128 tokens, or one row, at a time: 2 rows of 2,048; 1,024 tokens for each GiB of a "
        "device's 15.75 GiB, and the residual streams of all layers may fill at most 12.5% of it"
    )
    assert explain(LARGE, [FakeDevice("cpu", "cpu", 0)] * 8) == (
        "mesh data=8 of 8 x cpu, accumulation_steps=1; config.mesh.fsdp = 0 means 1 on a CPU, whose "
        "devices share one memory"
    )


def test_an_unlisted_kind_and_a_too_large_model_are_reported():
    line = explain(LARGE, [FakeDevice("gpu", "NVIDIA Unheard Of", 0)] * 2)
    assert line.startswith("mesh data=1, fsdp=2 of 2 x NVIDIA Unheard Of, ")
    assert "15.75 GiB (assumed: this kind of device is not listed): they take 10.5" in line
    assert line.endswith(", and no larger one divides the devices and model.features")
    # Where nothing is chosen there is nothing to explain.
    for config, devices in ((LARGE, 1), (replace(LARGE, mesh=MeshConfig(fsdp=2)), 8)):
        assert explain(config, [FakeDevice("tpu", "TPU v4", 0)] * devices) == ""
