"""The language model: embedding, scanned blocks, final norm, head."""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from birdie_jax.array_types import Activations, RowKeys, TokenIds
from birdie_jax.batch import Batch
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.axes import constrained
from birdie_jax.models.layer_cache import cache_of_layer, cache_with_layer, slice_layer
from birdie_jax.models.layer_stacks import (
    Block,
    HybridLayers,
    LayerStack,
    assemble,
    is_hybrid,
    layer_configs,
    layer_stacks,
    make_mixer,
    periods,
    restacked,
    scanned,
    unstacked,
)
from birdie_jax.models.layers import FEW_TOKENS, TRANSPOSED, RMSNorm, kernel_first, keys_of_layers
from birdie_jax.models.layout import Layout, batch_layout
from birdie_jax.models.parameters import ParameterPolicy, one_token_batch, parameter
from birdie_jax.models.registry import Cache
from birdie_jax.models.task_head import Samples, head_type

# Added to the score of a barred token. Its exponential is 0, and its loss stays finite.
BARRED_SCORE = -1e30


class LanguageModel(nn.Module):
    """A stack of blocks between an embedding table and a head; layers are stacked on a leading axis.

    Attributes:
        config: the architecture.
        vocab_size: the number of rows of the embedding table.
    """

    config: ModelConfig
    vocab_size: int

    def setup(self) -> None:
        """Create the table, the scanned blocks, the final norm and, if untied, the head."""
        config = self.config
        table_shape = (self.vocab_size, config.features)
        table_init = nn.initializers.normal(config.features**-0.5)
        # Looked up in float32; `token_scores` multiplies in the type of its inputs.
        policy = ParameterPolicy(("vocab", "features"), weight_decay=True)
        self.embedding = parameter(self, "embedding", table_init, table_shape, policy)
        if not config.tie_embeddings:
            self.head = parameter(self, "head", table_init, table_shape, policy)
        self.blocks = HybridLayers(config) if is_hybrid(config) else scanned(Block, config)
        self.final_norm = RMSNorm(config.norm_epsilon, config.norm_offset)
        if config.head:
            self.task_head = head_type(config)(config)

    @property
    def drops(self) -> bool:
        """Whether training needs a key for each row, for dropout."""
        return self.config.dropout > 0 or bool(self.config.head and self.config.head_dropout > 0)

    def __call__(self, batch: Batch) -> Float[Array, "rows length vocab"]:
        """Return float32 logits for every position of packed rows."""
        x, _ = self.encode(cast(TokenIds, batch.tokens), batch_layout(batch))
        if self.config.head and self.is_initializing():
            # Initialise the parameters of the task head, which logits do not use.
            segment_ids = cast(TokenIds, batch.segment_ids)
            self.task_scores(x, Samples(segment_ids, jnp.zeros_like(segment_ids[:, :1])))
        return self.logits(self.transform(x))

    def hidden(
        self,
        tokens: TokenIds,
        layout: Layout,
        cache: Cache | None = None,
        row_keys: RowKeys | None = None,
    ) -> tuple[Activations, Cache | None]:
        """Return the input of the head's table, and the updated cache.

        Args:
            tokens: the inputs.
            layout: the bounds of the samples.
            cache: the decoding cache, as returned by `empty_cache`; None in training.
            row_keys: the key of each row for dropout; None = no dropout.
        """
        x, cache = self.encode(tokens, layout, cache, row_keys)
        return self.transform(x), cache

    def encode(
        self,
        tokens: TokenIds,
        layout: Layout,
        cache: Cache | None = None,
        row_keys: RowKeys | None = None,
        token_types: TokenIds | None = None,
    ) -> tuple[Activations, Cache | None]:
        """Return the input of `transform` and of the heads for fine-tuning, and the updated cache.

        Args:
            tokens: the inputs.
            layout: the bounds of the samples.
            cache: the decoding cache, as returned by `empty_cache`; None in training.
            row_keys: the key of each row for dropout; None = no dropout.
            token_types: the type of each token, for models with types; None = 0 for all.
        """
        layer_keys = None
        if row_keys is not None and self.config.dropout > 0:
            layer_keys = keys_of_layers(row_keys, self.config.layers)
        x = self.embed(tokens, layout, row_keys, token_types)
        x, cache = self.blocks(x, cache, layout, layer_keys)
        return self.normalise(x), cache

    def embed(
        self,
        tokens: TokenIds,
        layout: Layout,
        row_keys: RowKeys | None = None,
        token_types: TokenIds | None = None,
    ) -> Activations:
        """Return the input of the first block; this model uses only the tokens.

        Raises:
            ValueError: token types are given.
        """
        del layout, row_keys
        if token_types is not None:
            raise ValueError(f"token_types: found some for model {self.config.name}; allowed: None")
        config = self.config
        # Unit variance, like the updates of the blocks, as in Griffin. Otherwise the updates would
        # dominate.
        scale = config.embedding_scale or config.features**0.5
        x = self._look_up(self.embedding, tokens) * scale
        x = x.astype(jnp.dtype(config.residual_dtype or config.dtype))
        return constrained(x, "rows", "length", None)

    def normalise(self, x: Activations) -> Activations:
        """Return the normalised output of the last block."""
        return self.final_norm(x).astype(jnp.dtype(self.config.dtype))

    def transform(self, x: Float[Array, "*positions features"]) -> Float[Array, "*positions features"]:
        """Return the input of the head's table: here `x` itself."""
        return x

    def task_scores(
        self, x: Activations, samples: Samples, row_keys: RowKeys | None = None
    ) -> Float[Array, "rows items scores"]:
        """Return the scores of the head for fine-tuning; see `TaskHead`.

        Args:
            x: the output of `encode`.
            samples: the samples of the rows.
            row_keys: the key of each row for dropout; None = no dropout.
        """
        return self.task_head(x, samples, row_keys)

    def _look_up(self, table: Float[Array, "entries features"], ids: TokenIds) -> Activations:
        # Each device looks up its part of the features for all rows of the devices along `fsdp`. This moves
        # activations instead of the table.
        ids = constrained(ids, "reading rows", "length")
        return constrained(table[ids], "reading rows", "length", "features")

    def logits(
        self, hidden: Activations, table: Float[Array, "vocab features"] | None = None
    ) -> Float[Array, "rows length vocab"]:
        """Return float32 scores of every token for `hidden`; a `table` of None is the head's own."""
        table = self.head_table() if table is None else table
        return token_scores(hidden, table, self.head_bias(), self.config.logit_soft_cap)

    def head_table(self) -> Float[Array, "vocab features"]:
        """Return the head's weights: the embedding table if they are tied."""
        return self.embedding if self.config.tie_embeddings else self.head

    def head_bias(self) -> Float[Array, " vocab"] | None:
        """Return the bias of each token's score, which bars some tokens; None if it bars none."""
        first, last = self.config.min_predicted_id, self.config.max_predicted_id or self.vocab_size - 1
        if first == 0 and last >= self.vocab_size - 1:
            return None
        ids = jnp.arange(self.vocab_size)
        return jnp.where((ids >= first) & (ids <= last), 0.0, BARRED_SCORE)

    def empty_cache(self, rows: int, length: int | None = None) -> Cache:
        """Return the cache for `rows` new samples, with one slice per layer (`layer_stacks`).

        Args:
            rows: the number of samples, one per row.
            length: the maximum number of tokens of a row; only attention without a window uses it.

        Raises:
            ValueError: the model has attention without a window, and `length` is not given.
        """
        caches = []
        for stack in layer_stacks(self.config):
            one = make_mixer(stack.config, parent=None).empty_cache(rows, length)
            count = len(stack.layers)
            alike = jax.tree.map(lambda leaf, n=count: jnp.broadcast_to(leaf, (n, *leaf.shape)), one)
            caches.append((stack, alike))
        return assemble(caches)


