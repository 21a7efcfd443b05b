"""Small folders of the kind of mamba-*-hf and recurrentgemma-*, with tokenizers."""

import json
from pathlib import Path

import numpy as np
import safetensors.numpy
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from birdie_jax.interop.recurrent_gemma import EMBEDDING, RecurrentGemmaSettings, counterparts, to_config
from birdie_jax.interop.tensor_names import name_parameters
from birdie_jax.models import build_model
from birdie_jax.models.language_model import parameter_shapes

RECORDED = Path(__file__).parents[1] / "models" / "recorded" / "mamba.npz"
PIECES = 24


def recorded_tensors():
    """Return the weights, tokens and scores that record_oracles.py has recorded."""
    arrays = np.load(RECORDED)
    prefix = "parameter/"
    tensors = {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
    return tensors, arrays["tokens"], arrays["scores"]


def settings(**changes):
    """Return the config.json of the recorded model, as `transformers` writes one, with old keys beside."""
    described = {
        "architectures": ["MambaForCausalLM"],
        "model_type": "mamba",
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "state_size": 4,
        "expand": 2,
        "intermediate_size": 16,
        "conv_kernel": 4,
        "time_step_rank": 3,
        "use_bias": False,
        "use_conv_bias": True,
        "hidden_act": "silu",
        "layer_norm_epsilon": 1e-5,
        "residual_in_fp32": True,
        "vocab_size": PIECES,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "time_step_min": 0.001,
        "torch_dtype": "float32",
        "d_model": 8,
        "ssm_cfg": {},
    }
    described.update(changes)
    return {name: value for name, value in described.items() if value is not ...}


def tokenizer(pieces=PIECES, special=("<|endoftext|>",)):
    """Return a byte-level BPE of a few characters, whose first pieces are the special ones."""
    characters = [*"abcdefghijklmnopqrs", "Ġ", "Ċ", "th"]
    vocabulary = {token: number for number, token in enumerate(special)}
    for character in characters[: pieces - len(special)]:
        vocabulary[character] = len(vocabulary)
    while len(vocabulary) < pieces:
        vocabulary[f"x{len(vocabulary)}"] = len(vocabulary)
    made = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(special))
    return made


def write_folder(folder, tensors=None, shards=1, pieces=PIECES, **changes):
    """Write a folder; `...` for a setting leaves it out."""
    folder.mkdir()
    tensors = recorded_tensors()[0] if tensors is None else tensors
    (folder / "config.json").write_text(json.dumps(settings(**changes)))
    tokenizer(pieces).save(str(folder / "tokenizer.json"))
    if shards == 1:
        safetensors.numpy.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder
    names, index = sorted(tensors), {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        own = names[number::shards]
        safetensors.numpy.save_file({name: tensors[name] for name in own}, folder / file, {"format": "pt"})
        index |= dict.fromkeys(own, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def byte_tokenizer(special):
    """Return a tokenizer that knows every text, and whose first pieces are the special ones."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=259 + len(special),
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([], trainer)
    return made


def write_random_folder(folder, features, layers):
    """Write a folder of a model of another size, whose tokenizer knows every text."""
    folder.mkdir()
    made = byte_tokenizer(["<|endoftext|>"])
    made.save(str(folder / "tokenizer.json"))
    inner, states, rank, taps = 2 * features, 16, -(-features // 16), 4
    pieces = made.get_vocab_size()
    shapes = {"backbone.embeddings.weight": (pieces, features), "backbone.norm_f.weight": (features,)}
    for layer in range(layers):
        own = {
            "norm.weight": (features,),
            "mixer.in_proj.weight": (2 * inner, features),
            "mixer.conv1d.weight": (inner, 1, taps),
            "mixer.conv1d.bias": (inner,),
            "mixer.x_proj.weight": (rank + 2 * states, inner),
            "mixer.dt_proj.weight": (inner, rank),
            "mixer.dt_proj.bias": (inner,),
            "mixer.A_log": (inner, states),
            "mixer.D": (inner,),
            "mixer.out_proj.weight": (features, inner),
        }
        shapes |= {f"backbone.layers.{layer}.{name}": shape for name, shape in own.items()}
    random = np.random.default_rng(0)
    tensors = {
        name: random.normal(scale=shape[-1] ** -0.5, size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    sizes = {"hidden_size": features, "num_hidden_layers": layers, "intermediate_size": inner}
    sizes |= {"state_size": states, "time_step_rank": rank, "d_model": features, "vocab_size": pieces}
    (folder / "config.json").write_text(json.dumps(settings(**sizes)))
    return folder


def write_random_recurrent_gemma(folder):
    """Write a folder of the size `tiny` of configs/finetune_recurrent_gemma.py."""
    folder.mkdir()
    made = byte_tokenizer(["<pad>", "<eos>", "<bos>"])
    made.save(str(folder / "tokenizer.json"))
    settings = RecurrentGemmaSettings(made.get_vocab_size(), 64, 3, 384, 4, 1, 64)
    model = to_config(settings, "float32", folder).model
    shapes = name_parameters(parameter_shapes(build_model(model, 512)))
    shapes = {name: leaf.shape for name, leaf in shapes.items()}
    theirs = {one.theirs: one.shape(shapes) for one in counterparts(model)}
    theirs[EMBEDDING] = (settings.vocab_size, settings.hidden_size)
    random = np.random.default_rng(0)
    tensors = {
        name: random.normal(scale=shape[-1] ** -0.5, size=shape).astype(np.float32)
        for name, shape in theirs.items()
    }
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(settings.to_json()))
