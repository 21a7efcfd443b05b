"""The TPU kernels compiled for absent chips: their memory traffic, and the cycles of their loops."""

import json

from tests.pallas_kernels.linear_scan import test_compiled as of_linear_scan

pytestmark = of_linear_scan.pytestmark
# The cycles of a token and head on a v5p, with some room (docs/measurements/matrix_state.md).
CYCLES = {
    ("gated_delta_rule, shared keys", "forward"): 15,
    ("gated_delta_rule, shared keys", "backward"): 26,
    ("ssd, 1.4B", "forward"): 2.3,
    ("ssd, 1.4B", "backward"): 6.5,
}


def test_kernels_of_matrix_states_move_few_extra_bytes(tmp_path):
    output = tmp_path / "rows.json"
    names = dict.fromkeys(name for name, _ in CYCLES)
    of_linear_scan.run(
        *("benchmarks.matrix_state_tpu", "--topologies", "v5p:2x2x1"),
        *("--operations", *names, "--json", output),
    )
    rows = {(row["operation"], row["pass"]): row for row in json.loads(output.read_text())}
    assert rows.keys() == CYCLES.keys()
    for name, row in rows.items():
        assert row["copies"] == 0, row
        assert 1 <= row["kernel"] <= 1.22, row
        assert 1 < row["cycles"] <= CYCLES[name], row
        if name[0].startswith("gated_delta_rule"):
            assert row["bytes"] <= 1.15, row