def token_scores(
    hidden: Float[Array, "*positions features"],
    table: Float[Array, "vocab features"],
    bias: Float[Array, " vocab"] | None = None,
    soft_cap: float = 0.0,
) -> Float[Array, "*positions vocab"]:
    """Return hidden . table + bias in float32; the product takes the type of `hidden`.

    With a `soft_cap` c of more than 0, return c tanh(hidden . table / c) + bias.
    """
    table = table.astype(hidden.dtype)
    if math.prod(hidden.shape[:-1]) in FEW_TOKENS:
        on_cpu = partial(kernel_first, dtype=jnp.float32)
        scores = jax.lax.platform_dependent(hidden, table, cpu=on_cpu, default=_scores)
    else:
        scores = _scores(hidden, table)
    if soft_cap:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    return scores if bias is None else scores + bias


def _scores(hidden: Array, table: Array) -> Array:
    return jnp.einsum("...d,vd->...v", hidden, table, preferred_element_type=jnp.float32)


# A scan over stacked layers slices each layer's parameters. TPUs and GPUs read them in place. XLA's CPU
# compiler copies them first: for every token, as many bytes as the step itself reads.


class UnstackedLayers(NamedTuple):
    """The parameters and the cache of each layer, in order.

    Attributes:
        params: the parameters of each block.
        caches: the cache of each mixer.
    """

    params: list[PyTree[Array]]
    caches: list[Cache]


