"""Muon (Jordan et al. 2024): orthogonalized momentum for hidden matrices, and AdamW for the rest.

The direction of a matrix has a root mean square of about 0.2, as in AdamW, so both share the learning rate
and the weight decay (Liu et al. 2025, arXiv 2502.16982, section 2.2).
"""

import operator
from math import prod

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, PyTree
from optax.contrib import MuonDimensionNumbers

from birdie_jax.config_sections import OptimizerConfig
from birdie_jax.models.axes import mesh_size
from birdie_jax.models.parameters import ParameterPolicy
from birdie_jax.optimizers.adamw import adamw
from birdie_jax.optimizers.registry import register_optimizer

_SIZE = 0.2
# Mesh axes. Axes that shard parameters come first, so the rows of a matrix match the parameter's shards.
_AXES = ("fsdp", "tensor", "data")


def muon(config: OptimizerConfig, policies: PyTree[ParameterPolicy]) -> optax.GradientTransformation:
    """Return Muon's direction for hidden matrices (`ParameterPolicy.hidden_matrix`), Adam's for the rest.

    The momentum is Nesterov momentum with `config.momentum`.
    """
    hidden = jax.tree.map(lambda policy: policy.hidden_matrix, policies)
    momentum = optax.trace(config.momentum, nesterov=True)
    orthogonalize = optax.stateless(lambda updates, _: jax.tree.map(_orthogonalize, updates))
    return optax.chain(
        optax.masked(optax.chain(momentum, orthogonalize), hidden),
        optax.masked(adamw(config, policies), jax.tree.map(operator.not_, hidden)),
    )


def _orthogonalize(
    matrices: Float[Array, "*stack inputs outputs"],
) -> Float[Array, "*stack inputs outputs"]:
    """Return matrices with singular values of about 1, scaled to the size of a direction.

    Five Newton-Schulz iterations multiply each matrix by its transpose. Each device processes some whole
    matrices. Devices exchange their rows of all matrices before the iterations and get them back
    afterwards. Products of sharded matrices would need a sum over devices in each iteration. On any mesh
    the results are rounded to bfloat16, which halves the traffic; singular values are only about 1 anyway.
    """
    stack = matrices.reshape(-1, *matrices.shape[-2:])
    axes = tuple(axis for axis in _AXES if mesh_size(axis) > 1)
    without_data = tuple(axis for axis in axes if axis != "data")
    count, devices = len(stack), prod(map(mesh_size, axes))
    # Apply the parameter's own sharding first. Otherwise XLA shards the momentum along `data`, and gathers
    # it to store it.
    stack = _divided(_divided(stack, rows=without_data), rows=axes)
    if count % devices:
        # Pad with matrices of zeros, which stay zero.
        stack = jnp.pad(stack, ((0, -count % devices), (0, 0), (0, 0)))
    stack = _divided(stack, matrices=axes)
    # Without momentum the transformation has no history, so the initial state is enough.
    newton_schulz = optax.contrib.scale_by_muon(
        beta=0.0, nesterov=False, weight_dimension_numbers=MuonDimensionNumbers(-2, -1)
    )
    stack, _ = newton_schulz.update(stack, newton_schulz.init(stack))
    stack = (_SIZE * max(matrices.shape[-2:]) ** 0.5 * stack).astype(jnp.bfloat16)
    stack = _divided(_divided(stack, matrices=axes), rows=axes)[:count]
    return _divided(stack, rows=without_data).reshape(matrices.shape).astype(matrices.dtype)


def _divided(
    stack: Float[Array, "stack inputs outputs"],
    *,
    matrices: tuple[str, ...] | None = None,
    rows: tuple[str, ...] | None = None,
) -> Float[Array, "stack inputs outputs"]:
    """Return the stack with its matrices or rows sharded over mesh axes, or unsharded if that is uneven."""
    if all(mesh_size(axis) == 1 for axis in _AXES):
        return stack
    spec = PartitionSpec(matrices or None, rows or None)
    sizes = (prod(map(mesh_size, axes or ())) for axes in (matrices, rows))
    if any(extent % size for extent, size in zip(stack.shape, sizes, strict=False)):
        spec = PartitionSpec()
    return jax.lax.with_sharding_constraint(stack, spec)


register_optimizer("muon", muon)
