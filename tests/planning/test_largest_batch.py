"""The search for the largest batch, with given memory needs."""

import pytest

from birdie_jax.planning.largest_batch import search_largest


def affine(base, each, jumps=0.0):
    return lambda count: base + each * count + jumps * (count % 3)


@pytest.mark.parametrize("largest", [1, 2, 3, 7, 40, 123])
@pytest.mark.parametrize("first", [1, 2, 8])
def test_a_verified_search_compiles_few_programs(first, largest):
    need = affine(1000, 10)
    available = need(largest) + 5
    found = search_largest(need, {first: need(first)}, available, verify=True)
    assert (found.rows, found.verified) == (largest, True)
    assert found.compilations <= 5


def test_the_search_is_exact_for_a_nearly_affine_need():
    need = affine(1000, 10, jumps=3)
    fitting = [count for count in range(1, 100) if need(count) <= 1555]
    found = search_largest(need, {4: need(4)}, 1555, verify=True)
    assert found.verified
    assert found.rows in fitting
    assert found.rows + 1 not in fitting


def test_an_estimate_takes_one_more_compilation():
    need = affine(1000, 10)
    found = search_largest(need, {2: need(2)}, 1555, verify=False)
    assert tuple(found) == (55, False, 1)


def test_nothing_fits():
    need = affine(1000, 10)
    assert tuple(search_largest(need, {1: need(1)}, 900, verify=True)) == (0, True, 0)
    assert search_largest(need, {4: need(4)}, 900, verify=True).rows == 0
    # A compiler rounds the bytes of a refused program, so two batches can need the same.
    flat = affine(1000, 0)
    assert search_largest(flat, {4: flat(4)}, 900, verify=False).rows == 0
    assert search_largest(flat, {4: flat(4)}, 1100, verify=False).rows == 8
