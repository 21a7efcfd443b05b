"""The GPU kernel against the definition, in the Mosaic GPU interpreter, which also detects races."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.selective_scan import (
    MAX_GPU_STATES,
    gpu,
    gpu_backward,
    gpu_forward,
    gpu_tile,
    selective_scan,
)
from tests.pallas_kernels.linear_scan.shared_memory import hazards
from tests.pallas_kernels.linear_scan.test_gpu import without_races
from tests.pallas_kernels.selective_scan.oracle import scan_inputs, scan_oracle
from tests.pallas_kernels.selective_scan.test_selective_scan import compare

TILE = gpu_tile.TILE


def check(shape, direction, *, tolerance=1e-5, **options):
    """Compare both passes with the definition, and return the states kept for the gradient."""
    inputs, dy, dlast = scan_inputs(shape, direction=direction, **options)
    y, last, block_h0 = without_races(gpu.forward, inputs, direction=direction)
    found = without_races(gpu.backward, inputs, block_h0, dy, dlast, direction=direction)
    compare(inputs, (y, last, found), scan_oracle(inputs, dy, dlast, direction), tolerance)
    return block_h0


@pytest.mark.slow
def test_both_directions_with_padding_match_the_definition():
    """Two blocks of two tiles in each direction; three states and four channels need padding."""
    block_h0 = check((1, 3 * TILE - 3, 4), "both", states=3)
    assert block_h0.shape == (1, 2, 4, 2 * gpu_tile.THREADS)


@pytest.mark.slow
def test_slots_are_reused(monkeypatch):
    """Five tiles forward, in blocks of one tile, which have no states to recompute."""
    monkeypatch.setattr(gpu_tile, "MAX_SLOTS", 2)
    monkeypatch.setattr(gpu_tile, "MAX_TILES", 1)
    left_out = dict.fromkeys(("z", "dt_bias", "resets"))
    check((1, 5 * TILE, 4), "forward", states=2, dtype=jnp.bfloat16, tolerance=2**-7, **left_out)


@pytest.mark.parametrize("x", [-1e30, -90.0, -20.0, -1e-3, 0.0, 0.5, 3.0, 80.0])
def test_the_softplus_is_accurate(x):
    found = gpu_tile.softplus(jnp.float32(x))
    np.testing.assert_allclose(found, np.logaddexp(0.0, np.float64(np.float32(x))), rtol=1e-6, atol=1e-37)


def passes(direction):
    """Yield both passes with their arguments and the indices of memory that each thread uses alone."""
    inputs, dy, dlast = scan_inputs((1, 4 * TILE, 2 * gpu_tile.THREADS), states=4, direction=direction)
    grid = gpu.grid_of(inputs, direction)
    block_h0 = jnp.zeros((1, grid.blocks, grid.states, inputs.u.shape[2]))
    sequences = {"u": inputs.u, "dt": inputs.dt, "z": inputs.z}
    results = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in ("y", "du", "ddt", "dz")}
    for module, function, arguments in (
        (gpu_forward, partial(gpu.forward, direction=direction), (inputs,)),
        (gpu_backward, partial(gpu.backward, direction=direction), (inputs, block_h0, dy, dlast)),
    ):
        given = sequences if module is gpu_forward else sequences | {"dy": dy}
        names = sorted(module.scratch(grid, given, results))
        yield function, arguments, {names.index(name) for name in names if name.startswith("own_")}


@pytest.mark.parametrize("direction", ["forward", "reverse", "both"])
def test_threads_and_copies_wait_for_each_other(direction):
    for function, arguments, own in passes(direction):
        assert len(own) >= 2
        assert hazards(function, *arguments, own=own) == []


@pytest.mark.parametrize(
    ("length", "states", "dtype", "expected"),
    [
        (2048, 16, jnp.bfloat16, (128, 8)),
        (2048, 16, jnp.float32, (128, 4)),
        (2048, 40, jnp.float32, (128, 1)),
        (40, 16, jnp.bfloat16, (4, 2)),
        (1, 2, jnp.bfloat16, (1, 1)),
    ],
    ids=str,
)
def test_blocks_are_as_long_as_memory_allows(length, states, dtype, expected):
    grid = gpu_tile.make_grid(length, states, "both", dtype=dtype, gated=True, interpret=None)
    assert (grid.tiles, grid.block_tiles) == expected
    assert grid.forward_slots >= min(2, grid.tiles)


def test_too_many_states_are_refused():
    inputs, *_ = scan_inputs((1, 4, 2), states=41, direction="forward")
    with pytest.raises(
        ValueError, match=r"^selective_scan: N must be at most 40 for pallas_gpu; found 41$"
    ):
        gpu.forward(inputs, direction="forward")


@pytest.mark.parametrize("states", [2, 16, 24, MAX_GPU_STATES])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_block_fits_in_shared_memory(dtype, states):
    grid = gpu_tile.make_grid(2048, states, "both", dtype=dtype, gated=True, interpret=None)
    array = jnp.zeros((), dtype)
    for module, sequences, results in (
        (gpu_forward, ("u", "dt", "z"), ("y",)),
        (gpu_backward, ("u", "dt", "z", "dy"), ("du", "ddt", "dz")),
    ):
        scratch = module.scratch(grid, dict.fromkeys(sequences, array), dict.fromkeys(results, array))
        arrays = [memory for name, memory in scratch.items() if not name.endswith("barriers")]
        assert sum(math.prod(memory.shape) * memory.dtype.itemsize for memory in arrays) < 227 * 1024


@pytest.mark.slow
def test_a_gpu_uses_the_kernel_if_you_choose_it():
    inputs, dy, _ = scan_inputs((1, 20, 6), direction="both")

    def gradient(inputs):
        u, dt, A, B, C, D, z, dt_bias, h0, resets = inputs
        options = {"z": z, "dt_bias": dt_bias, "h0": h0, "resets": resets, "direction": "both"}

        def loss(u):
            return jnp.sum(
                dy * selective_scan(u, dt, A.T, B, C, D, **options, implementation="pallas_gpu")[0]
            )

        return jax.grad(loss)(u)

    text = jax.jit(gradient).trace(inputs).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@mosaic_gpu") == 2
