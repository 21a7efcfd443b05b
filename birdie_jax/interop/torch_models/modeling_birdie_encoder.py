"""The encoder of "Pretraining Without Attention", with heads for masked tokens and for whole texts."""

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput, SequenceClassifierOutput

from .configuration_birdie_encoder import BirdieEncoderConfig


class S4D(nn.Module):
    """A diagonal state-space layer (Gu et al. 2022). All channels of a head share its parameters:

        h_t = A' h_{t-1} + B' u_t        y_t = Re(C h_t) + D u_t
        A' = exp(dt A)                   B' = (A' - 1) / A

    The layer computes a convolution with the kernel K_l = Re sum_n C_n B'_n A'_n^l by Fourier transforms.
    """  # noqa: D400, D415

    def __init__(self, config: BirdieEncoderConfig, reverse: bool):
        super().__init__()
        heads, modes = config.ssm_heads, config.ssm_state
        self.A_re = nn.Parameter(torch.zeros(heads, modes))
        self.A_im = nn.Parameter(torch.zeros(heads, modes))
        self.C = nn.Parameter(torch.zeros(heads, modes, 2))
        self.D = nn.Parameter(torch.ones(heads))
        self.log_step = nn.Parameter(torch.zeros(heads))
        self.reverse = reverse

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        """Mix along the sequence, from its end if `reverse`; padding must be zero."""
        length, heads = u.shape[1], self.D.shape[0]
        by_head = u.float().unflatten(-1, (heads, -1)).movedim(1, -1)
        if self.reverse:
            by_head = by_head.flip(-1)
        # With twice the length, the circular convolution does not wrap around.
        transformed = torch.fft.rfft(by_head, 2 * length)
        kernel = torch.fft.rfft(self._kernel(length), 2 * length)[:, None]
        y = torch.fft.irfft(transformed * kernel, 2 * length)[..., :length]
        y = y + self.D.float()[:, None, None] * by_head
        if self.reverse:
            y = y.flip(-1)
        return y.movedim(-1, 1).flatten(2).to(u.dtype)

    def _kernel(self, length: int) -> torch.Tensor:
        """Return K, [heads, length]."""
        A = torch.complex(self.A_re.float().clamp(max=-1e-4), self.A_im.float())
        log_a = self.log_step.float().exp()[:, None] * A
        C = torch.view_as_complex(self.C.float().contiguous()) * torch.expm1(log_a) / A
        powers = torch.exp(log_a[..., None] * torch.arange(length, device=A.device))
        return (C[..., None] * powers).real.sum(1)


