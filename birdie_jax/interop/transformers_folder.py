"""Write a model to a folder with PyTorch code, which `transformers` opens without JAX.

`AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)` imports configuration_birdie.py and
modeling_birdie.py from the folder. They are built from the parts in torch_models/.
`model_folder.read_model` reads the folder bit for bit.
"""

import dataclasses
from typing import Any, NamedTuple

from etils import epath

from birdie_jax.config import ModelConfig
from birdie_jax.errors import InteropError
from birdie_jax.interop.huggingface_tensors import SINGLE
from birdie_jax.interop.model_folder import (
    CONFIG,
    DESCRIPTION,
    TOKENIZER,
    ExportedModel,
    describe,
    named_tensors,
    new_folder,
    write_card,
)
from birdie_jax.interop.torch_layout import to_torch
from birdie_jax.interop.torch_source import put_together, read_part
from birdie_jax.interop.torch_tokenizer import PromptForm, tokenizer_json
from birdie_jax.interop.weights_file import write_weights
from birdie_jax.models.classification_head import CLASSIFICATION
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.models.layer_stacks import make_mixer, pattern_configs
from birdie_jax.models.registry import architecture_of, mixer_type
from birdie_jax.models.regression_head import REGRESSION
from birdie_jax.storage import write_json
from birdie_jax.vocabulary import (
    DONE,
    END,
    MASK,
    NUM_SPECIAL_TOKENS,
    PADDING,
    SEPARATOR,
    START,
    special_token_name,
)

# Fields of a mixer that come from the whole model, and fields that do not change the result.
_OF_MODEL = {"parent", "name", "features", "state", "bidirectional", "norm_epsilon"}
_FREE = {"dtype", "scan_dtype", "scan_implementation", "implementation", "output_scale"}


class TorchModel(NamedTuple):
    """A model in the format of `transformers`.

    Attributes:
        settings: the settings in config.json, without the description.
        files: name -> text of each PyTorch file.
    """

    settings: dict[str, Any]
    files: dict[str, str]


def write_transformers(
    folder: epath.PathLike, model: ExportedModel, form: PromptForm, *, card: str = ""
) -> None:
    """Write a model to the new `folder`, with its PyTorch files.

    Args:
        folder: the new folder.
        model: the model.
        form: the format of the model's prompts. The written tokenizer adds it to a text.
        card: the text of README.md. If empty, the folder has no README.md.

    Raises:
        InteropError: the folder exists or cannot be written, or a part of the model has no PyTorch
            version.
    """
    encoder = architecture_of(model.config.model).encoder
    torch_model = (_encoder if encoder else _language_model)(model.config.model)
    named = named_tensors(model.params)
    settings = torch_model.settings | {
        "vocab_size": model.tokenizer.vocab_size,
        "dtype": named["embedding"].dtype.name,
        "tie_word_embeddings": model.config.model.tie_embeddings,
        DESCRIPTION: describe(model),
    }
    if encoder:
        # A text for an encoder can name [MASK], and so all added tokens: `transformers` has one switch for
        # all tokens that its configuration names. The names of other special tokens stay text.
        added = sorted({PADDING, SEPARATOR, MASK, *form.before, *form.between, *form.after})
        made_tokenizer = tokenizer_json(model.tokenizer, form, added)
    else:
        made_tokenizer = tokenizer_json(model.tokenizer, form)
    with new_folder(folder) as new:
        write_weights(new / SINGLE, to_torch(named), {"format": "pt"})
        for name, text in torch_model.files.items():
            (new / name).write_text(text, encoding="utf-8")
        (new / "tokenizer.json").write_text(made_tokenizer, encoding="utf-8")
        write_json(new / "tokenizer_config.json", _tokenizer_config(model))
        if not encoder:
            write_json(new / "generation_config.json", _generation_config(model, form))
        write_json(new / CONFIG, settings)
        model.tokenizer.save(str(new / TOKENIZER))
        write_card(new, card)