def unstack_layers(model: LanguageModel, params: PyTree[Array], cache: Cache) -> UnstackedLayers:
    """Return the parameters and the cache of each layer, sliced from their stacks."""
    return UnstackedLayers(unstacked(model.config, params["blocks"]), unstacked(model.config, cache))


def stack_caches(model: LanguageModel, caches: list[Cache]) -> Cache:
    """Return the model's cache, with layers on the leading axis (`layer_stacks`)."""
    return restacked(model.config, caches)


def unrolled_hidden(
    model: LanguageModel,
    params: PyTree[Array],
    layers: UnstackedLayers,
    tokens: TokenIds,
    layout: Layout,
    *,
    kernels: Sequence[PyTree[Array]] | None = None,
) -> tuple[Activations, list[Cache]]:
    """Return the result of `LanguageModel.hidden`, with unstacked caches.

    Args:
        model: the model.
        params: all its parameters; only those outside the layers are used.
        layers: the parameters and the cache of each layer.
        tokens: the inputs.
        layout: the bounds of the samples.
        kernels: the `transposed_kernels` of each layer, which replace its kernels.
    """
    apply = partial(model.apply, {"params": params})
    x = cast(Activations, apply(tokens, layout, method=LanguageModel.embed))
    caches = []
    for number, config in enumerate(layer_configs(model.config)):
        variables = {"params": layers.params[number]}
        if kernels is not None:
            variables[TRANSPOSED] = kernels[number]
        x, new_cache = Block(config).apply(variables, x, layers.caches[number], layout)
        caches.append(new_cache)
    return cast(Activations, apply(x, method=LanguageModel.normalise)), caches


def looped_hidden(
    model: LanguageModel, params: PyTree[Array], cache: Cache, tokens: TokenIds, layout: Layout
) -> tuple[Activations, Cache]:
    """Return the result of `LanguageModel.hidden`, and update the cache in place.

    A scan over layers reads one cache and writes another. A loop over tokens then copies it back: for each
    token, as many bytes as the caches of all layers have. Here the loop carries the cache.

    Args:
        model: the model.
        params: all its parameters.
        cache: the cache, in the structure of `layer_stacks`.
        tokens: the inputs, one token of each row.
        layout: the bounds of the samples.
    """
    apply = partial(model.apply, {"params": params})
    x = cast(Activations, apply(tokens, layout, method=LanguageModel.embed))
    found: list[tuple[LayerStack, PyTree]] = []
    for stacks in periods(model.config):

        def pass_period(number, carried, stacks=stacks):
            x, caches = carried
            after = []
            for stack, stacked in zip(stacks, caches, strict=True):
                own = slice_layer(stack.of(params["blocks"]), number)
                cache = cache_of_layer(stacked, number)
                x, new = Block(stack.config).apply({"params": own}, x, cache, layout)
                after.append(cache_with_layer(stacked, number, new))
            return x, after

        caches = [stack.of(cache) for stack in stacks]
        x, caches = jax.lax.fori_loop(0, len(stacks[0].layers), pass_period, (x, caches))
        found.extend(zip(stacks, caches, strict=True))
    return cast(Activations, apply(x, method=LanguageModel.normalise)), assemble(found)


def parameter_shapes(model: LanguageModel) -> PyTree[jax.ShapeDtypeStruct]:
    """Return the shapes of a model's parameters as a tree of `jax.ShapeDtypeStruct`s."""
    return jax.eval_shape(lambda: model.init(jax.random.key(0), one_token_batch()))["params"]
