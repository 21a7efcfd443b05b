"""Runs one step on fake devices like the train loop, and prints its costs; test_plan.py starts it."""

import json
import runpy
import sys
from typing import Any

import jax
import numpy as np

from birdie_jax.batch import Batch
from birdie_jax.config import parse_config
from birdie_jax.engine.mesh import batch_sharding
from birdie_jax.planning.compilation import abstract_step
from birdie_jax.resolve import resolve_run
from birdie_jax.vocabulary import padded_vocab_size


def full_batch(rows: int, length: int) -> Batch:
    """Return a batch of full rows, half context and half target."""
    tokens = np.random.default_rng(0).integers(256, 500, (rows, length)).astype(np.int32)
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), tokens.shape)
    context = positions < length // 2
    ones = np.ones_like(tokens)
    return Batch(tokens, tokens, ~context, ones, positions, context, 0 * ones)


def bytes_on(device: Any, tree: Any) -> int:
    """Return the bytes of the arrays of `tree` on `device`."""
    shards = (shard for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards)
    return sum(shard.data.nbytes for shard in shards if shard.device == device)


def main() -> None:
    file, overrides = sys.argv[1], sys.argv[2:]
    config = runpy.run_path(file)["get_config"]()
    config.update_from_flattened_dict(
        {name: int(value) for name, value in (override.split("=") for override in overrides)}
    )
    config = parse_config(config)
    vocab_size = padded_vocab_size(config.data.vocab_size)
    run = resolve_run(config, vocab_size)
    mesh = run.mesh
    with jax.set_mesh(mesh):
        step = abstract_step(run)
        state = step.create_state()
        batch = full_batch(config.batching.rows, config.batching.length)
        batch = jax.device_put(batch, batch_sharding(mesh))
        first = mesh.devices.flat[0]
        costs = {
            "parameters": bytes_on(first, state.params),
            "optimizer": bytes_on(first, state.optimizer),
            "state": bytes_on(first, state),
        }
        compiled = step.update.lower(state, batch).compile()
        state, metrics = compiled(state, batch)
        assert np.isfinite(metrics.loss)
    memory = compiled.memory_analysis()
    costs["total"] = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
    )
    costs["flops"] = compiled.cost_analysis()["flops"]
    print(json.dumps(costs))


if __name__ == "__main__":
    main()