def _language_model(config: ModelConfig) -> TorchModel:
    """Return the settings and files of a language model.

    Raises:
        InteropError: a mixer has no PyTorch part, or the model has a fine-tuning head.
    """
    if config.head:
        raise InteropError(
            f"model.head: found {config.head!r} for the language model {config.name!r}; allowed: '', or an "
            "encoder"
        )
    blocks, parts = {}, []
    for kind in pattern_configs(config):
        mixer = make_mixer(kind, parent=None)
        fields = {
            field.name: getattr(mixer, field.name)
            for field in dataclasses.fields(mixer)  # pyright: ignore[reportArgumentType] - a linen module is one
            if field.name not in _OF_MODEL | _FREE
        }
        has_mlp = architecture_of(kind).has_mlp
        blocks[kind.name] = {"mixer": type(mixer).__name__, "mlp": has_mlp, **fields}
        parts.append(type(mixer).__module__.removeprefix("birdie_jax.models."))
    settings = {
        "model_type": "birdie",
        "architectures": ["BirdieForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_birdie.BirdieConfig",
            "AutoModel": "modeling_birdie.BirdieModel",
            "AutoModelForCausalLM": "modeling_birdie.BirdieForCausalLM",
            "AutoModelForSeq2SeqLM": "modeling_birdie.BirdieForSeq2SeqLM",
        },
        "hidden_size": config.features,
        "num_hidden_layers": config.layers,
        "intermediate_size": config.mlp_features,
        "state": config.state,
        "pattern": [kind.name for kind in pattern_configs(config)],
        "blocks": blocks,
        "bidirectional": config.bidirectional,
        "norm_epsilon": config.norm_epsilon,
        "norm_offset": config.norm_offset,
        "mlp_bias": config.mlp_bias,
        "mlp_activation": config.mlp_activation,
        "embedding_scale": config.embedding_scale or config.features**0.5,
        "residual_in_fp32": (config.residual_dtype or config.dtype) == "float32",
        "logit_soft_cap": config.logit_soft_cap,
        "start_token_id": START if config.start_token else None,
        "min_predicted_id": config.min_predicted_id,
        "max_predicted_id": config.max_predicted_id,
    }
    # `transformers` assumes that folders of the same name with equal configuration files have the same
    # code, so the configuration file lists the mixers.
    mixers = sorted({block["mixer"] for block in blocks.values()})
    own = f'\n\nMIXERS = {mixers}\n"""The mixers that modeling_birdie.py has."""\n'
    files = {
        "configuration_birdie.py": read_part("configuration_birdie") + own,
        "modeling_birdie.py": put_together(parts, "modeling_birdie"),
    }
    return TorchModel(settings, files)


def _encoder(config: ModelConfig) -> TorchModel:
    """Return the settings and files of an encoder.

    Raises:
        InteropError: the encoder has a head that does not score a whole text, or a soft cap of its scores.
    """
    if config.head not in ("", CLASSIFICATION, REGRESSION):
        raise InteropError(
            f"model.head: found {config.head!r}; allowed: '', {CLASSIFICATION!r}, {REGRESSION!r}"
        )
    if config.logit_soft_cap:
        raise InteropError(
            f"model.logit_soft_cap: found {config.logit_soft_cap} for the encoder {config.name!r}; "
            "allowed: 0.0"
        )
    section = config.section(EncoderConfig)
    auto_map = {
        "AutoConfig": "configuration_birdie_encoder.BirdieEncoderConfig",
        "AutoModel": "modeling_birdie_encoder.BirdieEncoderModel",
        "AutoModelForMaskedLM": "modeling_birdie_encoder.BirdieEncoderForMaskedLM",
        "AutoModelForSequenceClassification": (
            "modeling_birdie_encoder.BirdieEncoderForSequenceClassification"
        ),
    }
    main = auto_map["AutoModelForSequenceClassification" if config.head else "AutoModelForMaskedLM"]
    mixer = mixer_type(config)
    settings = {
        "model_type": "birdie_encoder",
        "architectures": [main.partition(".")[2]],
        "auto_map": auto_map,
        "hidden_size": config.features,
        "num_hidden_layers": config.layers,
        "intermediate_size": config.mlp_features,
        "attends": section.attends(config),
        "gated": not architecture_of(config).has_mlp,
        "activation": section.activation,
        "combination": section.combination or getattr(mixer, "combination", ""),
        "num_attention_heads": section.attention_heads,
        "ssm_heads": section.ssm_heads,
        "ssm_state": section.ssm_state,
        "max_position_embeddings": section.positions,
        "type_vocab_size": section.token_types,
        "norm_epsilon": config.norm_epsilon,
        "classifier_dropout": config.head_dropout,
        "separator_token_id": SEPARATOR,
    }
    if config.head:
        outputs = config.head_outputs if config.head == CLASSIFICATION else 1
        settings["id2label"] = {str(label): f"LABEL_{label}" for label in range(outputs)}
    files = {
        "configuration_birdie_encoder.py": read_part("configuration_birdie_encoder"),
        "modeling_birdie_encoder.py": put_together([], "modeling_birdie_encoder"),
    }
    return TorchModel(settings, files)


def _tokenizer_config(model: ExportedModel) -> dict[str, Any]:
    encoder = architecture_of(model.config.model).encoder
    # `transformers` adds all tokens that it finds here, and no text for an encoder has these.
    ends = {} if encoder else {"bos_token": special_token_name(START), "eos_token": special_token_name(END)}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": special_token_name(PADDING),
        **ends,
        "sep_token": special_token_name(SEPARATOR),
        "mask_token": special_token_name(MASK),
        "padding_side": "right" if encoder else "left",
        # No text encodes to a special token, except the added tokens in texts for encoders.
        "split_special_tokens": not encoder,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }


def _generation_config(model: ExportedModel, form: PromptForm) -> dict[str, Any]:
    """Return settings for `generate` of `transformers`, with our end tokens and suppressed tokens."""
    config, num_pieces = model.config.model, model.tokenizer.num_pieces
    ends = [token for token in (END, DONE, config.end_token) if token]
    never = {PADDING, START, *range(NUM_SPECIAL_TOKENS + num_pieces, model.tokenizer.vocab_size)}
    if form.answer is not None:
        never |= {*range(NUM_SPECIAL_TOKENS)} - {*form.answer, *ends[2:]}
    return {
        "bos_token_id": START,
        "eos_token_id": ends,
        "pad_token_id": PADDING,
        "suppress_tokens": sorted(never),
    }
