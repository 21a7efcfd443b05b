"""The architecture of a language model that birdie_jax trained."""

from transformers import PreTrainedConfig


class BirdieConfig(PreTrainedConfig):
    """The architecture: blocks of one or several kinds in a repeated pattern.

    Attributes:
        vocab_size: the number of rows of the embedding table.
        hidden_size: the width D of the residual stream.
        num_hidden_layers: the number of blocks.
        intermediate_size: the inner width of the gated MLPs.
        state: the recurrent channels of a block; for mamba, mamba2 and gated_deltanet the inner channels.
        pattern: the kinds of the first blocks; it repeats to the end of the model.
        blocks: for each kind the class of its `mixer`, whether an `mlp` follows, and the mixer's settings.
        bidirectional: whether the model reads the context in both directions.
        norm_epsilon: the number added to the mean square in norms.
        norm_offset: the number added to the learned scale of norms.
        mlp_bias: whether the maps of the MLPs have a bias.
        mlp_activation: the activation of the MLPs' gates, gelu or silu.
        embedding_scale: the factor of an embedded token.
        residual_in_fp32: whether the residual stream is float32 for weights of any type.
        logit_soft_cap: the bound c of the scores, c tanh(score / c); 0 = none.
        start_token_id: the token between the context and the answer; None = no such token.
        min_predicted_id: the minimum id with a probability.
        max_predicted_id: the maximum id with a probability; 0 = the last row of the embedding table.
    """

    model_type = "birdie"

    def __init__(  # noqa: PLR0917
        self,
        vocab_size: int = 512,
        hidden_size: int = 64,
        num_hidden_layers: int = 2,
        intermediate_size: int = 128,
        state: int = 64,
        pattern: list[str] | None = None,
        blocks: dict[str, dict] | None = None,
        bidirectional: bool = True,
        norm_epsilon: float = 1e-6,
        norm_offset: float = 0.0,
        mlp_bias: bool = False,
        mlp_activation: str = "gelu",
        embedding_scale: float = 8.0,
        residual_in_fp32: bool = False,
        logit_soft_cap: float = 0.0,
        start_token_id: int | None = 1,
        min_predicted_id: int = 0,
        max_predicted_id: int = 0,
        **kwargs,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.intermediate_size = intermediate_size
        self.state = state
        self.pattern = pattern or []
        self.blocks = blocks or {}
        self.bidirectional = bidirectional
        self.norm_epsilon = norm_epsilon
        self.norm_offset = norm_offset
        self.mlp_bias = mlp_bias
        self.mlp_activation = mlp_activation
        self.embedding_scale = embedding_scale
        self.residual_in_fp32 = residual_in_fp32
        self.logit_soft_cap = logit_soft_cap
        self.start_token_id = start_token_id
        self.min_predicted_id = min_predicted_id
        self.max_predicted_id = max_predicted_id
        super().__init__(**kwargs)

    def block(self, layer: int) -> dict:
        """Return the settings of the block of a layer."""
        return self.blocks[self.pattern[layer % len(self.pattern)]]
