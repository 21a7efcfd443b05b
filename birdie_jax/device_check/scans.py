"""The correctness and speed of each implementation of a model's scan on a device.

One period of the model's layers reads packed rows with contexts and resets, and one token after a cache.
The check compares its output, the gradients of all its parameters, and the cache after the token with XLA's
in float32. An implementation is correct if the distance of each is at most twice that of XLA's in the
model's own types.
"""

import statistics
import time
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from birdie_jax.batch import Batch
from birdie_jax.config_sections import ModelConfig
from birdie_jax.errors import one_line
from birdie_jax.models import build_model
from birdie_jax.models.language_model import looped_hidden
from birdie_jax.models.layer_stacks import pattern_configs
from birdie_jax.models.layout import batch_layout, causal_layout
from birdie_jax.models.registry import architecture_of, mixer_config
from pallas_kernels import linear_scan, selective_scan

XLA = "xla"
# For tests: interpret a kernel on the host.
_INTERPRETED = "pallas_interpret"
_VOCAB_SIZE = 256
_ROWS, _MAX_LENGTH = 2, 512
# The maximum distance from float32, relative to XLA's; and a distance that is negligible in any type.
_FARTHER, _ROUNDING = 2.0, 1e-4
# Above this error XLA itself is wrong in any type; for a zero gradient, the distance is 1.
_MAX_ERROR = 0.5
_REPEATS = 5

Arrays = dict[str, np.ndarray]


class CheckedScan(NamedTuple):
    """The check of an implementation on a device.

    Attributes:
        implementation: the name of the implementation.
        error: the largest relative distance from float32 of the output or a gradient, in the L2 norm; None
            if it does not run.
        problem: the fault; "" if there is none.
        seconds: the median seconds of one period of layers and its gradient; None if it is wrong or does
            not fit the device.
    """

    implementation: str
    error: float | None
    problem: str
    seconds: float | None


def scan_candidates(model: ModelConfig, platform: str) -> tuple[str, ...]:
    """Return the implementations of the model's scan for attached devices of a platform.

    The result is empty if the model has no scan.
    """
    names = dict.fromkeys((*linear_scan.IMPLEMENTATIONS, *selective_scan.IMPLEMENTATIONS))
    if architecture_of(model).encoder or _can_be(model, "?", platform):
        return ()
    return tuple(name for name in names if name != _INTERPRETED and _can_be(model, name, platform))


def _can_be(model: ModelConfig, implementation: str, platform: str) -> bool:
    changed = replace(model, scan_implementation=implementation)
    refused: list[str] = []

    def require(condition: bool, field: str, allowed: str) -> None:
        del allowed
        if not condition and field == "model.scan_implementation":
            refused.append(field)

    mixer_config(changed).check_platform(changed, platform, require)
    return not refused


def check_scans(
    model: ModelConfig, candidates: tuple[str, ...], rows: int, length: int
) -> list[CheckedScan]:
    """Check implementations on this process's first device, and time the correct ones.

    Args:
        model: the architecture of a run.
        candidates: the implementations; XLA is always included.
        rows: the number of rows that a device reads at a time in the run.
        length: the number of tokens in a row of the run.
    """
    names = dict.fromkeys((XLA, *candidates))
    with jax.default_device(jax.local_devices()[0]):
        small = replace(model, layers=len(pattern_configs(model)), dropout=0.0, remat="none")
        exact = replace(small, dtype="float32", scan_dtype="float32", residual_dtype="float32")
        batch = packed_batch(_ROWS, min(length, _MAX_LENGTH))
        params = jax.jit(build_model(small, _VOCAB_SIZE).init)(jax.random.key(0), batch)["params"]
        with jax.default_matmul_precision("highest"):
            reference = _arrays(exact, XLA, params, batch)
        found, limits = [], {}
        for name in names:
            try:
                errors = distances(_arrays(small, name, params, batch), reference)
            except Exception as error:
                found.append(CheckedScan(name, None, one_line(str(error), 300), None))
                continue
            if name == XLA:
                limits = {key: min(_MAX_ERROR, _FARTHER * one + _ROUNDING) for key, one in errors.items()}
            problem, seconds = _problem(errors, limits), None
            if not problem:
                try:
                    seconds = _seconds(small, name, params, packed_batch(rows, length))
                except jax.errors.JaxRuntimeError as error:
                    if "RESOURCE_EXHAUSTED" not in str(error):
                        problem = f"at {rows} rows of {length}: {one_line(str(error), 300)}"
            found.append(CheckedScan(name, max(errors.values()), problem, seconds))
    return found


