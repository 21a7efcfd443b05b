"""Costs of the HLO texts that `record.py` records, compared with manual counts and with XLA's counts.

No compiler runs here. Rows and parameters have the shapes in `record.py`.
"""

import pytest

from hlo_analysis import StepCosts, parse_hlo, read_step_costs
from hlo_analysis.trip_counts import CallFrame, trip_count
from tests.hlo_analysis.recorded_texts import VERSIONS, file_of, mesh_shape, read_text, xla_counts

ONE_DEVICE = [
    (version, machine)
    for version in VERSIONS
    for machine in ("cpu:8", "v5e:2x2", "h200:2x2")
    if file_of(version, machine, "scanned").exists()
]
SHARDED = [
    (version, machine)
    for version in VERSIONS
    for machine in ("v5p:2x2x1", "v5e:2x2,slices=2", "h200:2x2")
    if file_of(version, machine, "sharded_step").exists()
]
# float32: 32 rows of 64 features, and 64 x 64 parameters.
X_BYTES, W_BYTES = 4 * 32 * 64, 4 * 64 * 64
PRODUCT = 2 * 32 * 64 * 64


def costs_of(version: str, machine: str, program: str) -> StepCosts:
    slices = 2 if machine.endswith("slices=2") else 1
    return read_step_costs(read_text(version, machine, program), mesh_shape(machine), slices=slices)


def test_every_version_has_texts_of_every_kind_of_machine():
    assert {machine for version, machine in ONE_DEVICE if version == VERSIONS[0]} == {
        "cpu:8",
        "v5e:2x2",
        "h200:2x2",
    }
    assert len(SHARDED) >= 3
    assert {version for version, _ in ONE_DEVICE} == set(VERSIONS)


@pytest.mark.parametrize(("version", "machine"), ONE_DEVICE)
@pytest.mark.parametrize(
    ("program", "dot_flops"),
    [
        ("scanned", 7 * PRODUCT),
        ("nested", 3 * 7 * PRODUCT),
        ("unrolled", 7 * PRODUCT),
        # Each layer has one product, and two for its gradients.
        ("layers_gradient", 3 * 6 * PRODUCT),
    ],
)
def test_every_execution_of_a_product_counts(version, machine, program, dot_flops):
    assert costs_of(version, machine, program).flops.dot == dot_flops


@pytest.mark.parametrize(("version", "machine"), ONE_DEVICE)
@pytest.mark.parametrize(
    ("program", "counts"), [("scanned", [7]), ("nested", [3]), ("layers_gradient", [6, 6])]
)
def test_counters_alone_give_the_trip_counts(version, machine, program, counts):
    text = read_text(version, machine, program)
    module = parse_hlo(text.replace("known_trip_count", "unknown"))
    loops = [one for one in module.entry if one.opcode == "while"]
    assert [trip_count(module, CallFrame(module.entry), loop) for loop in loops] == counts
    # The text states the same counts on CPU and GPU.
    module = parse_hlo(text)
    assert [trip_count(module, CallFrame(module.entry), loop) for loop in loops] == counts


@pytest.mark.parametrize(("version", "machine"), [one for one in ONE_DEVICE if one[1] != "h200:2x2"])
def test_flops_without_loops_match_xla(version, machine):
    flops = costs_of(version, machine, "unrolled").flops
    assert sum(flops) == pytest.approx(xla_counts(version, machine, "unrolled")["flops"], rel=0.01)
    # XLA counts the body of a loop once.
    assert xla_counts(version, machine, "scanned")["flops"] < 1.1 * PRODUCT


@pytest.mark.parametrize(("version", "machine"), ONE_DEVICE)
def test_products_read_their_operands_and_write_their_results(version, machine):
    # Each product reads both operands and writes its result.
    products = 7 * (2 * X_BYTES + W_BYTES)
    # tanh reads and writes an array, unless it is fused into the product's kernel.
    products_and_tanh = products + 7 * 2 * X_BYTES
    # On a TPU, all arrays between the first product and the last stay in scratch memory.
    ends = 2 * X_BYTES + W_BYTES
    unrolled = {"cpu:8": products_and_tanh, "h200:2x2": products, "v5e:2x2": ends}[machine]
    assert costs_of(version, machine, "unrolled").traffic_bytes == unrolled
    scanned = {"cpu:8": products_and_tanh, "h200:2x2": products_and_tanh, "v5e:2x2": ends}[machine]
    # A loop may copy its initial array, and its counter takes a few bytes.
    beside = costs_of(version, machine, "scanned").traffic_bytes - scanned
    assert 0 <= beside <= 2 * X_BYTES + 200


