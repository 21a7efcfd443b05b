"""The TPU kernels in the interpreter with its race detector: two cores run grid points in any order."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.gated_scan import tpu as gated
from pallas_kernels.linear_scan import tpu as linear
from pallas_kernels.linear_scan import tpu_call
from pallas_kernels.matrix_state import tpu as matrix
from pallas_kernels.matrix_state import tpu_grid
from pallas_kernels.selective_scan import tpu as selective
from pallas_kernels.selective_scan import tpu_steps
from tests.pallas_kernels.gated_scan.cells import GATED
from tests.pallas_kernels.gated_scan.oracle import layer_inputs
from tests.pallas_kernels.linear_scan.oracle import inputs
from tests.pallas_kernels.matrix_state import oracle
from tests.pallas_kernels.selective_scan.oracle import scan_inputs

SHAPE = (1, 256, 256)


@pytest.fixture
def detector(monkeypatch):
    """Use two blocks in time per direction, so states pass from one to the next."""
    monkeypatch.setattr(tpu_call, "MAX_BLOCK_ROWS", 128)
    return pltpu.InterpretParams(detect_races=True, num_cores_or_threads=2, random_seed=0)


def test_the_detector_reports_a_race(detector, capsys):
    """Two grid points write the same block, and may run at once."""

    def kernel(x_ref, y_ref):
        y_ref[...] = x_ref[...]

    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
        grid=(4,),
        in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        interpret=detector,
    )
    jax.block_until_ready(call(jnp.ones((32, 128))))
    assert "RACE DETECTED" in capsys.readouterr().out


@pytest.mark.slow
def test_linear_scan_has_no_races(detector, capsys):
    a, x, h0, dh, reset = inputs(SHAPE)
    options = {"resets": (reset, reset), "direction": "both", "interpret": detector}
    h = linear.forward(a, x, h0, **options)
    jax.block_until_ready(linear.backward(a, h, h0, dh, **options))
    assert "RACE" not in capsys.readouterr().out


@pytest.mark.slow
def test_gated_scan_has_no_races(detector, capsys):
    arrays, dy, dlast = layer_inputs(SHAPE)
    options = {"direction": "both", "interpret": detector}
    _, _, chunk_h0 = gated.forward(GATED, arrays, **options)
    jax.block_until_ready(gated.backward(GATED, arrays, chunk_h0, dy, dlast, **options))
    assert "RACE" not in capsys.readouterr().out


@pytest.mark.slow
def test_selective_scan_has_no_races(detector, capsys, monkeypatch):
    """The kernel reads 16 steps of each span of two blocks of channels, so it is quick and not right."""
    monkeypatch.setattr(tpu_steps, "TILES", 1)
    monkeypatch.setattr(selective, "MAX_COLUMNS", 1)
    arrays, dy, dlast = scan_inputs((1, 130, 256), states=2, direction="forward")
    options = {"direction": "forward", "interpret": detector}
    _, _, kept_h0 = selective.forward(arrays, **options)
    jax.block_until_ready(selective.backward(arrays, kept_h0, dy, dlast, **options))
    assert "RACE" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 2])
def test_matrix_states_have_no_races(groups, detector, capsys, monkeypatch):
    """With three blocks per head. Heads that share keys add to the same cotangents."""
    monkeypatch.setattr(tpu_grid, "MAX_CHUNKS", 1)
    drawn = oracle.draw((2, 24, 4, 4), groups=groups, added=groups == 1)
    sequences, state, do, dlast = oracle.to_arrays(drawn)
    options = {"direction": "both", "chunk": 8, "interpret": detector}
    *_, block_states = matrix.forward(sequences, None, state, **options)
    jax.block_until_ready(matrix.backward(sequences, None, block_states, (do, dlast), **options))
    assert "RACE" not in capsys.readouterr().out
