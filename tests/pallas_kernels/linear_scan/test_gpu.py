"""The GPU kernel against the definitions, in the Mosaic GPU interpreter, which also detects races."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic_gpu.interpret import interpret_pallas_call as interpreter
from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.linear_scan import gpu
from pallas_kernels.linear_scan.gpu_pass import choose_chunks, count_blocks, make_grid
from tests.pallas_kernels.linear_scan.oracle import assert_close, inputs
from tests.pallas_kernels.linear_scan.shared_memory import hazards
from tests.pallas_kernels.linear_scan.test_backends import DIRECTIONS, expected_of
from tests.quick_jit import quick_jit

INTERPRETED = InterpretGPUParams(detect_races=True)


def without_races(function, *arguments, **options):
    run = quick_jit(partial(function, interpret=INTERPRETED, **options))
    results = jax.block_until_ready(run(*arguments))
    assert not interpreter.get_races().races_found
    return results


def check(shape, direction, *, chunks=None, dtype=jnp.float32, reset=None, decay=None, tolerance=1e-5):
    """Compare both passes with the definitions; `reset` is flags, or False for none."""
    a, x, h0, dh, random_reset = inputs(shape, dtype)
    a = a if decay is None else jnp.full_like(a, decay)
    reset = random_reset if reset is None else reset
    resets = None if reset is False else (reset, jnp.roll(reset, 1, axis=1))
    given = None if resets is None else resets[: 2 if direction == "both" else 1]
    options = {"resets": given, "direction": direction, "chunks": chunks}
    h, da, dx, dh0 = expected_of(direction, (a, x, h0), resets, dh)
    found_h = without_races(gpu.forward, a, x, h0, **options)
    found = without_races(gpu.backward, a, jnp.asarray(h, dtype), h0, dh, **options)
    for value, wanted in zip((found_h, *found), (h, da, dx, dh0), strict=True):
        assert value.shape == wanted.shape
        assert np.isfinite(np.asarray(value, np.float32)).all()
        assert_close(value, wanted, tolerance)


@pytest.mark.slow
def test_one_chunk_matches_the_definition():
    check((1, 45, 70), "both", chunks=1)


@pytest.mark.slow
def test_slots_are_reused():
    shape = (1, 224, 128)
    a = jnp.zeros(shape)
    plan = make_grid(a, a, "forward", streams=2, chunks=1, interpret=None)
    assert plan.tiles > plan.slots
    check(shape, "forward", chunks=1)


@pytest.mark.slow
def test_parallel_chunks_match_the_definition():
    """There are two tiles, so a state also passes from one tile to the next."""
    check((1, 512, 32), "both", chunks=8)


def test_resets_at_borders_match_the_definition():
    reset = np.zeros((1, 256), bool)
    # The resets of the reverse half are one step later, so they too are on both sides of each border.
    reset[0, [0, 30, 31, 32, 65, 94, 95, 126, 127, 128, 254, 255]] = True
    check((1, 256, 32), "both", chunks=4, reset=jnp.asarray(reset))


@pytest.mark.slow
def test_sizes_that_need_padding_match_the_definition():
    assert choose_chunks((1, 270, 20), "both") == 8
    check((1, 270, 20), "both")


@pytest.mark.slow
def test_a_scan_without_resets_matches_the_definition():
    check((2, 64, 64), "reverse", chunks=2, reset=False)


def test_underflowing_products_match_the_definition():
    check((1, 64, 64), "forward", chunks=2, reset=False, decay=1e-30)


@pytest.mark.sampled
@pytest.mark.parametrize("chunks", [1, 4])
def test_bfloat16_is_accurate_to_rounding(chunks):
    check(
        (1, 128, 128),
        "both" if chunks > 1 else "forward",
        chunks=chunks,
        dtype=jnp.bfloat16,
        tolerance=2**-7,
    )


@pytest.mark.slow
def test_the_state_of_the_chunks_is_float32():
    """A bfloat16 state would stop at 2 ** 8 = 256, where 1 is less than the rounding error."""
    ones = jnp.ones((1, 512, 16), jnp.bfloat16)
    h = without_races(
        gpu.forward, ones, ones, jnp.zeros((1, 16)), resets=None, direction="forward", chunks=8
    )
    np.testing.assert_array_equal(h[0, :, 0], jnp.arange(1, 513, dtype=jnp.float32).astype(jnp.bfloat16))


def test_a_missing_wait_is_detected_as_a_race(monkeypatch):
    monkeypatch.setattr(plgpu, "barrier_wait", lambda barrier: None)
    with pytest.raises(AssertionError, match="races_found"):
        check((1, 64, 128), "forward", chunks=1)


def passes(shape, chunks, direction):
    """Yield both passes with their arguments."""
    block, state = jnp.zeros(shape), jnp.zeros((shape[0], shape[2]))
    reset = jnp.zeros(shape[:2], bool)
    options = {"resets": (reset,) * (2 if direction == "both" else 1), "direction": direction}
    yield partial(gpu.forward, chunks=chunks, **options), (block, block, state)
    yield partial(gpu.backward, chunks=chunks, **options), (block, block, state, block)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("chunks", [1, 8])
def test_threads_and_copies_wait_for_each_other(chunks, direction):
    for function, arguments in passes((1, 2048, 256), chunks, direction):
        assert hazards(function, *arguments) == []


@pytest.mark.parametrize(
    ("name", "call", "found"),
    [
        ("commit_smem", 0, {"get"}),
        ("commit_smem", 1, {"swap", "copy_smem_to_gmem", "copy_gmem_to_smem"}),
        ("wait_smem_to_gmem", 0, {"swap"}),
        ("wait_smem_to_gmem", 1, {"end"}),
    ],
)
def test_a_missing_wait_between_threads_is_detected(monkeypatch, name, call, found):
    for function, arguments in passes((1, 2048, 256), 8, "forward"):
        calls = itertools.count()
        real = getattr(plgpu, name)

        def all_but_one(*arguments, calls=calls, real=real, **options):
            if next(calls) != call:
                real(*arguments, **options)

        with monkeypatch.context() as patched:
            patched.setattr(plgpu, name, all_but_one)
            assert {line.split()[0] for line in hazards(function, *arguments)} == found


@pytest.mark.parametrize(
    ("shape", "direction", "chunks", "blocks"),
    [
        ((8, 2048, 2048), "both", 1, 128),
        ((16, 2048, 2048), "forward", 1, 256),
        ((4, 4096, 2048), "both", 2, 128),
        ((2, 8192, 2048), "forward", 4, 128),
        ((1, 16384, 2048), "both", 8, 128),
        ((1, 65536, 512), "forward", 8, 32),
        ((1, 64, 128), "forward", 2, 2),
        ((1, 32, 128), "forward", 1, 1),
    ],
)
def test_chunks_are_added_until_the_blocks_fill_the_chip(shape, direction, chunks, blocks):
    assert choose_chunks(shape, direction) == chunks
    assert count_blocks(shape, direction, chunks) == blocks
    assert gpu.suits(shape, direction)


@pytest.mark.parametrize("shape", [(1, 270, 2048), (1, 512, 24)], ids=str)
def test_sizes_that_need_padding_do_not_suit(shape):
    assert not gpu.suits(shape, "forward")
