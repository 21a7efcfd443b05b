"""Right and wrong implementations of a scan."""

from dataclasses import replace

import numpy as np
import pytest

from birdie_jax.config import ModelConfig
from birdie_jax.device_check import scans
from birdie_jax.device_check.scans import check_scans, distances, packed_batch, scan_candidates
from birdie_jax.models.gated_deltanet import GatedDeltaNetConfig
from birdie_jax.models.mamba2 import Mamba2Config
from pallas_kernels.matrix_state import token_tpu

MODEL = ModelConfig(
    name="gated_ssm_plus", layers=2, features=16, state=16, mlp_features=32, dtype="float32", remat="auto"
)


@pytest.mark.parametrize(
    ("name", "platform", "found"),
    [
        ("gated_ssm_plus", "cpu", ("xla",)),
        ("mamba", "tpu", ("xla", "pallas_tpu")),
        # Mosaic requires an attached GPU.
        ("griffin", "gpu", ("xla",)),
        ("mamba2", "tpu", ("xla", "pallas_tpu")),
        ("gated_deltanet", "gpu", ("xla", "pallas_gpu")),
        ("transformer", "tpu", ()),
        ("bigs", "tpu", ()),
    ],
)
def test_candidates_depend_on_model_and_platform(name, platform, found):
    assert scan_candidates(replace(MODEL, name=name), platform) == found


def test_rows_have_contexts_resets_and_padding():
    batch = packed_batch(3, 64)
    assert batch.segment_ids.max() == 2 and batch.segment_ids[:, -1].max() == 0
    assert batch.bidirectional.any() and not (batch.bidirectional & batch.loss_mask).any()
    assert set(batch.positions[:, [0, 30]].ravel()) == {0}


def test_the_check_separates_right_wrong_and_failing_implementations(monkeypatch):
    arrays = scans._arrays

    def with_a_wrong_one(model, implementation, params, batch):
        found = arrays(model, "xla" if implementation == "wrong" else implementation, params, batch)
        if implementation == "wrong":
            worse = next(name for name in found if "decay" in name or "mixer" in name)
            found[worse] = 1.05 * found[worse]
        return found

    monkeypatch.setattr(scans, "_arrays", with_a_wrong_one)
    xla, wrong, failing = check_scans(MODEL, ("xla", "wrong", "nothing"), rows=1, length=32)
    assert not xla.problem and xla.error < 1e-5 and xla.seconds > 0
    assert wrong.problem.startswith("the gradient of") and "0.05 from float32" in wrong.problem
    assert wrong.seconds is None and failing.seconds is None
    assert "'nothing' is unknown" in failing.problem


def test_decays_by_channel_have_no_kernel():
    sections = (GatedDeltaNetConfig(channel_decay=True),)
    model = replace(MODEL, name="gated_deltanet", sections=sections)
    assert scan_candidates(model, "tpu") == ("xla",)


@pytest.fixture
def few_calls(monkeypatch):
    """Interpreted kernels take long."""
    monkeypatch.setattr(scans, "_ROWS", 1)
    monkeypatch.setattr(scans, "_REPEATS", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("few_calls")
@pytest.mark.parametrize("name", ["gated_ssm_plus", "mamba2"])
def test_a_kernel_passes_in_the_training_types(name):
    sections = (Mamba2Config(head_features=4, state_size=4),)
    model = replace(MODEL, name=name, dtype="bfloat16", scan_dtype="bfloat16", sections=sections)
    found = check_scans(model, ("xla", "pallas_interpret"), rows=1, length=32)
    assert [one.problem for one in found] == ["", ""]
    assert all(1e-4 < one.error < 0.5 for one in found)


@pytest.mark.slow
@pytest.mark.usefixtures("few_calls")
def test_a_wrong_kernel_of_a_single_token_is_found(monkeypatch):
    read_token = token_tpu.read_token

    def wrong(*arguments, **options):
        o, states = read_token(*arguments, **options)
        return o, 1.01 * states

    monkeypatch.setattr(token_tpu, "read_token", wrong)
    model = replace(MODEL, name="gated_deltanet")
    _, kernel = check_scans(model, ("pallas_interpret",), rows=1, length=32)
    assert kernel.problem.startswith("the decoding cache, ") and "is 0.01 from float32" in kernel.problem


def test_distances_are_relative_and_infinite_for_nan():
    reference = {"a": np.array([3.0, 4.0]), "b": np.zeros(2)}
    found = {"a": np.array([3.0, 4.5]), "b": np.array([0.0, np.nan])}
    assert distances(found, reference) == {"a": pytest.approx(0.1), "b": float("inf")}
