"""`python -m birdie_jax.plan`: compared with a run, for absent machines, on bad input."""

import json
import os
import sys

import pytest

from tests.forked_verbs import run_commands
from tests.whole_runs import CONFIG, REPOSITORY, finish, run_environment

pytestmark = pytest.mark.slow

COMPILERS = os.environ.get("BIRDIE_COMPILERS", "")
for_machines = pytest.mark.skipif(
    not COMPILERS, reason="BIRDIE_COMPILERS is not set; tests/run.sh fetches the compilers"
)
HEAD_CONFIG = REPOSITORY / "tests" / "finetuning" / "micro_head.py"
# One layer and one loss chunk, because XLA's own count includes the body of a loop once.
NO_LOOPS = {"train.loss_chunk": 128, "batching.rows": 4}


def planned(tmp_path, topology, *arguments, config=str(CONFIG)):
    """Return the plan in JSON and as text; only for CPUs, compile quickly."""
    file = tmp_path / "plan.json"
    flags = run_environment(4)["XLA_FLAGS"] if topology.startswith("cpu") else None
    command = ["plan", f"--config={config}", f"--topology={topology}", f"--json={file}", *arguments]
    ((status, text, errors),) = run_commands([command], XLA_FLAGS=flags)
    assert status == 0, errors[-3000:]
    return json.loads(file.read_text()), text


def test_a_plan_for_this_machine_matches_a_run(tmp_path):
    fields = NO_LOOPS | {"mesh.data": 1, "mesh.fsdp": 2, "mesh.tensor": 2}
    overrides = [f"--config.{name}={value}" for name, value in fields.items()]
    found, text = planned(tmp_path, "cpu:4", "--largest_batch=skip", *overrides)
    values = (f"{name}={value}" for name, value in fields.items())
    command = [sys.executable, "-m", "tests.planning.one_step_run", str(CONFIG), *values]
    status, output = finish(command, devices=4)
    assert status == 0, output[-3000:]
    run = json.loads(output.splitlines()[-1])
    need = found["bytes_per_device"]
    assert (need["parameters"], need["optimizer"]) == (run["parameters"], run["optimizer"])
    assert sum(need[name] for name in ("parameters", "optimizer", "other_state")) == run["state"]
    assert need["total"] == pytest.approx(run["total"], rel=0.05)
    assert found["flops_per_step"] == pytest.approx(run["flops"], rel=0.05)
    assert found["fits"]
    assert "fits: yes" in text
    axes = {one["axes"] for one in found["collectives"]}
    assert axes and axes <= {"fsdp", "tensor", "fsdp*tensor"}


def test_devices_do_not_meet_in_every_chunk_of_a_row(tmp_path):
    """Devices sum the gradient of the carried values once, not 16 times."""
    found, _ = planned(
        tmp_path,
        "cpu:2",
        *("--config.model.name=bigs", "--config.objectives.mixture=masked_lm"),
        *("--config.bandit.policy=fixed", "--config.model.encoder.ssm_state=8"),
        *("--config.model.encoder.positions=1024", "--config.batching.length=1024"),
        *("--config.data.record_tokens=1024", "--config.mesh.data=2", "--config.mesh.fsdp=1"),
        "--largest_batch=skip",
    )
    assert sum(one["times"] for one in found["collectives"]) < 8


def test_compare_shows_several_meshes(tmp_path):
    found, text = planned(
        tmp_path, "cpu:2", "--compare=data=2", "--compare=fsdp=2", "--config.model.features=64"
    )
    replicated, divided = found["plans"]
    assert (replicated["mesh"]["data"], divided["mesh"]["fsdp"]) == (2, 2)
    parameters = [one["bytes_per_device"]["parameters"] for one in found["plans"]]
    assert 0.5 < parameters[1] / parameters[0] < 0.6
    rows = [line.split("|")[1].strip() for line in text.splitlines()]
    assert rows[0] == "mesh"
    assert rows[2:] == ["data=2", "fsdp=2"]


def test_the_largest_batch_is_estimated_from_one_more_compilation(tmp_path):
    found, text = planned(tmp_path, "cpu:2")
    assert text.startswith("mesh data=2 of 2 x cpu, accumulation_steps=1; config.mesh.fsdp = 0 means 1 on")
    assert found["mesh"] == {"data": 2, "fsdp": 1, "tensor": 1, "sequence": 1}
    largest = found["largest_batch"]
    assert largest["compilations"] == 1
    assert not largest["verified"]
    assert largest["rows"] > 2
    assert f"largest batch that fits: {largest['rows']} rows" in text
    documented = (REPOSITORY / "docs" / "plan.md").read_text()
    assert not {key for key in found if f"`{key}`" not in documented}


