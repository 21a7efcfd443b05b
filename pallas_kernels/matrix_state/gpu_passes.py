"""The four kernels of `gpu`: what each reads and writes, and the part of a mine."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

from pallas_kernels.matrix_state import gpu_chunks
from pallas_kernels.matrix_state.sequences import HeadSequences

CHUNK = 64
# The columns of a state, and the features of the keys in `sums`, of one program: with more, ptxas spills
# registers.
COLUMNS, KEY_FEATURES, WARPS = 64, 64, 8

State = Float[Array, "batch heads d_k d_v"]


class _Head(NamedTuple):
    """A head of the values of a row.

    Attributes:
        row: the row of the batch.
        head: the number of the head.
        group: its head of the keys.
        reverse: whether it is read from the end.
    """

    row: Any
    head: Any
    group: Any
    reverse: Any

    def values(self, chunk: Any, columns: Any) -> tuple[Any, ...]:
        """Return the indices of a chunk in an array [batch, length, heads, features]."""
        return self.row, _tokens(chunk), self.head, columns

    def states(self, chunk: Any, columns: Any) -> tuple[Any, ...]:
        """Return the indices of a chunk in an array [batch, heads, chunks, d_k, d_v]."""
        return self.row, self.head, chunk, slice(None), columns


def _tokens(chunk: Any) -> Any:
    return pl.ds(chunk * CHUNK, CHUNK)


class Passes:
    """The arrays of a call, and its kernels."""

    def __init__(self, sequences: HeadSequences, direction: str, interpret: bool) -> None:
        self.direction, self.interpret = direction, interpret
        batch, length, self.heads, self.d_v = sequences.v.shape
        self.groups, self.d_k = sequences.k.shape[2:]
        self.batch, self.chunks, self.dtype = batch, length // CHUNK, sequences.v.dtype
        self.columns = min(COLUMNS, self.d_v)
        self.given = {name: array for name, array in sequences._asdict().items() if array is not None}
        if self.given.pop("resets", None) is not None:
            self.given["reset"] = jnp.stack(sequences.resets or (), axis=1).astype(jnp.float32)
        self.shares = self.heads // self.groups
        self.has_beta = "beta" in self.given
        self.without_values = {name: array for name, array in self.given.items() if name != "v"}
        of_chunks = (batch, self.heads, self.chunks)
        self.pairs = jax.ShapeDtypeStruct((*of_chunks, CHUNK, CHUNK), self.dtype)
        self.states = jax.ShapeDtypeStruct((*of_chunks, self.d_k, self.d_v), self.dtype)
        self.values = jax.ShapeDtypeStruct(sequences.v.shape, self.dtype)
        self.numbers = jax.ShapeDtypeStruct(sequences.v.shape[:3], jnp.float32)
        self.last = jax.ShapeDtypeStruct((batch, self.heads, self.d_k, self.d_v), jnp.float32)

    def prepare(self) -> dict[str, Array]:
        """Return the matrices of all chunks that do not depend on the state."""

        def body(refs: dict[str, Any], chunk: Any, group: Any, row: Any) -> None:
            first = self._head(row, group * self.shares)
            products = gpu_chunks.key_products(self._keys(first, refs, chunk), self.has_beta, self.dtype)

            def of_head(number: Any, carry: Any) -> Any:
                mine = self._head(row, first.head + number)
                decays, beta = self._decays(mine, refs, chunk)
                found = gpu_chunks.prepare(products, beta, decays, self.dtype)
                for name, matrix in zip(("within", "inverse"), found, strict=True):
                    if matrix is not None:
                        refs[name][mine.row, mine.head, chunk] = matrix.astype(self.dtype)
                return carry

            jax.lax.fori_loop(0, self.shares, of_head, jnp.int32(0))

        results = {"within": self.pairs}
        if self.has_beta:
            results["inverse"] = self.pairs
        flops = self._flops(keys=len(results), inverses=len(results) - 1)
        programs = self.chunks, self.groups
        return self._run("prepare", body, programs, self.without_values, results, flops)

    def read(self, matrices: dict[str, Array], state: State, *, keep: bool) -> dict[str, Array]:
        """Return o and the last state; if `keep`, also U and the states that enter the chunks."""

        def body(refs: dict[str, Any], number: Any, head: Any, row: Any) -> None:
            columns, mine = self._columns(number), self._head(row, head)

            def step(count: Any, state: Array) -> Array:
                chunk = self._in_order(mine, count)
                values = mine.values(chunk, columns)
                tokens = (*self._keys(mine, refs, chunk), refs["v"][values])
                arguments = (
                    tokens,
                    self._matrices(mine, refs, chunk),
                    self._weights(mine, refs, chunk),
                )
                left, o, U = gpu_chunks.read(state, *arguments, self.dtype)
                refs["o"][values] = o.astype(self.dtype)
                if keep:
                    refs["U"][values] = U.astype(self.dtype)
                    refs["states"][mine.states(chunk, columns)] = state.astype(self.dtype)
                return left

            where = mine.row, mine.head, slice(None), columns
            refs["last"][where] = jax.lax.fori_loop(0, self.chunks, step, refs["state"][where])

        results = {"o": self.values, "last": self.last}
        if keep:
            results |= {"U": self.values, "states": self.states}
        operands = self.given | matrices | {"state": state}
        flops = self._flops(states=2 + self.has_beta, values=1 + self.has_beta)
        programs = self.d_v // self.columns, self.heads
        return self._run("read", body, programs, operands, results, flops)

    def pull(self, matrices: dict[str, Array], do: Array, dlast: State) -> dict[str, Array]:
        """Return dR, the cotangents of the states that leave the chunks, and that of the first state."""

        def body(refs: dict[str, Any], number: Any, head: Any, row: Any) -> None:
            columns, mine = self._columns(number), self._head(row, head)

            def step(count: Any, dstate: Array) -> Array:
                chunk = self._in_order(mine, self.chunks - 1 - count)
                values = mine.values(chunk, columns)
                refs["dstates"][mine.states(chunk, columns)] = dstate.astype(self.dtype)
                tokens = (*self._keys(mine, refs, chunk), refs["do"][values])
                weights = self._weights(mine, refs, chunk)
                arguments = tokens, self._matrices(mine, refs, chunk), weights
                dstate, dR = gpu_chunks.pull(dstate, *arguments, self.dtype)
                refs["dR"][values] = dR.astype(self.dtype)
                if "dv" in refs:
                    refs["dv"][values] = (weights[0][:, None] * dR).astype(self.dtype)
                return dstate

            where = mine.row, mine.head, slice(None), columns
            refs["dstate"][where] = jax.lax.fori_loop(0, self.chunks, step, refs["dlast"][where])

        results = {"dR": self.values, "dstates": self.states, "dstate": self.last}
        if self.has_beta:
            results["dv"] = self.values
        operands = self.without_values | matrices | {"do": do, "dlast": dlast}
        flops = self._flops(states=2 + self.has_beta, values=1 + self.has_beta)
        programs = self.d_v // self.columns, self.heads
        return self._run("pull", body, programs, operands, results, flops)

    def sums(
        self, values: dict[str, Array], states: dict[str, Array]
    ) -> tuple[Array, Array, Array, Array | None]:
        """Return the cotangents of q, k, g and beta from U, do and dR, and the states and their cotangents.

        A program has some features of the keys of a chunk, and adds the cotangents of the heads that share
        them. Those of g and beta are sums over all features.
        """
        width = min(KEY_FEATURES, self.d_k)
        parts = self.d_k // width

        def body(refs: dict[str, Any], number: Any, group: Any, row: Any) -> None:
            chunk, part = jax.lax.div(number, parts), jax.lax.rem(number, parts)
            features = pl.ds(part * width, width)
            at_keys = row, _tokens(chunk), group, features
            keys = refs["q"][at_keys], refs["k"][at_keys]
            products = gpu_chunks.key_products(keys, self.has_beta, self.dtype)

            def of_head(number: Any) -> gpu_chunks.KeySums:
                mine = self._head(row, group * self.shares + number)
                decays, beta = self._decays(mine, refs, chunk)
                weights = beta, decays.c, decays.e, decays.kept

                def of_columns(number: Any) -> gpu_chunks.ColumnSums:
                    columns = self._columns(number)
                    at = mine.values(chunk, columns)
                    of_state = mine.row, mine.head, chunk, features, columns
                    return gpu_chunks.column_sums(
                        keys,
                        tuple(refs[name][at] for name in ("v", "U", "do", "dR")),
                        (refs["states"][of_state], refs["dstates"][of_state]),
                        weights,
                        self.dtype,
                    )

                def step(number: Any, sums: gpu_chunks.ColumnSums) -> gpu_chunks.ColumnSums:
                    return jax.tree.map(jnp.add, sums, of_columns(number))

                sums = jax.lax.fori_loop(1, self.d_v // self.columns, step, of_columns(0))
                # Each part of the keys would add it.
                sums = sums._replace(of_values=jnp.where(part == 0, sums.of_values, 0.0))
                found = gpu_chunks.head_gradients(sums, products, beta, decays)
                dscores, doverlaps, dg, dbeta = found
                numbers = part, mine.row, _tokens(chunk), mine.head
                refs["dg"][numbers] = dg
                if dbeta is not None:
                    refs["dbeta"][numbers] = dbeta
                return gpu_chunks.KeySums(sums.dq, sums.dk, dscores, doverlaps)

            def add_head(number: Any, total: gpu_chunks.KeySums) -> gpu_chunks.KeySums:
                return jax.tree.map(jnp.add, total, of_head(number))

            total = jax.lax.fori_loop(1, self.shares, add_head, of_head(0))
            dq, dk = gpu_chunks.key_gradients(total, keys, self.dtype)
            refs["dq"][at_keys], refs["dk"][at_keys] = dq.astype(self.dtype), dk.astype(self.dtype)

        of_keys = jax.ShapeDtypeStruct(self.given["k"].shape, self.dtype)
        numbers = jax.ShapeDtypeStruct((parts, *self.numbers.shape), jnp.float32)
        results = {"dq": of_keys, "dk": of_keys, "dg": numbers}
        if self.has_beta:
            results["dbeta"] = numbers
        programs, operands = (self.chunks * parts, self.groups), self.given | values | states
        flops = self._flops(
            states=2 + self.has_beta, values=parts * (1 + self.has_beta), keys=3 * (1 + self.has_beta)
        )
        found = self._run("sums", body, programs, operands, results, flops)
        dbeta = found["dbeta"].sum(axis=0) if self.has_beta else None
        return found["dq"], found["dk"], found["dg"].sum(axis=0), dbeta

    def _head(self, row: Any, head: Any) -> _Head:
        reverse: Any = jnp.bool_(self.direction == "reverse")
        if self.direction == "both":
            reverse = head >= self.heads // 2
        return _Head(row, head, jax.lax.div(head, self.shares), reverse)

    def _columns(self, number: Any) -> Any:
        return pl.ds(number * self.columns, self.columns)

    def _in_order(self, mine: _Head, count: Any) -> Any:
        """Return the chunk that is number `count` in reading order."""
        return jnp.where(mine.reverse, self.chunks - 1 - count, count)

    @staticmethod
    def _keys(mine: _Head, refs: dict[str, Any], chunk: Any) -> tuple[Array, Array]:
        q, k = (refs[name][mine.row, _tokens(chunk), mine.group, :] for name in ("q", "k"))
        return q, k

    def _decays(
        self, mine: _Head, refs: dict[str, Any], chunk: Any
    ) -> tuple[gpu_chunks.TokenDecays, Array | None]:
        """Return the decays of a chunk, and beta."""
        numbers = mine.row, _tokens(chunk), mine.head
        g, beta = refs["g"][numbers], refs["beta"][numbers] if "beta" in refs else None
        reset = jnp.zeros_like(g)
        if "reset" in refs:
            way = jnp.where(mine.reverse, 1, 0) if self.direction == "both" else 0
            reset = refs["reset"][mine.row, way, _tokens(chunk)]
        return gpu_chunks.token_decays(g, reset, mine.reverse), beta

    def _weights(self, mine: _Head, refs: dict[str, Any], chunk: Any) -> tuple[Any, ...]:
        decays, beta = self._decays(mine, refs, chunk)
        return beta, decays.c, decays.e, decays.kept

    @staticmethod
    def _matrices(mine: _Head, refs: dict[str, Any], chunk: Any) -> tuple[Any, Any]:
        at = mine.row, mine.head, chunk
        return refs["within"][at], refs["inverse"][at] if "inverse" in refs else None

    def _flops(self, *, states: int = 0, values: int = 0, keys: int = 0, inverses: int = 0) -> int:
        """Return the FLOPs of a kernel's products.

        Args:
            states: the products [tokens, d_k] x [d_k, d_v] of a chunk.
            values: the products [tokens, tokens] x [tokens, d_v] of a chunk.
            keys: the products [tokens, d_k] x [d_k, tokens] of a chunk, which heads share.
            inverses: the inverses of a chunk, each with two products a level.
        """
        passes = 6 if self.dtype == jnp.float32 else 3
        inverse = passes * 2 * (CHUNK.bit_length() - 2) * CHUNK**2
        of_keys = keys * self.d_k / self.shares
        of_token = states * self.d_k * self.d_v + round(CHUNK * (values * self.d_v + of_keys))
        return 2 * self.batch * self.heads * self.chunks * CHUNK * (of_token + inverses * inverse)

    def _run(  # noqa: PLR0917
        self,
        name: str,
        body: Callable[[dict[str, Any], Any, Any, Any], None],
        programs: tuple[int, int],
        operands: dict[str, Array],
        results: dict[str, jax.ShapeDtypeStruct],
        flops: int,
    ) -> dict[str, Array]:
        """Run a kernel on a grid of `programs` for each row; return its results by name.

        The body gets the operands and results by name, the two numbers of its program, and the row.
        """
        names = [*operands, *results]

        def kernel(*refs: Any) -> None:
            numbers = (pl.program_id(axis) for axis in range(3))
            body(dict(zip(names, refs, strict=True)), *numbers)

        # Profiles show the name. JAX drops `cost_estimate` for Triton; plans read the metadata.
        kernel.__name__ = f"matrix_state_{name}"
        found = pl.pallas_call(
            kernel,
            out_shape=list(results.values()),
            grid=(*programs, self.batch),
            compiler_params=plgpu.CompilerParams(num_warps=WARPS, num_stages=1),
            metadata={"flops": str(flops)},
            interpret=self.interpret,
        )(*operands.values())
        return dict(zip(results, found, strict=True))
