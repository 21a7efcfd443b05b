"""The bidirectional encoder: BERT's embeddings, scanned blocks, and a masked-LM head."""

from typing import NoReturn

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from birdie_jax.array_types import Activations, RowKeys, TokenIds
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.axes import constrained
from birdie_jax.models.encoder_config import EncoderConfig, refuse_cache
from birdie_jax.models.encoder_layers import Dense, FeedForward, LayerNorm
from birdie_jax.models.language_model import LanguageModel
from birdie_jax.models.layer_stacks import scanned
from birdie_jax.models.layers import dropout, keys_of_layers
from birdie_jax.models.layout import Layout
from birdie_jax.models.parameters import ParameterPolicy, parameter
from birdie_jax.models.registry import Cache, architecture_of, mixer_type
from birdie_jax.models.rematerialisation import BLOCK_INPUT
from birdie_jax.models.task_head import head_type


class EncoderBlock(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)) if the model has a separate MLP.

    Attributes:
        config: the architecture.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Activations, cache: Cache | None, layout: Layout, row_keys: RowKeys | None = None
    ) -> tuple[Activations, Cache | None]:
        """Apply the block; arguments and results are as in `Block`."""
        config, x = self.config, checkpoint_name(x, BLOCK_INPUT)
        mixer = mixer_type(config).from_config(config, output_scale=1.0, name="mixer")
        mixed, cache = mixer(LayerNorm(config.norm_epsilon, name="mixer_norm")(x), layout, cache)
        x = x + dropout(mixed, config.dropout, row_keys, 0)
        if architecture_of(config).has_mlp:
            normalised = LayerNorm(config.norm_epsilon, name="mlp_norm")(x)
            x = x + dropout(FeedForward(config, name="mlp")(normalised), config.dropout, row_keys, 1)
        return x, cache


class Encoder(LanguageModel):
    """A masked language model whose blocks read in both directions (Devlin et al. 2018; Wang et al. 2022).

    The embedding of a token is the normalised sum of the embeddings of its word, its position within the
    sample and its type. Models with a separate MLP end with a norm. The gated models have no norm after the
    last block; their head reads the residual stream. Scores are table . transform(x) + bias.
    """

    def setup(self) -> None:
        """Create the tables, the scanned blocks, the final norm if there is one, and the head."""
        config, section = self.config, self.config.section(EncoderConfig)
        tables = nn.initializers.normal(section.table_deviation)
        # Looked up in float32; `token_scores` multiplies in the type of its inputs.
        words = ParameterPolicy(("vocab", "features"), weight_decay=True)
        self.embedding = parameter(self, "embedding", tables, (self.vocab_size, config.features), words)
        if not config.tie_embeddings:
            self.head = parameter(self, "head", tables, (self.vocab_size, config.features), words)
        places = ParameterPolicy((None, "features"), weight_decay=True, repeats_rows=True)
        shape = (section.positions, config.features)
        self.position_embedding = parameter(self, "position_embedding", tables, shape, places)
        # Single texts never train the later types. Decay would shrink them to zero before a pair occurs.
        few = ParameterPolicy((None, "features"), weight_decay=False)
        shape = (section.token_types, config.features)
        self.token_type_embedding = parameter(self, "token_type_embedding", tables, shape, few)
        self.embedding_norm = LayerNorm(config.norm_epsilon)
        self.blocks = scanned(EncoderBlock, config)
        if architecture_of(config).has_mlp:
            self.final_norm = LayerNorm(config.norm_epsilon)
        self.head_transform = Dense(
            config.features,
            ("features", None),
            jnp.dtype(config.dtype),
            # As in the published code, which uses its library's default for the head.
            init=nn.initializers.lecun_normal(),
        )
        self.head_norm = LayerNorm(config.norm_epsilon)
        bias = ParameterPolicy(("vocab",), weight_decay=False)
        self.scores_bias = parameter(
            self, "scores_bias", nn.initializers.zeros_init(), (self.vocab_size,), bias
        )
        if config.head:
            self.task_head = head_type(config)(config)

    @property
    def drops(self) -> bool:
        """Whether training needs a key for each row, for dropout."""
        return super().drops or self.config.section(EncoderConfig).embedding_dropout > 0

    def embed(
        self,
        tokens: TokenIds,
        layout: Layout,
        row_keys: RowKeys | None = None,
        token_types: TokenIds | None = None,
    ) -> Activations:
        """Return the input of the first block.

        Args:
            tokens: the inputs.
            layout: the bounds of the samples; positions count from the start of each sample.
            row_keys: the key of each row for dropout; None = no dropout.
            token_types: the type of each token; None = 0 for all.

        Raises:
            ValueError: a row has more tokens than the table has positions.
        """
        config, section = self.config, self.config.section(EncoderConfig)
        if tokens.shape[1] > section.positions:
            raise ValueError(
                f"model {config.name!r}: found rows of {tokens.shape[1]} tokens; allowed: at most "
                f"config.model.encoder.positions = {section.positions}"
            )
        if token_types is None:
            token_types = jnp.zeros_like(tokens)
        x = (
            self._look_up(self.embedding, tokens)
            + self._look_up(self.position_embedding, layout.positions())
            + self._look_up(self.token_type_embedding, token_types)
        )
        x = self.embedding_norm(constrained(x, "rows", "length", None)).astype(jnp.dtype(config.dtype))
        if row_keys is not None and section.embedding_dropout > 0:
            # The blocks use the keys before this one.
            row_keys = keys_of_layers(row_keys, config.layers + 1)[-1]
        return dropout(x, section.embedding_dropout, row_keys, 0)

    def normalise(self, x: Activations) -> Activations:
        """Return the output of the last block, normalised if the model ends with a norm."""
        return self.final_norm(x) if architecture_of(self.config).has_mlp else x

    def transform(self, x: Float[Array, "*positions features"]) -> Float[Array, "*positions features"]:
        """Return the input of the head's table: norm(GELU(W x + b)), with the exact GELU.

        It treats every position independently, so a loss may select its positions first.
        """
        return self.head_norm(jax.nn.gelu(self.head_transform(x), approximate=False))

    def head_bias(self) -> Float[Array, " vocab"]:
        """Return the bias of each token's score."""
        return self.scores_bias

    def empty_cache(self, rows: int, length: int | None = None) -> NoReturn:
        """Refuse to decode.

        Raises:
            ConfigError: always.
        """
        refuse_cache(self.config)