@pytest.mark.parametrize("program", ["unrolled", "all_reduce", "all_gather", "all_to_all"])
@pytest.mark.parametrize("version", VERSIONS)
def test_traffic_without_loops_matches_xla(version, program):
    traffic = costs_of(version, "cpu:8", program).traffic_bytes
    assert traffic == xla_counts(version, "cpu:8", program)["bytes_accessed"]


@pytest.mark.parametrize(("version", "machine"), ONE_DEVICE)
def test_activations_are_the_arrays_kept_between_loops(version, machine):
    # The input of each layer, and its product or the cosine of it. A TPU keeps the input in bfloat16, the
    # operand type of its products.
    kept = 6 * 32 * 64 * (2 + 4 if machine == "v5e:2x2" else 4 + 4)
    assert costs_of(version, machine, "layers_gradient").activation_bytes == kept
    for program in ("scanned", "unrolled"):
        assert costs_of(version, machine, program).activation_bytes == 0


# The bytes of one device: 4 rows of 100 float32 values.
OWN = 4 * 100 * 4
COLLECTIVES = {
    "all_reduce": ("all-reduce", "tensor", 2, 1, OWN, OWN),
    "all_reduce_over_two": ("all-reduce", "data*sequence", 4, 1, OWN, 2 * 3 / 4 * OWN),
    "all_reduce_over_all": ("all-reduce", "data*tensor*sequence", 8, 1, OWN, 2 * 7 / 8 * OWN),
    "all_reduce_in_a_loop": ("all-reduce", "tensor", 2, 5, OWN, OWN),
    "all_gather": ("all-gather", "data", 2, 1, 2 * OWN, OWN),
    "reduce_scatter": ("reduce-scatter", "sequence", 2, 1, OWN, OWN / 2),
    "all_to_all": ("all-to-all", "tensor", 2, 1, OWN, OWN / 2),
    "collective_permute": ("collective-permute", "sequence", 2, 1, OWN, OWN),
}


@pytest.mark.parametrize("program", COLLECTIVES)
@pytest.mark.parametrize("version", VERSIONS)
def test_collectives_have_the_expected_axes_and_bytes(version, program):
    (found,) = costs_of(version, "cpu:8", program).collectives
    groups = found.groups
    summary = (
        found.kind,
        groups.label,
        groups.size,
        found.executions,
        found.payload_bytes,
        found.sent_bytes,
    )
    assert summary == COLLECTIVES[program]


LAYER_BYTES = 2 * 512 * 512
ROWS_OF_A_DEVICE = 2 * 64 * 512


@pytest.mark.parametrize(("version", "machine"), SHARDED)
def test_a_sharded_step_executes_three_products_a_layer(version, machine):
    costs = costs_of(version, machine, "sharded_step")
    assert costs.flops.dot == 6 * 3 * (2 * 64 * 512 * 512)
    # Each layer keeps its input and the arrays of the derivative of tanh: y and 1 - y in JAX 0.10, 1 - y^2
    # in JAX 0.11.
    kept_arrays = {"jax_0_10": 1 + 2, "jax_0_11": 1 + 1}[version]
    assert costs.activation_bytes == 6 * kept_arrays * ROWS_OF_A_DEVICE
    # The step at least reads the rows and parameters, and writes the parameters.
    shard = 6 * LAYER_BYTES / mesh_shape(machine)["fsdp"]
    assert costs.traffic_bytes >= ROWS_OF_A_DEVICE + 2 * shard


@pytest.mark.parametrize(("version", "machine"), SHARDED)
def test_a_sharded_step_gathers_parameters_twice_and_scatters_gradients_once(version, machine):
    fsdp = mesh_shape(machine)["fsdp"]
    payload: dict[tuple[str, str], float] = {}
    for one in costs_of(version, machine, "sharded_step").collectives:
        assert one.groups.size == mesh_shape(machine)[one.groups.label]
        key = one.kind, one.groups.label
        payload[key] = payload.get(key, 0) + one.payload_bytes * one.executions
    assert payload == {
        # Once forward and once backward.
        ("all-gather", "fsdp"): 2 * 6 * LAYER_BYTES,
        ("reduce-scatter", "fsdp"): 6 * LAYER_BYTES,
        ("all-reduce", "data"): 6 * LAYER_BYTES / fsdp,
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_slices_reduce_locally_and_then_over_the_network(version):
    found = costs_of(version, "v5e:2x2,slices=2", "all_reduce_over_all").collectives
    assert {(one.kind, one.groups.label, one.groups.size) for one in found} == {
        ("all-reduce", "fsdp", 4),
        ("all-reduce", "data", 2),
        ("all-gather", "fsdp", 4),
    }
    (between,) = (one for one in found if one.groups.label == "data")
    # Each device of a slice has a quarter of the values, padded to a multiple of 128.
    assert between.payload_bytes == 4 * 128
