"""The language model: embedding, blocks, final norm, head, and generation."""

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from .configuration_birdie import BirdieConfig
from .layers import MIXERS, GatedMLP, Layout, RMSNorm, make_layout

# The score of tokens without a probability: its exponential is 0, and its loss is finite.
BARRED_SCORE = -1e30


class BirdieCache:
    """The decoding state; its size is constant if no layer has attention.

    Attributes:
        layers: the tensors of each layer by name, rows first.
        read: [rows], the number of tokens of each text that the model has read, without padding.
        length: the number of tokens of a row that the model has read, with padding.
    """

    is_compileable = False
    is_linear = (False,)

    def __init__(self, layers: int, read: torch.Tensor):
        self.layers: list[dict[str, torch.Tensor]] = [{} for _ in range(layers)]
        self.read = read
        self.length = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens of a row that the model has read, the same in every layer."""
        del layer_idx
        return self.length

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Replace row i with row `beam_idx[i]`."""
        for layer in self.layers:
            for name, tensor in layer.items():
                layer[name] = tensor.index_select(0, beam_idx.to(tensor.device))
        self.read = self.read.index_select(0, beam_idx.to(self.read.device))


class Block(GradientCheckpointingLayer):
    """x + mixer(norm(x)), then x + mlp(norm(x)) if the block has an MLP."""

    def __init__(self, config: BirdieConfig, layer: int):
        super().__init__()
        settings = dict(config.block(layer))
        mixer, has_mlp = settings.pop("mixer"), settings.pop("mlp")
        features, norm = config.hidden_size, (config.norm_epsilon, config.norm_offset)
        self.mixer_norm = RMSNorm(features, *norm)
        self.mixer = MIXERS[mixer](config, **settings)
        self.mlp_norm = RMSNorm(features, *norm) if has_mlp else None
        if has_mlp:
            self.mlp = GatedMLP(features, config.intermediate_size, config.mlp_activation, config.mlp_bias)
        self.layer = layer

    def forward(self, x: torch.Tensor, layout: Layout, cache: BirdieCache | None = None) -> torch.Tensor:
        """Apply the block to the residual stream."""
        dtype = self.mixer.out.weight.dtype
        own = None if cache is None else cache.layers[self.layer]
        x = x + self.mixer(self.mixer_norm(x).to(dtype), layout, own)
        if self.mlp_norm is not None:
            x = x + self.mlp(self.mlp_norm(x).to(dtype))
        return x


class BirdiePreTrainedModel(PreTrainedModel):
    """The base class of the models with and without a head."""

    config_class = BirdieConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("Block",)
    # A state cannot return to an earlier token.
    _is_stateful = True


