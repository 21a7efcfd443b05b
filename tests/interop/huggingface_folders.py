"""Small folders in the format of mamba-*-hf and recurrentgemma-*, with tokenizers."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import safetensors.numpy
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from birdie_jax.interop import gated_deltanet, mamba, mamba2, recurrent_gemma
from birdie_jax.interop.tensor_names import name_parameters
from birdie_jax.models import build_model
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.models.layout import packed_layout
from tests.quick_jit import quick_jit

RECORDED = Path(__file__).parents[1] / "models" / "recorded"
KINDS = {
    "mamba": mamba,
    "mamba2": mamba2,
    "gated_deltanet": gated_deltanet,
    "recurrent_gemma": recurrent_gemma,
}
_EMBEDDING = {kind: mamba.EMBEDDING for kind in ("mamba", "mamba2")}
_EMBEDDING |= {"gated_deltanet": gated_deltanet.EMBEDDING, "recurrent_gemma": recurrent_gemma.EMBEDDING}
PIECES = 24
TEXT = slice(256, 256 + PIECES)
_SPECIAL = {
    "mamba": ("<|endoftext|>",),
    "mamba2": ("<|endoftext|>",),
    "gated_deltanet": ("<unk>", "<s>", "</s>"),
    "recurrent_gemma": ("<pad>", "<eos>", "<bos>"),
}
_OLD_SETTINGS = {"mamba": {"torch_dtype": "float32", "d_model": 8, "ssm_cfg": {}}}


def recorded(kind):
    """Return the recorded arrays, parameters and gradients of `transformers` (record_oracles.py)."""
    named = {of: {} for of in ("", "parameter", "gradient")}
    for key, value in np.load(RECORDED / f"{kind}.npz").items():
        of, _, name = key.rpartition("/")
        named[of][name] = value
    return named[""], named["parameter"], named["gradient"]


def whole_texts(rows, length):
    """Return the layout of rows with one text each, from its first token."""
    return packed_layout(jnp.ones((rows, length), jnp.int32), jnp.zeros((rows, length), bool))


def scores_of(config, params, tokens, vocab_size):
    """Return the scores of all tokens at each position."""
    model = build_model(config.model, vocab_size)

    @quick_jit
    def scores(params, tokens):
        hidden, _ = model.apply({"params": params}, tokens, whole_texts(*tokens.shape), method="hidden")
        return model.apply({"params": params}, hidden, method="logits")

    return np.asarray(scores(params, jnp.asarray(tokens)))


def described(kind, **changes):
    """Return the recorded config.json of `save_pretrained` with `changes`; `...` removes a setting."""
    settings = (
        json.loads((RECORDED / kind / "config.json").read_text()) | _OLD_SETTINGS.get(kind, {}) | changes
    )
    return {name: value for name, value in settings.items() if value is not ...}


def _write(folder, described, pieces, special, tensors, *, shards=1):
    """Write a folder with a byte-level BPE without merges; the first pieces are the special tokens."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(described))
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(special))
    made.save(str(folder / "tokenizer.json"))
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


def write_folder(folder, kind="mamba", tensors=None, shards=1, **changes):
    """Write a folder of the recorded weights or of `tensors`; `...` removes a setting."""
    special = _SPECIAL[kind]
    pieces = [*special, *"abcdefghijklmnopqrs", "Ġ", "Ċ", "th", "x23"][:PIECES]
    tensors = recorded(kind)[1] if tensors is None else tensors
    return _write(folder, described(kind, **changes), pieces, special, tensors, shards=shards)


def write_random_folder(folder, kind):
    """Write a folder of a random model of another size, with a tokenizer for any text."""
    pieces = [*_SPECIAL[kind], *sorted(pre_tokenizers.ByteLevel.alphabet())]
    settings = {
        "mamba": mamba.MambaSettings(len(pieces), 64, 2, 128, time_step_rank=4),
        # The size `tiny` of configs/finetune_mamba2.py.
        "mamba2": mamba2.Mamba2Settings(len(pieces), 64, 2, 8, 16, 16, 1, tie_word_embeddings=True),
        # The size `tiny` of configs/finetune_recurrent_gemma.py.
        "recurrent_gemma": recurrent_gemma.RecurrentGemmaSettings(len(pieces), 64, 3, 384, 4, 1, 64),
    }[kind]
    model = KINDS[kind].to_config(settings, "float32", folder).model
    shapes = name_parameters(parameter_shapes(build_model(model, 512)))
    shapes = {name: leaf.shape for name, leaf in shapes.items()}
    theirs = {_EMBEDDING[kind]: (settings.vocab_size, settings.hidden_size)}
    theirs |= {one.theirs: one.shape(shapes) for one in KINDS[kind].counterparts(model)}
    random = np.random.default_rng(0)
    tensors = {
        name: random.normal(scale=shape[-1] ** -0.5, size=shape).astype(np.float32)
        for name, shape in theirs.items()
    }
    return _write(folder, settings.to_json(), pieces, _SPECIAL[kind], tensors)
