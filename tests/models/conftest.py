"""Small models of every kind, and packed rows with a distinct token at every position."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.batch import Batch
from birdie_jax.batching.packing import pack_rows
from birdie_jax.config import ModelConfig
from birdie_jax.models import Encoder, build_model, encoder_names, language_model_names, layer_stacks
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.models.gated_deltanet import GatedDeltaNetConfig
from birdie_jax.models.griffin import GriffinConfig
from birdie_jax.models.hawk import HawkConfig
from birdie_jax.models.mamba import MambaConfig
from birdie_jax.models.mamba2 import Mamba2Config
from birdie_jax.models.registry import architecture_of
from birdie_jax.objectives import Example
from tests.generation.conftest import kinds
from tests.quick_jit import quick_jit

VOCAB = 384
LENGTH = 24
# Context and target lengths of the samples in a row; the second has no context. The spacing is the minimum.
SAMPLES = ((5, 3), (0, 4), (2, 2))
SPACING = 3
ENCODER = EncoderConfig(positions=LENGTH, attention_heads=4, ssm_state=8)
SECTIONS = (
    HawkConfig(heads=4),
    AttentionConfig(heads=4, kv_heads=2),
    MambaConfig(state_size=4),
    Mamba2Config(head_features=4, state_size=4),
    GatedDeltaNetConfig(heads=2),
    ENCODER,
    # Three layers are one period and one layer of the next.
    GriffinConfig("recurrent,attention"),
)
# Mixers with other fields, which change their parameters, by the name that `make` takes.
VARIANTS = {
    "mamba2_groups": ("mamba2", Mamba2Config(head_features=4, state_size=4, groups=2)),
    "gated_deltanet_shared_keys": ("gated_deltanet", GatedDeltaNetConfig(heads=4, key_heads=2)),
    # With shared keys, XLA of JAX 0.10 crashes on CPUs when it compiles a vmap of this gradient.
    "gated_deltanet_by_channel": (
        "gated_deltanet",
        GatedDeltaNetConfig(heads=4, channel_decay=True, negative_eigenvalues=True),
    ),
}
# The first model of each mixer; the others differ only in an MLP or lack a term.
BY_MIXER = {
    architecture_of(ModelConfig(name=name)).mixer: name for name in reversed(language_model_names())
}
SLOW = pytest.mark.slow
# Other mixers read causally with the same code, and the tests of their equations read both ways.
CAUSAL_TOO = ("gated_ssm_plus", "transformer", "gated_deltanet")
ONE_EACH = [(name, True) for name in BY_MIXER.values()]
KINDS = kinds(ONE_EACH + [(name, False) for name in CAUSAL_TOO], fast=ONE_EACH)
# Their heads read in both directions; reading causally is the same with fewer.
KINDS += [pytest.param((name, True), id=name, marks=SLOW) for name in VARIANTS]
ENCODER_KINDS = [
    pytest.param((name, True), id=name, marks=() if name in ("bigs", "stack_attention") else SLOW)
    for name in encoder_names()
]


# With steps of at most 0.1, Mamba's state would be small next to its skip connection. With larger steps,
# Mamba-2's rates of up to 16 would forget everything.
STATE_SPACE = {"mamba": {"step_bias": 4}, "mamba2": {"step_bias": 4, "A_log": -3}}


def tiered(fast, values):
    """Return values, or tuples of values, as test parameters; those in `fast` run in the fast tier."""
    return [
        pytest.param(*value if isinstance(value, tuple) else (value,), marks=() if value in fast else SLOW)
        for value in values
    ]


@pytest.fixture(params=KINDS, scope="module")
def kind(request):
    """Return the name and direction of a language model."""
    return request.param


@pytest.fixture(autouse=True, scope="module")
def layers_in_a_loop():
    """Compile layers as a loop; test_unrolled_layers.py tests unrolled layers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_stacks, "MAX_UNROLLED_LAYERS", 0)
        yield


@cache
def compiled(model, method="__call__"):
    """Return (variables, *inputs) -> outputs for a method of a model, compiled once for all tests."""
    return quick_jit(partial(model.apply, method=method))


@pytest.fixture(scope="session")
def make():
    """Return a function that creates a model and its variables from fields."""

    @cache
    def variables_of(model):
        variables = quick_jit(model.init)(jax.random.key(0), pack([[(1, 1)]], length=4))
        # With the small initial size of the tables, differences would be below rounding.
        encodes = isinstance(model, Encoder)

        def enlarged(path, x):
            if path[0].key in ("embedding", "head"):
                return x * 30
            if model.config.name in STATE_SPACE and path[-1].key in STATE_SPACE[model.config.name]:
                return x + STATE_SPACE[model.config.name][path[-1].key]
            if any(part.key == "selection" for part in path):
                return x * 4
            # The initial weights of encoders are 0.02 for any number of inputs.
            return x * 50 * x.shape[-2] ** -0.5 if encodes and path[-1].key == "kernel" else x

        return {"params": jax.tree_util.tree_map_with_path(enlarged, variables["params"])}

    def build(**fields):
        sections = SECTIONS
        if fields.get("name") in VARIANTS:
            name, *sections = VARIANTS[fields["name"]]
            fields |= {"name": name, "sections": tuple(sections)}
        layers = 3 if fields.get("name") == "griffin" else 2
        sizes = {"layers": layers, "features": 16, "state": 16, "mlp_features": 32, "sections": SECTIONS}
        exact = {"dtype": "float32", "remat": "none", "tie_embeddings": False}
        config = ModelConfig(**(sizes | exact | fields))
        # Direction, types and remat do not change the parameters (test_compute.py).
        plain = replace(config, dtype="float32", remat="none", bidirectional=True, scan_dtype="float32")
        plain = replace(plain, sections=tuple(sections))
        return build_model(config, VOCAB), variables_of(build_model(plain, VOCAB))

    return build


@pytest.fixture(scope="session")
def packed() -> Batch:
    """Return one row of `SAMPLES` that ends in padding; every position, padding too, has its own token."""
    batch = pack([SAMPLES])
    return batch._replace(tokens=300 + jnp.arange(LENGTH, dtype=jnp.int32)[None])


def pack(rows, length=LENGTH, spacing=SPACING) -> Batch:
    """Pack samples of random tokens with these context and target lengths."""
    random = np.random.default_rng(0)

    def sample(context, target):
        draw = lambda count: random.integers(256, VOCAB, count).astype(np.int32)  # noqa: E731
        return Example(draw(context), draw(target), 0)

    examples = [[sample(*lengths) for lengths in row] for row in rows]
    return jax.tree.map(jnp.asarray, pack_rows(examples, length, spacing))


@pytest.fixture(name="pack", scope="session")
def pack_fixture():
    """Return `pack`."""
    return pack


@pytest.fixture(scope="session")
def samples() -> tuple[tuple[int, int], ...]:
    """Return the context and target lengths of the samples in `packed`."""
    return SAMPLES
