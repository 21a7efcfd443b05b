"""Low-rank adaptation (Hu et al. 2021, arXiv 2106.09685) as an optimizer.

A map W [in, out] becomes W0 + alpha / rank * A B with A [in, rank] and B [rank, out] (equation 3). The
gradients of A and B follow from the gradient G of W: alpha / rank * G B^T and alpha / rank * A^T G. The
state of this optimizer consists of the factors and of the inner optimizer's state for them. Each step
updates W itself, so the parameters of a run are always merged, and code that evaluates, generates or
exports needs no change. The full gradient of W is computed, so LoRA saves memory only in the optimizer's
state.
"""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from birdie_jax.config_sections import Config, FinetuneLoraConfig
from birdie_jax.errors import ConfigError, shown
from birdie_jax.models.parameters import ParameterPolicy
from birdie_jax.models.task_head import TASK_HEAD
from birdie_jax.optimizers.registry import make_optimizer

Factors = dict[str, Float[Array, "..."]]
"""The factors `a` and `b` of a map."""


class LoraState(NamedTuple):
    """The state of the optimizer.

    Attributes:
        factors: the factors of each adapted map, by the map's name.
        inner: the state of the inner optimizer, which updates the factors and the parameters of a head.
    """

    factors: dict[str, Factors]
    inner: optax.OptState


def optimizer_of_run(config: Config, policies: PyTree[ParameterPolicy]) -> optax.GradientTransformation:
    """Return the optimizer of a run, for all parameters or for low-rank factors (`config.finetune.lora`).

    Raises:
        ConfigError: the optimizer is unknown, or a name in `lora.maps` matches no hidden matrix.
    """

    def make(of: PyTree[ParameterPolicy]) -> optax.GradientTransformation:
        return make_optimizer(config.optimizer, config.train.num_steps, of)

    settings = config.finetune.lora
    return adapt(settings, policies, make, config.seed) if settings.rank else make(policies)


def adapt(
    settings: FinetuneLoraConfig,
    policies: PyTree[ParameterPolicy],
    make: Callable[[PyTree[ParameterPolicy]], optax.GradientTransformation],
    seed: int = 0,
) -> optax.GradientTransformation:
    """Return an optimizer that adapts maps with low-rank factors, and trains all parameters of a head.

    Other parameters do not change.

    Args:
        settings: rank, scale and the names of the maps.
        policies: the policy of every parameter.
        make: policies -> an optimizer of parameters with these policies.
        seed: the seed of the first factors.

    Raises:
        ConfigError: a name matches no hidden matrix outside the head.
    """
    named = _named(policies)
    head = [name for name in named if name.startswith(f"{TASK_HEAD}/")]
    hidden = [name for name, policy in named.items() if policy.hidden_matrix and name not in head]
    maps = _chosen_maps(settings, hidden)
    scale = settings.alpha / settings.rank
    own: dict[str, Any] = {
        name: {
            factor: ParameterPolicy((None, None), True, named[name].learning_rate_factor) for factor in "ab"
        }
        for name in maps
    }
    inner = make(own | {name: named[name] for name in head})

    def whole(params: Mapping[str, Array]) -> dict[str, Array]:
        return {name: params[name] for name in head}

    def init(params: optax.Params) -> LoraState:
        leaves = _named(params)
        key = jax.random.key(seed)
        factors = {
            name: _first_factors(leaves[name], settings.rank, jax.random.fold_in(key, number))
            for number, name in enumerate(maps)
        }
        return LoraState(factors, inner.init(factors | whole(leaves)))

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None
    ) -> tuple[optax.Updates, LoraState]:
        gradients = _named(updates)
        at: dict[str, Any] = state.factors | whole(_named(params))
        slopes = {name: _slopes(gradients[name], state.factors[name], scale) for name in maps}
        changes: Any
        changes, kept = inner.update(slopes | whole(gradients), state.inner, at)
        factors: Any = optax.apply_updates(at, changes)
        moved = {name: scale * (_product(factors[name]) - _product(at[name])) for name in maps}
        moved |= {name: changes[name] for name in head}
        leaves = [moved.get(name, jnp.zeros_like(leaf)) for name, leaf in gradients.items()]
        state = LoraState({name: factors[name] for name in maps}, kept)
        return jax.tree.unflatten(jax.tree.structure(updates), leaves), state

    return optax.GradientTransformation(init, update)


def _named(tree: PyTree) -> dict[str, Any]:
    """Return the leaves of a tree by parameter name."""
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {"/".join(str(part.key) for part in path): leaf for path, leaf in paths}


def _chosen_maps(settings: FinetuneLoraConfig, hidden: Sequence[str]) -> list[str]:
    chosen: set[str] = set()
    for pattern in settings.maps.split(","):
        fitting = [name for name in hidden if fnmatchcase(name, pattern.strip())]
        if not fitting:
            raise ConfigError(
                f"config.finetune.lora.maps: found {shown(pattern)}; allowed: patterns of "
                f"{', '.join(hidden)}"
            )
        chosen.update(fitting)
    return [name for name in hidden if name in chosen]


def _first_factors(value: Float[Array, "... inputs outputs"], rank: int, key: jax.Array) -> Factors:
    *layers, inputs, outputs = value.shape
    return {
        "a": jax.random.normal(key, (*layers, inputs, rank), jnp.float32) * inputs**-0.5,
        "b": jnp.zeros((*layers, rank, outputs), jnp.float32),
    }


def _product(factors: Factors) -> Float[Array, "... inputs outputs"]:
    return jnp.matmul(factors["a"], factors["b"], precision="highest")


def _slopes(gradient: Float[Array, "... inputs outputs"], factors: Factors, scale: float) -> Factors:
    """Return the gradients of the factors of a map from the gradient of the map."""
    return {
        "a": scale * jnp.einsum("...io,...ro->...ir", gradient, factors["b"], precision="highest"),
        "b": scale * jnp.einsum("...io,...ir->...ro", gradient, factors["a"], precision="highest"),
    }
