"""Loss and gradients of models on every mesh of a table; test_mesh.py runs it on eight fake devices."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from birdie_jax.batching.packing import pack_rows
from birdie_jax.config import BatchingConfig, Config, MeshConfig, ModelConfig, TrainConfig
from birdie_jax.cpu_threads import start_enough_threads
from birdie_jax.engine import TrainState
from birdie_jax.engine.mesh import arrange, batch_sharding, fill_in_sizes, state_sharding
from birdie_jax.models import build_model, gated_deltanet, mamba2
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.models.gated_deltanet import GatedDeltaNetConfig
from birdie_jax.models.gated_ssm import GATED_SSM
from birdie_jax.models.griffin import GriffinConfig
from birdie_jax.models.hawk import HawkConfig
from birdie_jax.models.mamba import MambaConfig
from birdie_jax.models.mamba2 import Mamba2Config
from birdie_jax.models.parameters import parameter_policies
from birdie_jax.models.recurrence import ScanSettings, make_recurrence, sharded_recurrence
from birdie_jax.models.sequence_parallel import RecurrenceOperands
from birdie_jax.objectives import Example, make_objective
from birdie_jax.pretraining.language_model_step import arm_sums
from tests.quick_jit import quick_jit

VOCAB, ROWS, LENGTH = 384, 8, 64
MASKED = make_objective("masked_lm", num_pieces=128)
AXES = ("data", "fsdp", "tensor", "sequence")
BOTH, CAUSAL = True, False
SECTIONS = (
    HawkConfig(heads=8),
    AttentionConfig(heads=8, kv_heads=4),
    EncoderConfig(positions=LENGTH, attention_heads=4, ssm_state=4, ssm_heads=2),
    MambaConfig(state_size=4),
    Mamba2Config(head_features=4, state_size=4),
    GatedDeltaNetConfig(heads=4),
    GriffinConfig("recurrent,attention"),
)
# Mixers with other fields, by the name in `TABLE`.
VARIANTS = {
    "mamba2_groups": ("mamba2", Mamba2Config(head_features=4, state_size=4, groups=2)),
    "gated_deltanet_by_channel": ("gated_deltanet", GatedDeltaNetConfig(heads=4, channel_decay=True)),
    "gated_deltanet_shared_keys": ("gated_deltanet", GatedDeltaNetConfig(heads=4, key_heads=2)),
}
# (data, fsdp, tensor, sequence), the models that are tried there.
TABLE = {
    (1, 8, 1, 1): (("gated_ssm_plus", BOTH),),
    (1, 1, 8, 1): (("hawk", BOTH),),
    (1, 1, 1, 8): (("mamba", CAUSAL), ("gated_deltanet_by_channel", BOTH)),
    (2, 1, 4, 1): (("transformer", BOTH),),
    (2, 2, 2, 1): (("griffin", BOTH),),
    (1, 2, 1, 4): (("gated_ssm_plus", CAUSAL), ("mamba2_groups", CAUSAL)),
    (2, 1, 2, 2): (("hawk", CAUSAL), ("birdie_ssm", BOTH)),
    (1, 2, 2, 2): (
        *(("gated_ssm_plus", BOTH), ("mamba", BOTH), ("mamba2", BOTH)),
        ("gated_deltanet_shared_keys", BOTH),
    ),
}


# Where the positions that bear loss are gathered: from the parts of a row, and beside a divided vocabulary.
MASKED_TABLE = {(1, 2, 2, 2): ("gated_ssm_plus",), (2, 2, 2, 1): ("bigs", "stack_attention")}
RECURRENCE_MESHES = {
    "gated_ssm": ((1, 1, 1, 8), (1, 1, 2, 4), (2, 1, 2, 2), (1, 2, 4, 1), (1, 1, 8, 1)),
    "mamba2": ((1, 1, 2, 4),),
    "gated_deltanet": ((1, 1, 2, 4),),
}


def packed_batch():
    random = np.random.default_rng(0)

    def sample(context, target, arm):
        tokens = random.integers(256, VOCAB, context + target).astype(np.int32)
        return Example(tokens[:context], tokens[context:], arm)

    # Some samples go over several shards of 8 positions, some shards hold several samples.
    rows = [
        [sample(20 + row, 9, 0), sample(2, 3 + row % 3, 1)]
        if row % 2
        else [sample(3, 4, 1), sample(0, 40, 0)]
        for row in range(ROWS)
    ]
    return pack_rows(rows, LENGTH, spacing=3)


def masked_batch():
    random = np.random.default_rng(0)
    counts = [(30, 20) if row % 2 else (58,) for row in range(ROWS)]
    rows = [[MASKED.build(random.integers(256, VOCAB, count), random) for count in row] for row in counts]
    return pack_rows(rows, LENGTH, spacing=3)


def loss_of(model, params, batch, max_loss_positions=None):
    sums = arm_sums(model, 2, 4, params, batch, None, max_loss_positions)
    return jnp.sum(sums.loss) / jnp.sum(batch.loss_mask), sums


def drawn_recurrences():
    """Return by name the layer of a direction, its arrays, the state before them, and their resets."""
    random = np.random.default_rng(1)
    rows, length, channels = 4, 16, 8

    def draw(*shape):
        return jnp.asarray(random.normal(size=shape), jnp.float32)

    def uniform(low, high, *shape):
        return jnp.asarray(random.uniform(low, high, shape), jnp.float32)

    def gated_ssm(bidirectional):
        return make_recurrence(GATED_SSM, ScanSettings(bidirectional, jnp.float32, "xla"))

    resets = tuple(uniform(0, 1, rows, length) < 0.1 for _ in range(2))
    a, x = uniform(0, 4, rows, length, channels), draw(rows, length, channels)
    # Heads are the channels that a mesh divides. A state is a matrix of 3 x 2.
    u, v, q, k = (draw(rows, length, channels, features) for features in (3, 2, 3, 3))
    k /= jnp.linalg.norm(k, axis=-1, keepdims=True)
    B, C = draw(2, rows, length, 1, 2)
    rates, D, bias = -uniform(0, 1, channels), draw(channels), draw(channels)
    g, beta = -uniform(0, 1, rows, length, channels), uniform(0, 2, rows, length, channels)
    matrices = draw(rows, channels, 3, 2)
    return resets, {
        "gated_ssm": (
            gated_ssm,
            RecurrenceOperands(((x, x, a), x), (uniform(0.5, 1, channels),)),
            draw(rows, channels),
        ),
        "mamba2": (
            lambda bidirectional: mamba2.make_recurrence("xla"),
            RecurrenceOperands((u, x), (rates, D, bias), (B, C)),
            matrices,
        ),
        "gated_deltanet": (
            lambda bidirectional: gated_deltanet.make_recurrence("xla"),
            RecurrenceOperands((v, q, k, g, beta), ()),
            matrices,
        ),
    }


def recurrences():
    """Values and all gradients of recurrences with a state before and after, cut by many resets."""
    resets, drawn = drawn_recurrences()
    for name, (make, operands, h0) in drawn.items():
        for bidirectional in (BOTH, CAUSAL):

            def total(operands, h0, make=make, bidirectional=bidirectional):
                own = resets if bidirectional else resets[:1]
                results = sharded_recurrence(
                    make(bidirectional), operands, h0, own, bidirectional=bidirectional
                )
                weights = (jnp.cos(jnp.arange(result.size)) for result in results)
                return sum(jnp.vdot(*pair) for pair in zip(weights, results, strict=True)), results

            step = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)
            expected = quick_jit(step)(operands, h0)
            for sizes in RECURRENCE_MESHES[name]:
                mesh = Mesh(np.array(jax.devices()).reshape(sizes), AXES, axis_types=(AxisType.Auto,) * 4)
                with jax.set_mesh(mesh):
                    result = quick_jit(step)(operands, h0)
                compare = partial(np.testing.assert_allclose, rtol=1e-5, atol=2e-5)
                jax.tree.map(compare, jax.device_get(result), jax.device_get(expected))
                print("recurrence", name, bidirectional, sizes)


def config_of(name, sizes, bidirectional=BOTH, layers=2):
    name, *sections = VARIANTS.get(name, (name, *SECTIONS))
    return Config(
        batching=BatchingConfig(rows=ROWS, length=LENGTH),
        train=TrainConfig(loss_chunk=4),
        mesh=MeshConfig(*sizes),
        model=ModelConfig(
            name=name,
            bidirectional=bidirectional,
            layers=layers,
            features=16,
            state=32,
            mlp_features=16,
            sections=tuple(sections),
            dtype="float32",
            remat="full",
        ),
    )


def divided(config, model, step, params, batch):
    """Return what `step` gives on the mesh of `config`."""
    mesh = arrange(fill_in_sizes(config, VOCAB, jax.devices()).mesh_sizes, jax.devices())
    state = TrainState(0, params, None, {})
    shardings = state_sharding(mesh, state, parameter_policies(model)).params
    with jax.set_mesh(mesh):
        spread = jax.device_put(batch, batch_sharding(mesh))
        placed = jax.device_put(params, shardings)
        program = quick_jit(
            step, in_shardings=(shardings, batch_sharding(mesh)), out_shardings=(None, shardings)
        )
        return jax.device_get(program(placed, spread))


def masked():
    """The gathered loss on a mesh is the whole one on one device."""
    batch = masked_batch()
    most = MASKED.max_loss_positions(LENGTH, 3)
    for sizes, names in MASKED_TABLE.items():
        for name in names:
            config = config_of(name, sizes)
            model = build_model(config.model, VOCAB)
            params = quick_jit(model.init)(jax.random.key(0), batch)["params"]
            whole = jax.value_and_grad(partial(loss_of, model), has_aux=True)
            expected = jax.device_get(quick_jit(whole)(params, batch))
            gathered = jax.value_and_grad(partial(loss_of, model, max_loss_positions=most), has_aux=True)
            result = divided(config, model, gathered, params, batch)
            compare = partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-6)
            jax.tree.map(compare, result, expected)
            print("masked", name, sizes, flush=True)


def main():
    start_enough_threads()
    recurrences()
    masked()
    batch = packed_batch()
    kinds = {}
    for sizes, models in TABLE.items():
        for name, bidirectional in models:
            config = config_of(name, sizes, bidirectional)
            model = build_model(config.model, VOCAB)
            step = jax.value_and_grad(partial(loss_of, model), has_aux=True)
            if (name, bidirectional) not in kinds:
                params = quick_jit(model.init)(jax.random.key(0), batch)["params"]
                kinds[name, bidirectional] = params, jax.device_get(quick_jit(step)(params, batch))
            params, expected = kinds[name, bidirectional]
            result = divided(config, model, step, params, batch)
            # The norms of short keys and outputs enlarge rounding: chunks of other lengths differ as much.
            atol = 5e-5 if config.model.name == "gated_deltanet" else 2e-6
            compare = partial(np.testing.assert_allclose, rtol=2e-4, atol=atol)
            jax.tree.map(compare, result, expected)
            print(name, sizes, bidirectional, flush=True)


if __name__ == "__main__":
    main()
