"""Policies of parameters: their axes, weight decay, learning-rate factor and type of computation.

A layer creates its parameters by `parameter`, with a `ParameterPolicy` each. `init` and `apply` are those
of any linen module and know plain arrays alone; `parameter_policies` collects the policies of a model.
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

# The one collection that `init` returns only on request, so nobody but
# `collect_policies` ever sees what is recorded there.
_POLICIES = "intermediates"

SCANNED_COLLECTIONS: Mapping[Any, int] = dict.fromkeys(
    ("params", _POLICIES, influence.COLLECTION, gate_statistics.COLLECTION), 0
)
"""The `variable_axes` of an `nn.scan` over layers."""


@dataclass(frozen=True)
class ParameterPolicy:
    """How a parameter is divided over devices, trained, and computed with.

    Attributes:
        axes: the logical axis of each dimension (`birdie_jax.models.axes`), None where it is whole on every
            device. The leading dimension of scanned layers is not counted, and whole.
        weight_decay: whether the optimizer decays the parameter.
        learning_rate_factor: the factor of its learning rate, and so of its weight decay.
        compute_dtype: the type in which the layer reads it; the parameter itself is float32.
        hidden_matrix: whether its last two dimensions map inputs to outputs inside the model: Muon
            orthogonalizes them.
        repeats_rows: whether the rows are places, so a model with another number of them can start
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
    """A policy as a pytree without leaves, as which it passes through `nn.scan` and `jax.eval_shape`."""

    policy: ParameterPolicy


def parameter(
    module: nn.Module,
    name: str,
    init: Callable[..., Array],
    shape: tuple[int, ...],
    policy: ParameterPolicy,
) -> Float[Array, "..."]:
    """Create a float32 parameter of a module; return it in the type of computation of its policy.

    Args:
        module: the module that has the parameter.
        name: its name within the module.
        init: (key, shape, dtype) -> initial values.
        shape: its shape.
        policy: its policy.

    Raises:
        ValueError: the policy has not one axis for each dimension.
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
    """Return the policy of every parameter of a language model, in the structure of its parameters.

    Raises:
        ValueError: a parameter was not created by `parameter`.
    """
    return collect_policies(model, jax.eval_shape(one_token_batch))


def collect_policies(module: nn.Module, *inputs: Any) -> PyTree[ParameterPolicy]:
    """Return the policy of every parameter of a module, in the structure of its parameters.

    Args:
        module: any linen module; nothing of it is computed.
        inputs: arguments with which it can be called, or their shapes and types.

    Raises:
        ValueError: a parameter was not created by `parameter`.
    """

    def init(*inputs: Any) -> Any:
        # The key is traced as well: devices of the mesh in force need not be there.
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
    """Return a table with more rows, which repeat its own, or with fewer, which are its first ones.

    Longer tables of learned positions are made so by Beltagy et al. 2020 (section 5): within the places
    that both tables have, it is the same model.

    Args:
        table: the table.
        rows: the number of rows to have.
        axis: the dimension of the rows.
    """
    times = [1] * table.ndim
    times[axis] = -(-rows // table.shape[axis])
    return jax.lax.slice_in_dim(jnp.tile(table, times), 0, rows, axis=axis)


def one_token_batch() -> Batch:
    """Return the smallest batch, which initializes a model's parameters without its data."""
    one = jnp.zeros((1, 1), jnp.int32)
    return Batch(one, one, one > 0, one, one, one > 0, one)
