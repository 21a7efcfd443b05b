"""Figures of devices, their expected values, and the table of both."""

import json
from dataclasses import replace

import pytest

from birdie_jax.config import parse_config
from birdie_jax.device_check import rates
from birdie_jax.device_check.rates import Measured, host_pipeline, store
from birdie_jax.device_check.scans import CheckedScan
from birdie_jax.device_check.table import as_json, as_text
from birdie_jax.resolve import resolve_run
from tests.micro_config import get_config


def test_a_share_is_measured_over_expected():
    assert Measured("a", 3.0, 4.0, "GB/s", "").share == pytest.approx(0.75)
    assert Measured("a", 4.0, 3.0, "ms", "", smaller_is_better=True).share == pytest.approx(0.75)
    assert Measured("a", 3.0, None, "GB/s", "").share is None
    assert [Measured("a", found, 4.0, "GB/s", "").is_low for found in (3.1, 2.9, None)] == [
        False,
        True,
        True,
    ]


def test_a_store_is_measured_and_left_unchanged(tmp_path):
    written, read = store(str(tmp_path / "new"), 3)
    assert written.found > 0 and read.found > 0 and not written.is_low
    assert not list((tmp_path / "new").iterdir())


def test_a_failing_store_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    (failed,) = store(str(tmp_path / "file"), 0)
    assert failed.found is None and failed.is_low and "file" in failed.advice


def test_arms_that_read_a_corpus_are_measured_on_the_one_text(tmp_path, monkeypatch):
    source = tmp_path / "source.jsonl"
    lines = [json.dumps({"text": f"text {number} and its words " * 40}) for number in range(40)]
    source.write_text("\n".join(lines))
    config = get_config("fixed")
    config.data.cache_dir = str(tmp_path)
    config.data.corpora = {name: {"source": "stdlib"} for name in ("web", "code")}
    config.objectives.arms = {
        "web_lm": {"objective": "causal_lm", "corpora": "web"},
        "copies": {"objective": "copying"},
    }
    prepare_text = rates.prepare_text

    def prepare_small(config, *others):
        data = replace(config.data, source=str(source), vocab_size=300, validation_fraction=0.3)
        return prepare_text(replace(config, data=data), *others)

    monkeypatch.setattr(rates, "prepare_text", prepare_small)
    monkeypatch.setattr(rates, "_HOST_SECONDS", 0.05)
    found = host_pipeline(resolve_run(parse_config(config), 640), needed=None)
    assert found.found and found.found > 0 and not found.is_low


def test_text_and_json():
    scans = [
        CheckedScan("xla", 0.01, "", 0.02),
        CheckedScan("pallas_gpu", 0.5, "output is 0.5 from float32; allowed: at most 0.02", None),
    ]
    measured = [
        Measured("a copy", 1500.0, 3350.0, "GB/s", "look for another program"),
        Measured("a step", 400.0, 390.0, "ms", "", smaller_is_better=True),
        Measured("the store", None, None, "MB/s", "no such bucket"),
    ]
    text = as_text({"devices": "1 x cpu"}, scans, measured)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "devices: 1 x cpu"
    assert "xla: right, 1.0e-02 from float32; layers and gradient: 20 ms" in lines
    assert "pallas_gpu: WRONG: output is 0.5 from float32; allowed: at most 0.02" in lines
    assert "a copy 1,500 GB/s 3,350 GB/s 45% LOW: look for another program" in lines
    assert "a step 400 ms 390 ms 98%" in lines
    assert "the store failed LOW: no such bucket" in lines
    found = as_json({"devices": "1 x cpu"}, scans, measured)
    assert [one["low"] for one in found["measured"]] == [True, False, True]
    assert found["scans"][1]["problem"].startswith("output")
