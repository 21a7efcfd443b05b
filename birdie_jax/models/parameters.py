"""Policies of parameters: their axes, weight decay, learning-rate factor and compute type.

A layer calls `parameter` to create each parameter with a `ParameterPolicy`. `init` and `apply` work as in
any linen module, with plain arrays; `parameter_policies` collects the policies of a model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from birdie_jax.batch import Batch
from birdie_jax.models import gate_statistics, influence

# `init` returns this collection only on request, so only `collect_policies` sees its values.
_POLICIES = "intermediates"

SCANNED_COLLECTIONS: Mapping[Any, int] = dict.fromkeys(
    ("params", _POLICIES, influence.COLLECTION, gate_statistics.COLLECTION), 0
)
"""The `variable_axes` of an `nn.scan` over layers."""


@dataclass(frozen=True)
class ParameterPolicy:
    """How a parameter is divided over devices, trained and used in computation.

    Attributes:
        axes: the logical axis of each dimension (`birdie_jax.models.axes`); None if it is whole on every
            device. The leading dimension of scanned layers is not listed, and is whole.
        weight_decay: whether the optimizer decays the parameter.
        learning_rate_factor: the factor of its learning rate, and so also of its weight decay.
        compute_dtype: the type that the layer computes with; the parameter itself is float32.
        hidden_matrix: whether its last two dimensions map inputs to outputs inside the model; Muon
            orthogonalizes such parameters.
        repeats_rows: whether the rows are positions, so a model with another number of positions can start
            from it (`resize_rows`).
    """

    axes: tuple[str | None, ...]
    weight_decay: bool
    learning_rate_factor: float = 1.0
    compute_dtype: DTypeLike = jnp.float32
    hidden_matrix: bool = False
    repeats_rows: bool = False


@jax.tree_util.register_static
class _Recorded(NamedTuple):
    """A policy as a pytree without leaves, which passes through `nn.scan` and `jax.eval_shape`."""

    policy: ParameterPolicy


def parameter(
    module: nn.Module,
    name: str,
    init: Callable[..., Array],
    shape: tuple[int, ...],
    policy: ParameterPolicy,
) -> Float[Array, "..."]:
    """Create a float32 parameter of a module, and return it in the compute type of its policy.

    Args:
        module: the module that owns the parameter.
        name: its name within the module.
        init: (key, shape, dtype) -> initial values.
        shape: its shape.
        policy: its policy.

    Raises:
        ValueError: the policy does not have one axis for each dimension.
    """
    if len(policy.axes) != len(shape):
        path = "/".join((*module.path, name))
        raise ValueError(
            f"parameter {path!r}: found {len(policy.axes)} axes {policy.axes} for shape {shape}; "
            "allowed: one for each dimension"
        )
    recorded = _Recorded(policy)
    module.sow(_POLICIES, name, recorded, reduce_fn=lambda _, new: new, init_fn=lambda: recorded)
    return module.param(name, init, shape, jnp.float32).astype(policy.compute_dtype)


def parameter_policies(model: nn.Module) -> PyTree[ParameterPolicy]:
    """Return the policies of a language model's parameters, in the structure of the parameters.

    Raises:
        ValueError: a parameter was not created by `parameter`.
    """
    return collect_policies(model, jax.eval_shape(one_token_batch))


def collect_policies(module: nn.Module, *inputs: Any) -> PyTree[ParameterPolicy]:
    """Return the policies of a module's parameters, in the structure of the parameters.

    Args:
        module: any linen module; this computes nothing.
        inputs: example arguments of a call, or their shapes and types.

    Raises:
        ValueError: a parameter was not created by `parameter`.
    """

    def init(*inputs: Any) -> Any:
        # The key is traced too, so the devices of the current mesh need not exist.
        return module.init(jax.random.key(0), *inputs, mutable=["params", _POLICIES])

    variables = jax.eval_shape(init, *inputs)
    recorded = variables.get(_POLICIES, {})

    def policy_of(path: tuple, _: Any) -> ParameterPolicy:
        found = recorded
        for part in path:
            found = found.get(part.key) if isinstance(found, dict) else None
        if not isinstance(found, _Recorded):
            name = "/".join(part.key for part in path)
            raise ValueError(
                f"parameter {name!r} has no policy; create it by birdie_jax.models.parameters.parameter"
            )
        return found.policy

    return jax.tree_util.tree_map_with_path(policy_of, variables["params"])


def resize_rows(table: Float[Array, "..."], rows: int, axis: int = 0) -> Float[Array, "..."]:
    """Return the table with `rows` rows: its own rows repeated, or only the first ones.

    Beltagy et al. 2020 (section 5) extend tables of learned positions this way. At the positions that both
    tables have, the model is the same.

    Args:
        table: the table.
        rows: the number of rows of the result.
        axis: the dimension of the rows.
    """
    times = [1] * table.ndim
    times[axis] = -(-rows // table.shape[axis])
    return jax.lax.slice_in_dim(jnp.tile(table, times), 0, rows, axis=axis)


def one_token_batch() -> Batch:
    """Return the smallest batch, to initialise a model's parameters without data."""
    one = jnp.zeros((1, 1), jnp.int32)
    return Batch(one, one, one > 0, one, one, one > 0, one)