class BirdieModel(BirdiePreTrainedModel):
    """The model without a head."""

    def __init__(self, config: BirdieConfig):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.final_norm = RMSNorm(config.hidden_size, config.norm_epsilon, config.norm_offset)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding table."""
        return self.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding table."""
        self.embedding = value

    def forward(  # noqa: PLR0917
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        context_length: torch.LongTensor | None = None,
        cache: BirdieCache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPast:
        """Return the normalised output of the last block.

        Args:
            input_ids: [rows, length], one text per row, or the tokens after those in `cache`.
            attention_mask: [rows, length], or with the columns of earlier calls before these; 0 on padding.
                With a cache, padding must be to the left of texts. None = no padding.
            context_length: [rows], the number of tokens at the beginning of each text to read in both
                directions. None: the tokens before the start token; 0 for a text without a start token.
            cache: the cache of an earlier call.
            use_cache: whether to return a cache.
            output_hidden_states: whether to return the residual stream before and after each block.
            kwargs: arguments of other models; ignored.
        """
        del kwargs
        rows, length = input_ids.shape
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        attention_mask = attention_mask[:, -length:]
        if context_length is None:
            context_length = self.context_length(input_ids, attention_mask, whole=False)
        if not self.config.bidirectional:
            context_length = torch.zeros_like(context_length)
        nothing = input_ids.new_zeros(rows)
        if cache is None and use_cache:
            cache = BirdieCache(len(self.layers), nothing)
        read = nothing if cache is None else cache.read
        layout = make_layout(attention_mask, read, context_length.to(input_ids.device))
        x = self.embedding(input_ids) * self.config.embedding_scale
        if self.config.residual_in_fp32:
            x = x.float()
        states = [x]
        for block in self.layers:
            x = block(x, layout, cache=cache)
            states.append(x)
        if cache is not None:
            cache.read = read + layout.given.sum(1)
            cache.length += length
        x = self.final_norm(x).to(self.embedding.weight.dtype)
        hidden_states = tuple(states) if output_hidden_states else None
        return BaseModelOutputWithPast(last_hidden_state=x, cache=cache, hidden_states=hidden_states)

    def context_length(
        self, input_ids: torch.LongTensor, attention_mask: torch.Tensor, *, whole: bool
    ) -> torch.LongTensor:
        """Return for each row the number of tokens before its start token.

        Args:
            input_ids: [rows, length].
            attention_mask: [rows, length], 0 on padding.
            whole: whether a row without a start token is all context; otherwise it has no context.
        """
        given = attention_mask.bool()
        starts = torch.zeros_like(given)
        if self.config.start_token_id is not None:
            starts = (input_ids == self.config.start_token_id) & given
        before = ((starts.cumsum(1) == 0) & given).sum(1)
        return torch.where(starts.any(1) | whole, before, 0)


class BirdieForCausalLM(BirdiePreTrainedModel, GenerationMixin):
    """The model with its head, which generates an answer to a context."""

    _tied_weights_keys = {"lm_head.weight": "model.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: BirdieConfig):
        super().__init__(config)
        self.model = BirdieModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """Return the head."""
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the head."""
        self.lm_head = new_embeddings

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """Return False: the first call creates a `BirdieCache`."""
        return False

    def forward(  # noqa: PLR0917
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        context_length: torch.LongTensor | None = None,
        cache: BirdieCache | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs,
    ) -> CausalLMOutputWithPast:
        """Return the scores of the next tokens, and with `labels` the loss.

        Args:
            input_ids: as for `BirdieModel.forward`.
            attention_mask: as for `BirdieModel.forward`; 0 on padding.
            context_length: as for `BirdieModel.forward`.
            cache: the cache of an earlier call.
            labels: [rows, length], the input tokens; the model shifts them. -100 = no loss, for example
                on the context.
            use_cache: whether to return a cache.
            output_hidden_states: whether to return the residual stream before and after each block.
            logits_to_keep: the number of last positions to score, or the indices of positions; 0 = all.
            kwargs: arguments of the loss, such as `num_items_in_batch`.
        """
        read = self.model(
            input_ids,
            attention_mask,
            context_length,
            cache=cache,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(read.last_hidden_state[:, kept]).float()
        config = self.config
        if config.logit_soft_cap:
            logits = config.logit_soft_cap * torch.tanh(logits / config.logit_soft_cap)
        if config.min_predicted_id or config.max_predicted_id:
            ids = torch.arange(config.vocab_size, device=logits.device)
            last = config.max_predicted_id or config.vocab_size - 1
            logits = logits.masked_fill((ids < config.min_predicted_id) | (ids > last), BARRED_SCORE)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, cache=read.cache, hidden_states=read.hidden_states
        )

    @torch.no_grad()
    def generate(
        self,
        inputs: torch.LongTensor | None = None,
        *args,
        context_length: torch.LongTensor | None = None,
        **kwargs,
    ):
        """Generate answers like any model of `transformers`.

        Args:
            inputs: [rows, length], the prompts, with padding to their left.
            args: as for `GenerationMixin.generate`.
            context_length: [rows], the number of tokens at the beginning of each prompt to read in both
                directions. None: the tokens before the start token; the whole prompt if it has none.
            kwargs: as for `GenerationMixin.generate`.
        """
        prompts = kwargs.get("input_ids") if inputs is None else inputs
        if prompts is not None and context_length is None:
            mask, padding = kwargs.get("attention_mask"), self.generation_config.pad_token_id
            if mask is None:
                # Like `transformers`, which does not read these tokens.
                mask = torch.ones_like(prompts) if padding is None else prompts != padding
            mask = mask[:, -prompts.shape[1] :]
            context_length = self.model.context_length(prompts, mask, whole=True)
        if context_length is not None:
            kwargs["context_length"] = context_length
        return super().generate(inputs, *args, **kwargs)


class BirdieForSeq2SeqLM(BirdieForCausalLM):
    """The model for programs that pass context and answer separately, like the LM Evaluation Harness."""

    # The loss is a mean, so `Trainer` divides it by the number of gradient accumulation steps.
    accepts_loss_kwargs = False

    def forward(  # noqa: PLR0917
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        context_length: torch.LongTensor | None = None,
        cache: BirdieCache | None = None,
        labels: torch.LongTensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs,
    ) -> CausalLMOutputWithPast:
        """Return the scores and the loss of the labels; without labels, same as `BirdieForCausalLM`.

        Args:
            input_ids: [rows, context], the contexts in the tokenizer's form.
            attention_mask: [rows, context], 0 on padding, which may be on either side.
            context_length: as for `BirdieForCausalLM.forward`.
            cache: as for `BirdieForCausalLM.forward`; used only without labels.
            labels: [rows, answer], the answers; -100 after an answer.
            logits_to_keep: as for `BirdieForCausalLM.forward`; used only without labels.
            kwargs: as for `BirdieForCausalLM.forward`.
        """
        if labels is None:
            kwargs |= {"cache": cache, "logits_to_keep": logits_to_keep}
            return super().forward(input_ids, attention_mask, context_length, **kwargs)
        given = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        # Move padding to the left of each context, so the answer follows the context.
        order = (given != 0).to(torch.uint8).argsort(dim=1, stable=True)
        answers = labels.clamp(min=0)
        tokens = torch.cat([input_ids.gather(1, order), answers], dim=1)
        mask = torch.cat([given.gather(1, order), torch.ones_like(answers, dtype=given.dtype)], dim=1)
        kwargs["logits_to_keep"] = answers.shape[1] + 1
        read = super().forward(tokens, mask, context_length, **kwargs)
        logits = read.logits[:, :-1]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return CausalLMOutputWithPast(loss=loss, logits=logits, hidden_states=read.hidden_states)

    def generate(self, inputs: torch.LongTensor | None = None, *args, **kwargs):
        """Return only the answers; takes the arguments of `BirdieForCausalLM.generate`."""
        length = (kwargs["input_ids"] if inputs is None else inputs).shape[1]
        answers = super().generate(inputs, *args, **kwargs)
        if torch.is_tensor(answers):
            return answers[:, length:]
        answers.sequences = answers.sequences[:, length:]
        return answers
