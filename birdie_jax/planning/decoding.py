"""Plans decoding on one device, which may be absent: bytes per token, and a bound on its speed."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import PyTree

from birdie_jax.array_types import TokenIds
from birdie_jax.generation.decoding import CHUNK_TOKENS, table_of_products
from birdie_jax.generation.device_programs import cast_parameters
from birdie_jax.models import LanguageModel
from birdie_jax.models.axes import ROW_AXES
from birdie_jax.models.language_model import looped_hidden, parameter_shapes
from birdie_jax.models.layout import causal_layout
from birdie_jax.models.parameters import parameter_policies
from birdie_jax.models.registry import Cache
from birdie_jax.planning.compilation import compile_lowered, program_bytes
from birdie_jax.planning.topology import Topology
from hlo_analysis import parse_out_of_memory, read_step_costs


class DecodePlan(NamedTuple):
    """A step that decodes one token of each row, on one device.

    Attributes:
        rows: the samples that are decoded together.
        parameter_bytes: the bytes of the parameters that a step reads, in the types of its products.
        state_bytes: the bytes of the state, or cache, of all rows.
        moved_bytes: the bytes that the compiled loop moves between device and main memory for a token.
        needed_bytes: the bytes of memory that the compiled loop needs.
        compute_seconds: the seconds of its matrix products at the peak of the device.
        memory_seconds: the seconds of `moved_bytes` at the bandwidth of the memory.

    The last four are infinite if the compiler refuses a program that does not fit.
    """

    rows: int
    parameter_bytes: int
    state_bytes: int
    moved_bytes: float
    needed_bytes: float
    compute_seconds: float
    memory_seconds: float

    @property
    def least_bytes(self) -> int:
        """The bytes of one read of the parameters, and one read and one write of the state."""
        return self.parameter_bytes + 2 * self.state_bytes

    @property
    def seconds(self) -> float:
        """The minimum time of a step: for its products or its memory, whichever is longer."""
        return max(self.compute_seconds, self.memory_seconds)


def plan_decoding(model: LanguageModel, topology: Topology, rows: int, length: int) -> DecodePlan:
    """Compile the decoding loop, which decodes a token of each row at a time, for a device of a topology.

    Args:
        model: the model; its parameters have the types that `generate` uses.
        topology: the machine, with figures of its chip.
        rows: the samples that are decoded together.
        length: the number of tokens that a growing cache has room for.
    """
    chip, device = topology.known_chip, topology.devices[0]
    mesh = Mesh([[device]], ROW_AXES)
    whole = NamedSharding(mesh, PartitionSpec())

    def abstract(tree: PyTree) -> PyTree[jax.ShapeDtypeStruct]:
        return jax.tree.map(lambda leaf: _array(leaf.shape, leaf.dtype, whole), tree)

    cast = partial(cast_parameters, policies=parameter_policies(model))
    params = abstract(jax.eval_shape(cast, parameter_shapes(model)))
    cache = abstract(jax.eval_shape(lambda: model.empty_cache(rows, length)))
    tokens = _array((rows, 1), jnp.int32, whole)
    known = DecodePlan(rows, _read_bytes(model, params), _size(cache), *[float("inf")] * 4)
    try:
        with jax.set_mesh(mesh):
            lowered = jax.jit(decode_tokens(model), donate_argnums=1).lower(params, cache, tokens)
            program = compile_lowered(lowered, device.platform)
    except jax.errors.JaxRuntimeError as error:
        if parse_out_of_memory(str(error)) is None:
            raise
        return known
    costs = read_step_costs(program.hlo_text, {})
    return known._replace(
        moved_bytes=costs.traffic_bytes / CHUNK_TOKENS,
        needed_bytes=sum(program_bytes(program)),
        compute_seconds=costs.flops.dot / CHUNK_TOKENS / chip.peak_flops,
        memory_seconds=costs.traffic_bytes / CHUNK_TOKENS / chip.memory_bandwidth,
    )


def decode_tokens(
    model: LanguageModel,
) -> Callable[[PyTree, Cache, TokenIds], tuple[TokenIds, Cache]]:
    """Return (params, cache, tokens [rows, 1]) -> (the last token of each row, cache): a loop."""

    def decode(params: PyTree, cache: Cache, tokens: TokenIds) -> tuple[TokenIds, Cache]:
        layout = causal_layout(tokens.shape[0], 1)
        table = table_of_products(model, params)

        def step(_: Any, carried: tuple[TokenIds, Cache]) -> tuple[TokenIds, Cache]:
            tokens, cache = carried
            hidden, cache = looped_hidden(model, params, cache, tokens, layout)
            scores: Any = model.apply({"params": params}, hidden, table, method=LanguageModel.logits)
            return jnp.argmax(scores, axis=-1).astype(jnp.int32), cache

        return jax.lax.fori_loop(0, CHUNK_TOKENS, step, (tokens, cache))

    return decode


def _read_bytes(model: LanguageModel, params: PyTree) -> int:
    """Return the bytes of the parameters that a token reads, except the rows that it looks up."""
    inside = {name: leaf for name, leaf in params.items() if name not in ("embedding", "head")}
    table = model.vocab_size * model.config.features * jnp.dtype(model.config.dtype).itemsize
    return _size(inside) + table


def _array(shape: tuple[int, ...], dtype: DTypeLike, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _size(tree: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
