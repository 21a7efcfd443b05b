"""Workdirs with a checkpoint of random parameters, like a run's without training."""

import dataclasses
import random
import runpy
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from birdie_jax.bandit import init_bandit
from birdie_jax.config import Config, default_config, parse_config, to_dict
from birdie_jax.engine import Checkpoints, TrainState, Workdir
from birdie_jax.models import build_model
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.models.parameters import parameter_policies
from birdie_jax.optimizers import make_optimizer
from birdie_jax.text import Tokenizer, train_tokenizer

POSITION = {"row_streams": np.zeros((2, 3), np.int64)}


@cache
def small_tokenizer(pieces: int = 300) -> Tokenizer:
    words = random.Random(0)
    texts = ["".join(words.choices("abcdefghijklmno ", k=200)) for _ in range(200)]
    return train_tokenizer(texts, pieces, tokenizer_type="bpe")


def micro_config(**model) -> Config:
    path = Path(__file__).with_name("micro_config.py")
    config = parse_config(runpy.run_path(str(path))["get_config"]())
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **model))


def random_params(config: Config, vocab_size: int, seed: int):
    random_numbers = np.random.default_rng(seed)
    shapes = parameter_shapes(build_model(config.model, vocab_size))
    return jax.tree.map(lambda leaf: random_numbers.normal(0, 0.5, leaf.shape).astype(np.float32), shapes)


def write_workdir(workdir: Path, config: Config, steps=(5,), seed: int = 0) -> dict[int, object]:
    """Write a run's files with a checkpoint at each of `steps`, and return the parameters of each.

    `seed` and the step choose the parameters.
    """
    files = Workdir(workdir)
    files.claim(to_dict(config), default_config().to_dict())
    tokenizer = small_tokenizer()
    policies = parameter_policies(build_model(config.model, tokenizer.vocab_size))
    tokenizer.save(workdir / "tokenizer.model")
    checkpoints = Checkpoints(files, config.checkpoint)
    saved = {}
    for step in steps:
        params = jax.tree.map(jnp.asarray, random_params(config, tokenizer.vocab_size, seed + step))
        optimizer = make_optimizer(config.optimizer, 10, policies).init(params)
        bandit = init_bandit(config.bandit, [0.5, 0.5], [0, 1], 2, jax.random.key(0))
        state = TrainState(jnp.int32(step), params, optimizer, {"bandit": bandit})
        checkpoints.save(state, POSITION, step)
        checkpoints.wait()
        saved[step] = params
    checkpoints.close()
    return saved