class BidirectionalS4D(nn.Module):
    """The forward and the backward layer, combined at the width of the residual stream:

    F = gelu(W_f x)        U_1 = W_u1 SSM_f(F)
    B = gelu(W_b x)        U_2 = W_u2 SSM_b(B)
    y = U_1 * U_2 (product), U_1 + U_2 (sum), or U_2 with B = gelu(W_b U_1) (serial)
    """  # noqa: D400, D415

    def __init__(self, config: BirdieEncoderConfig):
        super().__init__()
        features = config.hidden_size
        for name in ("forward", "backward"):
            setattr(self, f"{name}_in", nn.Linear(features, features))
            setattr(self, f"{name}_ssm", S4D(config, reverse=name == "backward"))
            setattr(self, f"{name}_out", nn.Linear(features, features))
        self.combination, self.approximate = config.combination, gelu_form(config)

    def forward(self, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        """Mix along the sequence."""
        forward = self._one_direction("forward", x, given)
        if self.combination == "serial":
            return self._one_direction("backward", forward, given)
        backward = self._one_direction("backward", x, given)
        return forward * backward if self.combination == "product" else forward + backward

    def _one_direction(self, name: str, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        inputs = functional.gelu(getattr(self, f"{name}_in")(x), approximate=self.approximate)
        inputs = inputs.masked_fill(~given[..., None], 0)
        return getattr(self, f"{name}_out")(getattr(self, f"{name}_ssm")(inputs))


def gelu_form(config: BirdieEncoderConfig) -> str:
    """Return the `approximate` argument of `torch.nn.functional.gelu` for the blocks."""
    return "tanh" if config.activation == "tanh" else "none"


class SelfAttention(nn.Module):
    """y_t = W_out sum_s softmax_s(q_t . k_s / sqrt(w)) v_s over all tokens of the text."""

    def __init__(self, config: BirdieEncoderConfig):
        super().__init__()
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)
        self.heads = config.num_attention_heads

    def forward(self, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        """Mix along the sequence."""
        query, key, value = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        # Padding attends to itself, so no softmax is empty.
        seen = given[:, None] | torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen[:, None])
        return self.out(mixed.transpose(1, 2).flatten(2))


class Mixer(nn.Module):
    """The mixer of a block, with optional gates as in BiGS:

    V = gelu(W_v x)        U = gelu(W_u mixed(x))        y = W_o (U * V)
    """  # noqa: D400, D415

    def __init__(self, config: BirdieEncoderConfig):
        super().__init__()
        self.attends, self.gated = config.attends, config.gated
        if config.attends:
            self.attention = SelfAttention(config)
        else:
            self.routing = BidirectionalS4D(config)
        if config.gated:
            self.gate = nn.Linear(config.hidden_size, config.intermediate_size)
            self.up = nn.Linear(config.hidden_size, config.intermediate_size)
            self.out = nn.Linear(config.intermediate_size, config.hidden_size)
        self.approximate = gelu_form(config)

    def forward(self, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        """Mix along the sequence."""
        mixed = (self.attention if self.attends else self.routing)(x, given)
        if not self.gated:
            return mixed
        v = functional.gelu(self.gate(x), approximate=self.approximate)
        u = functional.gelu(self.up(mixed), approximate=self.approximate)
        return self.out(u * v)


class FeedForward(nn.Module):
    """y = W_out GELU(W_up x + b_up) + b_out."""

    def __init__(self, config: BirdieEncoderConfig):
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.out = nn.Linear(config.intermediate_size, config.hidden_size)
        self.approximate = gelu_form(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map each token independently."""
        return self.out(functional.gelu(self.up(x), approximate=self.approximate))


class EncoderBlock(GradientCheckpointingLayer):
    """x + mixer(norm(x)), then x + mlp(norm(x)) if the block is not gated."""

    def __init__(self, config: BirdieEncoderConfig):
        super().__init__()
        self.mixer_norm = nn.LayerNorm(config.hidden_size, config.norm_epsilon)
        self.mixer = Mixer(config)
        self.gated = config.gated
        if not config.gated:
            self.mlp_norm = nn.LayerNorm(config.hidden_size, config.norm_epsilon)
            self.mlp = FeedForward(config)

    def forward(self, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        """Apply the block to the residual stream."""
        x = x + self.mixer(self.mixer_norm(x), given)
        return x if self.gated else x + self.mlp(self.mlp_norm(x))


class BirdieEncoderPreTrainedModel(PreTrainedModel):
    """The base class of the models with and without a head."""

    config_class = BirdieEncoderConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("EncoderBlock",)
    # Losses are means, so `Trainer` divides them by the number of gradient accumulation steps.
    accepts_loss_kwargs = False


class BirdieEncoderModel(BirdieEncoderPreTrainedModel):
    """The encoder without a head."""

    def __init__(self, config: BirdieEncoderConfig):
        super().__init__(config)
        features = config.hidden_size
        self.embedding = nn.Embedding(config.vocab_size, features)
        self.position_embedding = nn.Embedding(config.max_position_embeddings, features)
        self.token_type_embedding = nn.Embedding(config.type_vocab_size, features)
        self.embedding_norm = nn.LayerNorm(features, config.norm_epsilon)
        self.layers = nn.ModuleList(EncoderBlock(config) for _ in range(config.num_hidden_layers))
        self.final_norm = nn.Identity() if config.gated else nn.LayerNorm(features, config.norm_epsilon)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding table."""
        return self.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding table."""
        self.embedding = value

    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        output_hidden_states: bool | None = None,
        **kwargs,
    ) -> BaseModelOutput:
        """Return the output of the last block.

        Args:
            input_ids: [rows, length], one text or pair of texts per row.
            attention_mask: [rows, length], 0 on padding. None = no padding.
            token_type_ids: [rows, length], the type of each token. None = 0.
            output_hidden_states: whether to return the residual stream before and after each block.
            kwargs: arguments of other models; ignored.
        """
        del kwargs
        given = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        positions = (given.long().cumsum(1) - 1).clamp(min=0)
        given = given.bool()
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = (
            self.embedding(input_ids)
            + self.position_embedding(positions)
            + self.token_type_embedding(types)
        )
        x = self.embedding_norm(x)
        states = [x]
        for block in self.layers:
            x = block(x, given)
            states.append(x)
        hidden_states = tuple(states) if output_hidden_states else None
        return BaseModelOutput(last_hidden_state=self.final_norm(x), hidden_states=hidden_states)


class MaskedTokenHead(nn.Linear):
    """The scores of all tokens: table . norm(GELU(W x + b)) + bias, with the exact GELU."""

    def __init__(self, config: BirdieEncoderConfig):
        super().__init__(config.hidden_size, config.vocab_size)
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, config.norm_epsilon)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        return super().forward(self.norm(functional.gelu(self.transform(x))))


class BirdieEncoderForMaskedLM(BirdieEncoderPreTrainedModel):
    """The encoder with the head that predicts masked tokens."""

    _tied_weights_keys = {"lm_head.weight": "model.embedding.weight"}  # noqa: RUF012
    _keys_to_ignore_on_load_unexpected = (r"^pooler\.", r"^classifier\.")

    def __init__(self, config: BirdieEncoderConfig):
        super().__init__(config)
        self.model = BirdieEncoderModel(config)
        self.lm_head = MaskedTokenHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """Return the head."""
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the head."""
        self.lm_head = new_embeddings

    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs,
    ) -> MaskedLMOutput:
        """Return the scores of the tokens, and with `labels` the loss.

        Args:
            input_ids: [rows, length].
            attention_mask: [rows, length], 0 on padding.
            token_type_ids: [rows, length].
            labels: [rows, length], the masked tokens; -100 elsewhere.
            kwargs: as for `BirdieEncoderModel.forward`.
        """
        read = self.model(input_ids, attention_mask, token_type_ids, **kwargs)
        logits = self.lm_head(read.last_hidden_state).float()
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=read.hidden_states)


class BirdieEncoderForSequenceClassification(BirdieEncoderPreTrainedModel):
    """The encoder with a head that returns the scores of classes, or one number, for a text."""

    _keys_to_ignore_on_load_unexpected = (r"^lm_head\.",)

    def __init__(self, config: BirdieEncoderConfig):
        super().__init__(config)
        self.model = BirdieEncoderModel(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs,
    ) -> SequenceClassifierOutput:
        """Return W dropout(tanh(W_p mean(x) + b_p)) + b, and with `labels` the loss.

        Args:
            input_ids: [rows, length].
            attention_mask: [rows, length], 0 on padding.
            token_type_ids: [rows, length]. None = the number of separators before each token.
            labels: [rows], the index of each text's class, or the target number if there is one score.
            kwargs: as for `BirdieEncoderModel.forward`.
        """
        given = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if token_type_ids is None:
            separators = ((input_ids == self.config.separator_token_id) & given.bool()).long()
            token_type_ids = (separators.cumsum(1) - separators).clamp(max=self.config.type_vocab_size - 1)
        read = self.model(input_ids, given, token_type_ids, **kwargs)
        weights = given[..., None].to(read.last_hidden_state.dtype)
        mean = (read.last_hidden_state * weights).sum(1) / weights.sum(1)
        logits = self.classifier(self.dropout(torch.tanh(self.pooler(mean)))).float()
        loss = None
        if labels is not None and self.config.num_labels == 1:
            loss = functional.mse_loss(logits[:, 0], labels.float())
        elif labels is not None:
            loss = functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=read.hidden_states)
