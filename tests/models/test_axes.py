"""Tests of functions that are mapped over the devices of a mesh by logical axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import Mesh

from birdie_jax.models.axes import ROW_AXES, logical_shard_map


@pytest.fixture
def mesh(two_devices):
    """Return a mesh whose two devices share rows."""
    return Mesh(np.array(jax.devices()).reshape(2, 1), ROW_AXES)


def doubled(x):
    """Return 2x by a kernel."""

    def body(x_ref, o_ref):
        o_ref[...] = 2 * x_ref[...]

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


@pytest.mark.parametrize(("rows", "of_device"), [(16, 8), (17, 17)])
def test_a_kernel_lowers_for_any_number_of_rows(rows, of_device, mesh):
    """JAX refuses a kernel on several devices outside of `shard_map`, also if no axis is divided."""
    x = jnp.zeros((rows, 128))
    with jax.set_mesh(mesh):
        mapped = logical_shard_map(doubled, (x,), in_axes=[("rows",)], out_axes=("rows",))
        text = jax.jit(mapped).trace(x).lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("@tpu_custom_call") == 1
    assert f"tensor<{of_device}x128xf32>" in text


@pytest.mark.parametrize("rows", [4, 3])
def test_every_device_computes_what_devices_do_not_divide(rows, mesh):
    x = jnp.arange(2.0 * rows).reshape(rows, 2)
    with jax.set_mesh(mesh):
        mapped = logical_shard_map(
            lambda x: x + x.shape[0], (x,), in_axes=[("rows", "inner")], out_axes=("rows", "inner")
        )
        found = jax.jit(mapped)(x)
    np.testing.assert_array_equal(found, x + (2 if rows == 4 else 3))


def test_one_device_needs_no_map():
    assert logical_shard_map(doubled, (), in_axes=[], out_axes=()) is doubled