STAGE = "{'1': {'task': 'phonebook', 'length': 128, 'rows': 2, 'steps': 2}}"
REFUSED = {
    "--topology: found 'v9:2x2' (chip 'v9' is unknown); allowed: v4:4x4x4": ("v9:2x2",),
    "config.mesh: found data=3": ("cpu:1", "--config.mesh.data=3"),
    "--compare: found 'rows=2'; allowed: axis=devices": ("cpu:1", "--compare=rows=2"),
    "--compare: found 'fsdp=²'; allowed: axis=devices": ("cpu:1", "--compare=fsdp=²"),
    "(5,005 characters); allowed: axis=devices": ("cpu:1", f"--compare=fsdp={'9' * 5000}"),
    "--decode: found '0'; allowed: numbers of rows": ("cpu:1", "--decode=1,0"),
    "--decode: found with --search; allowed: without it": ("cpu:1", "--decode=1", "--search"),
    "found 'cpu:1' with --decode; allowed: TPUs and GPUs": ("cpu:1", "--decode=1"),
    "(5,004 characters); allowed: v4:4x4x4": (f"cpu:{'9' * 5000}",),
    "(it has 100,000,000 devices, more than 131,072); allowed: v4": ("cpu:100000000",),
    "(it has 32,000,000 devices, more than 131,072); allowed: v4": ("v5e:4x8,slices=1000000",),
    "--topology: found 'cpu:1\\ncpu:2'; allowed: v4": ("cpu:1\ncpu:2",),
    "--json=docs: found a folder; allowed: a file": ("cpu:1", "--json=docs"),
    "--json=no/such/plan.json: found no folder no/such; allowed": ("cpu:1", "--json=no/such/plan.json"),
    "config.mesh.modle: unknown field": ("cpu:1", "--config.mesh.modle=3"),
    "config.init.from: found xxx": (
        "cpu:1",
        f"--config.finetune.stages={STAGE}",
        f"--config.init.from={'x' * 999}",
    ),
    "config.model.name: found 'gru'": ("cpu:1", "--config.model.name=gru"),
}