def packed_batch(rows: int, length: int) -> Batch:
    """Return rows of two samples and some padding; a third of each sample is context."""
    rng = np.random.default_rng(0)
    sample = max(1, (length - length // 16) // 2)
    within = np.arange(length) % sample
    segments = np.where(np.arange(length) < 2 * sample, 1 + np.arange(length) // sample, 0)
    shape = (rows, length)
    tokens = rng.integers(0, _VOCAB_SIZE, shape).astype(np.int32)
    segments = np.broadcast_to(segments, shape).astype(np.int32)
    positions = np.broadcast_to(within, shape).astype(np.int32)
    context = (positions < sample // 3) & (segments > 0)
    return Batch(
        *(tokens, np.roll(tokens, -1, 1), ~context & (segments > 0)),
        *(segments, positions, context, np.zeros_like(segments)),
    )


def _gradient(model: ModelConfig, implementation: str) -> Any:
    """Return (params, batch, weights) -> the output and the gradients of its weighted sum, compiled."""
    module = build_model(replace(model, scan_implementation=implementation), _VOCAB_SIZE)

    @jax.jit
    def gradient(params: Any, batch: Batch, weights: jax.Array) -> tuple[jax.Array, Any]:
        def weighted(params: Any) -> tuple[jax.Array, jax.Array]:
            x, _ = module.apply({"params": params}, batch.tokens, batch_layout(batch), method="encode")
            x = x.astype(jnp.float32)
            return jnp.sum(x * weights), x

        gradients, x = jax.grad(weighted, has_aux=True)(params)
        return x, gradients

    return gradient


def _weights(model: ModelConfig, batch: Batch) -> jax.Array:
    shape = (*np.shape(batch.tokens), model.features)
    there = jnp.asarray(batch.segment_ids > 0)[..., None]
    return jnp.where(there, jax.random.normal(jax.random.key(1), shape), 0.0)


def _arrays(model: ModelConfig, implementation: str, params: Any, batch: Batch) -> Arrays:
    weights = _weights(model, batch)
    x, gradients = _gradient(model, implementation)(params, batch, weights)
    # Values on padding have no meaning.
    named = {"output": x * (weights != 0)}
    hidden, cache = _decode_token(model, implementation, params, batch)
    named["the output of a decoded token"] = hidden
    for kind, tree in (("the gradient of", gradients), ("the decoding cache,", cache)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            named[f"{kind} {jax.tree_util.keystr(path, simple=True, separator='.')}"] = leaf
    return {name: np.asarray(leaf, np.float64) for name, leaf in named.items()}


def _decode_token(model: ModelConfig, implementation: str, params: Any, batch: Batch) -> tuple[Any, Any]:
    """Return the output of a token after a random cache, and the cache after it."""
    module = build_model(replace(model, scan_implementation=implementation), _VOCAB_SIZE)
    tokens, random = jnp.asarray(batch.tokens[:, :1]), np.random.default_rng(0)

    def draw(leaf: jax.Array) -> jax.Array:
        drawn = random.normal(size=leaf.shape)
        return jnp.asarray(drawn, leaf.dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    cache = jax.tree.map(draw, module.empty_cache(len(tokens), 1))
    return jax.jit(partial(looped_hidden, module))(params, cache, tokens, causal_layout(*tokens.shape))


def distances(found: Arrays, reference: Arrays) -> dict[str, float]:
    """Return the relative distance of each array from the reference, in the L2 norm; infinite for a NaN."""
    result = {}
    for name, wanted in reference.items():
        size = float(np.linalg.norm(wanted))
        distance = float(np.linalg.norm(found[name] - wanted))
        result[name] = (distance / size if size else distance) if np.isfinite(distance) else float("inf")
    return result


def _problem(errors: dict[str, float], limits: dict[str, float]) -> str:
    """Return a text about the array farthest beyond its limit; "" if none is."""
    worst = max(errors, key=lambda name: errors[name] / limits.get(name, _MAX_ERROR))
    limit = limits.get(worst, _MAX_ERROR)
    if errors[worst] <= limit:
        return ""
    return f"{worst} is {errors[worst]:.2g} from float32; allowed: at most {limit:.2g}"


def _seconds(model: ModelConfig, implementation: str, params: Any, batch: Batch) -> float:
    """Return the median seconds of a period of layers and its gradient."""
    gradient, weights = _gradient(model, implementation), _weights(model, batch)
    batch = jax.device_put(batch)
    jax.block_until_ready(gradient(params, batch, weights))
    seconds = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        jax.block_until_ready(gradient(params, batch, weights))
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)
