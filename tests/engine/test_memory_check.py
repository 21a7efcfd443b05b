"""A run that certainly does not fit into memory is refused with both numbers; any other run is not."""

import re
from dataclasses import replace
from types import SimpleNamespace

import jax
import pytest

from birdie_jax.config import Config
from birdie_jax.engine import memory_check
from birdie_jax.engine.automatic_sizes import count_parameters, listed_memory
from birdie_jax.engine.memory_check import (
    check_memory,
    device_memory,
    device_needs,
    host_memory,
    host_needs,
)
from birdie_jax.errors import ConfigError
from birdie_jax.vocabulary import padded_vocab_size

GIB = 2**30
ONE = {"data": 1, "fsdp": 1, "tensor": 1, "sequence": 1}
SMALL = replace(
    Config(),
    model=replace(Config().model, layers=2, features=64, state=32, mlp_features=32),
    data=replace(Config().data, vocab_size=512),
    batching=replace(Config().batching, rows=8, length=128),
    eval=replace(Config().eval, rows=2, batches_per_arm=1),
)


def with_field(config: Config, field: str, value: object) -> Config:
    section, name = field.split(".")
    return replace(config, **{section: replace(getattr(config, section), **{name: value})})


def refusal(config: Config, memory: int, monkeypatch, devices: int = 1, mesh=ONE) -> str | None:
    device = SimpleNamespace(platform="cpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [device] * devices)
    monkeypatch.setattr(memory_check, "host_memory", lambda: memory)
    try:
        check_memory(config, 8, mesh)
    except ConfigError as error:
        return str(error)
    return None


PARAMETERS = "the parameters with their gradients and optimizer state"
INPUTS = "the inputs of all blocks, which the backward pass reads"


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("model.layers", 60_000, PARAMETERS),
        ("model.features", 1_000_000, PARAMETERS),
        ("data.vocab_size", 10_000_000, PARAMETERS),
        ("batching.rows", 1_000_000, INPUTS),
        ("batching.length", 10_000_000, INPUTS),
        ("batching.lookahead", 65_536, "the states of the row streams"),
        ("eval.rows", 500_000, "the validation batches of all arms"),
        ("eval.batches_per_arm", 60_000, "the validation batches of all arms"),
        ("train.num_steps", 60_000_000, "the bandit's history of all decisions"),
    ],
)
def test_the_field_that_needs_it_is_named(field, value, what, monkeypatch):
    config = SMALL
    if field == "batching.lookahead":
        config = with_field(config, "batching.rows", 10_000)
    if field == "train.num_steps":
        config = with_field(config, "bandit.every_steps", 1)
    message = refusal(with_field(config, field, value), 4 * GIB, monkeypatch)
    assert re.fullmatch(
        rf"config\.{field}: found {value}; allowed: what fits into memory: the run needs at least "
        rf"[\d,.]+ GiB, [\d,.]+ GiB of it for {what}; this machine has 4\.0 GiB",
        message or "",
    )
    assert refusal(config, 4 * GIB, monkeypatch) is None


def test_the_limit_is_where_the_sum_is(monkeypatch):
    needs = [*device_needs(SMALL, 8, ONE), *host_needs(SMALL, 8, 1)]
    total = sum(need.bytes for need in needs)
    assert refusal(SMALL, int(total) + 1, monkeypatch) is None
    assert refusal(SMALL, int(total) - 1, monkeypatch) is not None
    # Each device of a CPU has a copy.
    assert refusal(SMALL, int(total) + 1, monkeypatch, devices=2) is not None


def test_parameters_are_counted_with_gradients_and_moments_and_divided_by_the_mesh():
    parameters = count_parameters(SMALL.model, padded_vocab_size(512))
    assert device_needs(SMALL, 8, ONE)[0].bytes == 16 * parameters
    assert device_needs(SMALL, 8, ONE | {"fsdp": 4, "tensor": 2})[0].bytes == 2 * parameters


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("gated_ssm", ["state"]),
        ("gated_ssm_plus", ["state", "mlp_features"]),
        ("bigs", ["mlp_features"]),
        ("stack_attention", ["mlp_features"]),
    ],
)
def test_the_fields_that_are_named_are_those_that_parameters_grow_with(name, widths):
    config = replace(SMALL, model=replace(SMALL.model, name=name))
    fields = ("layers", "features", *widths)
    named = (*(f"model.{field}" for field in fields), "data.vocab_size")
    parameters = device_needs(config, 8, ONE)[0]
    assert parameters.fields == named
    for field in ("layers", "features", "state", "mlp_features"):
        double = 2 * getattr(config.model, field)
        larger = replace(config, model=replace(config.model, **{field: double}))
        assert (device_needs(larger, 8, ONE)[0].bytes > parameters.bytes) == (field in fields)


@pytest.mark.parametrize("field", ["data.prepared", "data.tokenizer"])
def test_a_vocabulary_that_is_not_read_yet_is_not_counted(field):
    (known, *_), (unknown, *_) = (
        device_needs(c, 8, ONE) for c in (SMALL, with_field(SMALL, field, "there"))
    )
    assert unknown.bytes < known.bytes


def test_an_accelerator_s_own_memory_counts(monkeypatch):
    device = SimpleNamespace(platform="gpu", device_kind="X", memory_stats=lambda: {"bytes_limit": GIB})
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    check_memory(SMALL, 8, ONE)
    with pytest.raises(ConfigError, match=r"a X has 1\.0 GiB$"):
        check_memory(Config(), 8, ONE)
    silent = SimpleNamespace(platform="tpu", device_kind="TPU v4", memory_stats=lambda: None)
    assert device_memory(silent) == listed_memory("TPU v4")
    silent.device_kind = "TPU unheard of"
    assert device_memory(silent) is None


def test_the_memory_of_the_host_and_a_container_s_limit_count(monkeypatch):
    without = host_memory()
    assert without is not None and without > GIB
    monkeypatch.setattr(memory_check, "_cgroup_limits", lambda: [10**6])
    assert host_memory() < without


def test_decisions_that_are_never_taken_cost_nothing(monkeypatch):
    config = with_field(with_field(SMALL, "train.num_steps", 2_000_000_000), "bandit.every_steps", 10**9)
    assert refusal(config, GIB, monkeypatch) is None
