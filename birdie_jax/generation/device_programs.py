"""A model's parameters on its devices, in the types that layers read, and compiled functions."""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, TypeVarTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Compiled
from jaxtyping import PyTree

from birdie_jax.generation.continuation import OpenSamples
from birdie_jax.generation.timing import GenerationTimes
from birdie_jax.models import LanguageModel
from birdie_jax.models.axes import ROW_AXES
from birdie_jax.models.parameters import ParameterPolicy

_Arguments = TypeVarTuple("_Arguments")
_Results = TypeVar("_Results")


def cast_parameters(params: PyTree, policies: PyTree[ParameterPolicy]) -> PyTree:
    """Return `params` in the types of their policies; the model's results have the same bits.

    Otherwise the model casts float32 kernels to bfloat16 for each token: it reads twice the bytes, and
    writes and reads the copies.

    Args:
        params: the parameters of a model.
        policies: the result of `parameter_policies`.
    """

    def cast(leaf, policy):
        return leaf if leaf.dtype == policy.compute_dtype else jnp.asarray(leaf, policy.compute_dtype)

    return jax.tree.map(cast, params, policies)


class DevicePrograms:
    """Parameters on all devices, and functions of them, compiled once per shape of the arguments.

    The devices share the rows of prompts if they divide evenly.

    Attributes:
        params: the parameters on the devices.
    """

    def __init__(self, params: PyTree, devices: Sequence[Any], times: GenerationTimes):
        self._mesh = Mesh(np.array(devices).reshape(-1, 1), ROW_AXES)
        self._compiled: dict[tuple[str, int, tuple], Compiled] = {}
        self._times = times
        self.replace_params(params)

    def replace_params(self, params: PyTree) -> None:
        """Replace the parameters of later calls."""
        self.params = self.put_replicated(params)

    def put_replicated(self, tree: PyTree) -> PyTree:
        """Return the arrays on every device."""
        return jax.device_put(tree, NamedSharding(self._mesh, PartitionSpec()))

    def put_rows(self, array: np.ndarray | jax.Array) -> jax.Array:
        """Put an array with rows on its first axis on the devices."""
        return jax.device_put(array, self._row_sharding(array, row_axis=0))

    def put_samples(self, cache: PyTree) -> OpenSamples:
        """Put a cache, with rows on its second axis, on the devices."""
        return OpenSamples(
            jax.tree.map(lambda leaf: jax.device_put(leaf, self._row_sharding(leaf, row_axis=1)), cache)
        )

    def empty_cache(self, model: LanguageModel, rows: int, length: int) -> PyTree:
        """Return a model's cache for `rows` new samples of at most `length` tokens."""
        return self.put_samples(model.empty_cache(rows, length)).cache

    def compile(
        self,
        name: str,
        room: int,
        function: Callable[[PyTree, *_Arguments], _Results],
        *arguments: *_Arguments,
        donate: bool = False,
    ) -> Callable[[PyTree, *_Arguments], _Results]:
        """Return `function` compiled for the parameters and such arguments; count the compilation time.

        Args:
            name: the name of the function.
            room: a static number that the function is compiled for.
            function: (params, *arguments) -> results. Leaves of the results below a field called `cache`
                have rows on the second axis, and all others on the first.
            arguments: the arguments, or structures of the same shapes and types.
            donate: whether the results may use the memory of the first argument.
        """
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(arguments))
        if (name, room, shapes) not in self._compiled:
            start = time.monotonic()
            with jax.set_mesh(self._mesh):
                result = jax.eval_shape(function, self.params, *arguments)
                jitted = jax.jit(
                    function,
                    out_shardings=self._result_shardings(result),
                    donate_argnums=1 if donate else (),
                )
                self._compiled[name, room, shapes] = jitted.lower(self.params, *arguments).compile()
            self._times.compile_seconds += time.monotonic() - start
        return cast(Callable[[PyTree, *_Arguments], _Results], self._compiled[name, room, shapes])

    def _row_sharding(
        self, array: np.ndarray | jax.Array | jax.ShapeDtypeStruct, row_axis: int
    ) -> NamedSharding:
        if array.ndim <= row_axis or array.shape[row_axis] % self._mesh.size:
            return NamedSharding(self._mesh, PartitionSpec())
        return NamedSharding(self._mesh, PartitionSpec(*[None] * row_axis, ROW_AXES))

    def _result_shardings(self, result: PyTree) -> PyTree:
        """Return the shardings of the results; the next call expects the same sharding of a state."""

        def sharding(path, leaf):
            in_cache = any(getattr(part, "name", None) == "cache" for part in path)
            return self._row_sharding(leaf, row_axis=1 if in_cache else 0)

        return jax.tree_util.tree_map_with_path(sharding, result)
