"""Small models for generation, and prompts of many lengths."""

import random
from functools import cache

import jax
import numpy as np
import pytest

from birdie_jax.batch import Batch
from birdie_jax.config import ModelConfig
from birdie_jax.generation import Prompt
from birdie_jax.models import build_model
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.griffin import GriffinConfig
from birdie_jax.models.hawk import HawkConfig
from birdie_jax.models.mamba2 import Mamba2Config
from birdie_jax.text import train_tokenizer
from tests.quick_jit import quick_jit

VOCAB = 384
# A recurrent model, one with attention and one with both are fast; the others are slow.
_FAST_KINDS = {("gated_ssm_plus", True), ("griffin", False)}


def kinds(pairs, fast=_FAST_KINDS):
    """Return pairs of (name, bidirectional) as parameters of tests; those in `fast` are fast."""
    return [
        pytest.param(
            kind,
            id=f"{kind[0]}-{'bidirectional' if kind[1] else 'causal'}",
            marks=() if kind in fast else pytest.mark.slow,
        )
        for kind in pairs
    ]


SECTIONS = (
    HawkConfig(heads=4),
    AttentionConfig(heads=4),
    Mamba2Config(head_features=4, state_size=4),
    GriffinConfig("recurrent,attention"),
)


@cache
def small_model(name="gated_ssm_plus", bidirectional=True, **fields):
    """Return a model with parameters for which every earlier token affects the next one."""
    # Three layers: one period of the hybrid is two, and the third begins the next period.
    sizes = {"layers": 3 if name == "griffin" else 2, "features": 16, "state": 16, "mlp_features": 32}
    sizes |= {"sections": SECTIONS}
    exact = {"dtype": "float32", "remat": "none", "tie_embeddings": False}
    config = ModelConfig(**(sizes | exact | fields), name=name, bidirectional=bidirectional)
    model = build_model(config, VOCAB)
    one = np.zeros((1, 1), np.int32)
    batch = Batch(one, one, one > 0, one, one, one > 0, one)
    params = quick_jit(model.init)(jax.random.key(0), batch)["params"]
    grown = {name: table * 4 for name, table in params.items() if name in ("embedding", "head")}
    blocks = jax.tree.map(lambda leaf: leaf * 3 if leaf.ndim == 3 else leaf, params["blocks"])
    return model, {**params, **grown, "blocks": blocks}


@pytest.fixture(scope="session")
def tokenizer():
    words = random.Random(0)
    texts = [" ".join(words.choices(["the", "river", "seven", "of", "return"], k=30)) for _ in range(100)]
    return train_tokenizer(texts, 300, tokenizer_type="bpe")


def some_prompts():
    """Return prompts of many lengths; the shortest are shorter than the convolution."""
    numbers = np.random.default_rng(0)

    def draw(count):
        return numbers.integers(256, VOCAB, count).astype(np.int32)

    lengths = [(0, 0), (1, 0), (2, 0), (0, 1), (9, 0), (40, 0), (3, 5), (0, 33)]
    return [Prompt(draw(context), draw(prefix)) for context, prefix in lengths]
