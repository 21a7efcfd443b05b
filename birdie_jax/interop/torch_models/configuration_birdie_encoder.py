"""The architecture of a bidirectional encoder that birdie_jax trained."""

from transformers import PreTrainedConfig


class BirdieEncoderConfig(PreTrainedConfig):
    """The architecture: one of the four cells of "Pretraining Without Attention".

    Attributes:
        vocab_size: the number of rows of the embedding table.
        hidden_size: the width D of the residual stream.
        num_hidden_layers: the number of blocks.
        intermediate_size: the inner width of the MLP, or of the gate.
        attends: whether the blocks use attention instead of state-space layers.
        gated: whether the blocks are gated, without a separate MLP and without a norm after the last block.
        activation: the form of GELU in the blocks, tanh or exact.
        combination: how to join the two directions of state-space layers: product, sum or serial.
        num_attention_heads: the number of attention heads.
        ssm_heads: the number of groups of channels; each group has a kernel.
        ssm_state: the modes of a kernel.
        max_position_embeddings: the rows of the position table.
        type_vocab_size: the rows of the token type table.
        norm_epsilon: the number added to the variance in norms.
        classifier_dropout: the dropout probability of the classifier's inputs.
        separator_token_id: the token between the texts of a pair; tokens after the first one have type 1.
    """

    model_type = "birdie_encoder"

    def __init__(  # noqa: PLR0917
        self,
        vocab_size: int = 512,
        hidden_size: int = 64,
        num_hidden_layers: int = 2,
        intermediate_size: int = 192,
        attends: bool = False,
        gated: bool = True,
        activation: str = "tanh",
        combination: str = "product",
        num_attention_heads: int = 4,
        ssm_heads: int = 1,
        ssm_state: int = 64,
        max_position_embeddings: int = 512,
        type_vocab_size: int = 2,
        norm_epsilon: float = 1e-6,
        classifier_dropout: float = 0.1,
        separator_token_id: int = 11,
        **kwargs,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.intermediate_size = intermediate_size
        self.attends = attends
        self.gated = gated
        self.activation = activation
        self.combination = combination
        self.num_attention_heads = num_attention_heads
        self.ssm_heads = ssm_heads
        self.ssm_state = ssm_state
        self.max_position_embeddings = max_position_embeddings
        self.type_vocab_size = type_vocab_size
        self.norm_epsilon = norm_epsilon
        self.classifier_dropout = classifier_dropout
        self.separator_token_id = separator_token_id
        super().__init__(**kwargs)