def test_an_impossible_plan_is_refused_in_one_line():
    commands = [
        ["plan", f"--config={CONFIG}", f"--topology={topology}", *arguments]
        for topology, *arguments in REFUSED.values()
    ]
    results = run_commands(commands, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    for message, (status, _, stderr) in zip(REFUSED, results, strict=True):
        assert status == 2
        (line,) = stderr.strip().splitlines()
        assert line.startswith("birdie_jax.plan: ")
        assert message in line


@for_machines
def test_a_plan_for_an_absent_tpu(tmp_path):
    arguments = ("--config.mesh.data=1", "--config.mesh.fsdp=4", "--largest_batch=skip")
    found, text = planned(tmp_path, "v5e:2x2", "--config.batching.rows=8", *arguments)
    assert found["fits"]
    assert found["chip"]["title"] == "TPU v5e"
    assert "https://cloud.google.com/tpu/docs/v5e" in text
    # Six FLOPs per parameter and token, and the logits a second time.
    assert 0.9 < found["product_flops_per_step"] * 4 / found["model_flops_per_step"] < 1.5
    assert {one["axes"] for one in found["collectives"]} == {"fsdp"}
    seconds = found["bounds"]
    assert seconds["step_seconds"] == max(
        seconds["products_seconds"], seconds["memory_seconds"], *seconds["link_seconds"].values()
    )
    assert found["tokens_per_second_bound"] == pytest.approx(8 * 128 / seconds["step_seconds"])
    assert 0 < found["mfu_bound"] < found["mfu_bound_memory_and_collectives"] + 1e-9 <= 1

    refused, text = planned(tmp_path, "v5e:2x2", "--config.batching.rows=1000000", *arguments)
    assert not refused["fits"]
    assert refused["bytes_per_device"]["total"] > refused["bytes_per_device"]["available"]
    assert refused["bytes_per_device"]["parameters"] == found["bytes_per_device"]["parameters"]
    assert "fits: NO" in text


@for_machines
def test_decoding_on_a_tpu_reads_parameters_and_states(tmp_path):
    width = "--config.model.features=1024"
    found, text = planned(tmp_path, "v5e:2x2", "--decode=1,64,999999", width)
    one, many, refused = found["decode"]
    assert text.startswith("decoding on one TPU v5e, ") and text.count("\n|") == 5
    # The state of a row is 4 bytes per channel, and 3 tokens of the convolution.
    assert one["state MB a row"] == many["state MB a row"] > 0
    assert many["least GB"] > one["least GB"] > found["parameter_bytes"] / 1e9 - 1e-3
    assert 0.9 < one["times"] < 1.5 and one["fits"] and one["set by"] == "memory"
    # Such a small model may stay in the chip's own memory.
    assert one["tokens/s"] < many["tokens/s"]
    assert not refused["fits"] and refused["tokens/s"] is None


@for_machines
@pytest.mark.parametrize(
    "model",
    [
        ("--config.model.name=gated_deltanet",),
        ("--config.model.name=mamba2", "--config.model.mamba2.state_size=128"),
    ],
)
def test_decoding_on_a_tpu_moves_the_states_of_matrices_once(model, tmp_path):
    sizes = ("--config.model.features=1024", "--config.model.state=2048", "--config.model.layers=6")
    found, _ = planned(tmp_path, "v5p:2x2x1", "--decode=128", *model, *sizes)
    (row,) = found["decode"]
    assert 0.95 < row["times"] < 1.1


# A table of 8,320 rows; scores at every token would double the FLOPs of a step.
ENCODER = (
    *("--config.model.name=bigs", "--config.objectives.mixture=masked_lm", "--config.bandit.policy=fixed"),
    *("--config.model.features=256", "--config.model.mlp_features=768", "--config.data.vocab_size=8000"),
    *("--config.mesh.data=4", "--config.mesh.fsdp=1", "--largest_batch=skip"),
)


@for_machines
def test_masked_lm_on_a_tpu_computes_the_scores_of_hidden_tokens(tmp_path):
    found, text = planned(tmp_path, "v5e:2x2", *ENCODER, "--config.batching.rows=8")
    assert found["fits"] and "fits: yes" in text
    # The maps of the layer, the head for 24 places of 128, the products with the kernels of S4D.
    assert 0.95 < found["product_flops_per_step"] * 4 / found["model_flops_per_step"] < 1.25
    assert {one["axes"] for one in found["collectives"]} == {"data"}
    assert 0 < found["mfu_bound"] < 1


@for_machines
def test_fine_tuning_with_a_head_on_a_tpu_computes_no_scores_of_tokens(tmp_path):
    stage = "--config.finetune.stages.glue"
    found, text = planned(
        tmp_path, "v5e:2x2", *ENCODER, f"{stage}.path=x", f"{stage}.rows=8", config=f"{HEAD_CONFIG}:rte"
    )
    assert text.startswith("stage glue, which has the most positions per batch\n")
    assert found["fits"]
    assert (found["rows"], found["length"]) == (8, 64)
    assert 0.95 < found["product_flops_per_step"] * 4 / found["model_flops_per_step"] < 1.25
    assert {one["axes"] for one in found["collectives"]} == {"data"}


@for_machines
def test_the_loss_chunk_does_not_change_what_a_device_sends(tmp_path):
    arguments = ("--config.mesh.data=2", "--config.mesh.fsdp=2", "--config.batching.rows=8")
    # The TPU compiler divides gradients only with at least 128 features on a device.
    size = ("--config.model.features=256", "--largest_batch=skip")
    sent = [
        planned(tmp_path, "v5e:2x2", f"--config.train.loss_chunk={chunk}", *arguments, *size)[0]
        for chunk in (128, 16)
    ]
    once, often = (found["collective_bytes_per_step"] for found in sent)
    assert often == pytest.approx(once, rel=0.05)


@for_machines
def test_a_plan_for_absent_h200_hosts(tmp_path):
    found, _ = planned(
        tmp_path,
        "h200:2x2",
        "--config.mesh.data=2",
        "--config.mesh.fsdp=2",
        "--config.batching.rows=4",
        "--largest_batch=skip",
    )
    assert found["fits"]
    assert {one["axes"] for one in found["collectives"]} >= {"data", "fsdp"}
    assert set(found["bounds"]["link_seconds"]) == {"NVLink", "network"}


@for_machines
def test_a_v4_gathers_parameters_behind_products(tmp_path):
    """An option of the compiler, which the step sets, enables this."""
    sizes = ("model.features=1024", "model.state=1024", "model.mlp_features=2048", "model.layers=4")
    arguments = (f"--config.{one}" for one in (*sizes, "mesh.data=1", "mesh.fsdp=4", "batching.rows=64"))
    found, _ = planned(tmp_path, "v4:2x2x1", "--largest_batch=skip", *arguments)
    (gathers,) = (one for one in found["collectives"] if one["kind"] == "all-gather")
    assert gathers["exposed_seconds"] < 0.8 * gathers["link_seconds"]
    assert gathers["behind"]
