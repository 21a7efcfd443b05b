"""What a token moves while decoding, on a TPU that need not be there: `python -m benchmarks.decode_bytes`.

For models of a preset, compiled for one chip with parameters in the types that decoding has them in:
the bytes of main memory that a step for all rows reads and writes, and the least: every parameter that
it reads, once, and the state once in and once out. A ratio of one is a step that is bound by nothing
else.
"""

from functools import partial

import jax
import jax.numpy as jnp
from absl import app, flags
from jax.sharding import SingleDeviceSharding

from birdie_jax.config import parse_config
from birdie_jax.config_flag import load_config
from birdie_jax.generation.device_programs import cast_parameters
from birdie_jax.models import LanguageModel, build_model
from birdie_jax.models.language_model import looped_hidden, parameter_shapes
from birdie_jax.models.layout import causal_layout
from birdie_jax.models.parameters import parameter_policies
from birdie_jax.planning.compilation import compile_lowered
from birdie_jax.planning.topology import make_topology
from hlo_analysis import read_step_costs

_CONFIG = flags.DEFINE_string("preset", "birdie_1_4b", "A preset of configs/.")
_MODELS = flags.DEFINE_list(
    "models", "gated_ssm_plus,hawk_mlp,mamba,mamba2,gated_deltanet", "Its variants."
)
_TOPOLOGY = flags.DEFINE_string("topology", "v5p:2x2x1", "A topology; one of its chips decodes.")
_ROWS = flags.DEFINE_list("rows", "1,32", "The numbers of samples that are decoded at once.")
VOCAB = 32_256


def decode_step(model):
    """Return (params, cache, tokens) -> (the most probable tokens, cache), a token of each row."""

    def step(params, cache, tokens):
        layout = causal_layout(tokens.shape[0], 1)
        hidden, cache = looped_hidden(model, params, cache, tokens, layout)
        scores = model.apply({"params": params}, hidden, method=LanguageModel.logits)
        return jnp.argmax(scores, axis=-1), cache

    return step


def main(argv):
    del argv
    device = make_topology(_TOPOLOGY.value, log=print).devices[0]
    sharding = SingleDeviceSharding(device)

    def abstract(tree, dtype=None):
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype or leaf.dtype, sharding=sharding), tree
        )

    def size(tree):
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))

    print("| model | rows | state a row, numbers | moved | least | ratio |\n|---|---|---|---|---|---|")
    for name in _MODELS.value:
        config = parse_config(load_config(f"{_CONFIG.value}:{name}")).model
        model = build_model(config, VOCAB)
        params = abstract(
            jax.eval_shape(
                partial(cast_parameters, policies=parameter_policies(model)), parameter_shapes(model)
            )
        )
        for rows in map(int, _ROWS.value):
            cache = abstract(jax.eval_shape(lambda model=model, rows=rows: model.empty_cache(rows, 1)))
            tokens = jax.ShapeDtypeStruct((rows, 1), jnp.int32, sharding=sharding)
            program = jax.jit(decode_step(model), donate_argnums=1).lower(params, cache, tokens)
            moved = read_step_costs(compile_lowered(program, "tpu").hlo_text, {}).traffic_bytes
            least = size(params) + 2 * size(cache)
            numbers = sum(leaf.size for leaf in jax.tree.leaves(cache)) // rows
            print(
                f"| {name} | {rows} | {numbers:,} | {moved / 1e9:.2f} GB | {least / 1e9:.2f} GB | "
                f"{moved / least:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    app.run(main)
