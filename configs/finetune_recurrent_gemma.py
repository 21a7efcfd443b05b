r"""Fine-tune an imported RecurrentGemma on phone number retrieval (Birdie paper, section 4.3).

    python -m birdie_jax.train --config=configs/finetune_recurrent_gemma.py:2b \
        --config.init.from=imported/recurrentgemma-2b --workdir=runs/recurrentgemma_phonebook

Variants: the published sizes 2b (the default) and 9b, and tiny, a model of three layers that tests write.
docs/griffin.md shows how to import such a model.

The task and its values match configs/finetune_phonebook.py. For tiny, books have 4 to 16 first names with
numbers of four digits. For the others, books have 8 to 64 entries, in 512 rows of 2,048 tokens, which any
power of two of devices divides. Training takes 250 steps. All parameters are fine-tuned in the format of
this program, with its start token. The rows of the special tokens begin as the mean of the other rows. The
published sizes have not been run, because their weights were not available.
"""

import runpy
from pathlib import Path

import ml_collections

from birdie_jax.presets import choose_variant

# Width, layers and heads as published (Botev et al. 2024, table 1); the MLP is three times as wide.
_SIZES = {"2b": (2560, 26, 10), "9b": (4096, 38, 16), "tiny": (64, 3, 4)}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration; `variant` is a size."""
    size = choose_variant(variant, tuple(_SIZES))
    features, layers, heads = _SIZES[size]
    is_tiny = size == "tiny"
    other = Path(__file__).with_name("finetune_phonebook.py")
    config = runpy.run_path(str(other))["get_config"]("tiny" if is_tiny else "110m,griffin")
    config.model.update(
        {
            "name": "griffin",
            "features": features,
            "layers": layers,
            "state": features,
            "mlp_features": 3 * features,
            "mlp_bias": True,
            "bidirectional": False,
            "norm_offset": 1.0,
            # The square root of the width, rounded to bfloat16.
            "embedding_scale": {2560: 50.5}.get(features, features**0.5),
            "logit_soft_cap": 30.0,
            "hawk": {"heads": heads, "bias": True},
            "attention": {
                "heads": heads,
                "kv_heads": 1,
                "rope_base": 10_000.0,
                "rotary_share": 0.5,
                "output_bias": True,
                "window": 2048,
            },
            # Answers end with this program's end token, or with the model's own.
            "begin_token": 258,
            "end_token": 257,
        }
    )
    if not is_tiny:
        books = {"max_entries": 64, "max_positions": 2048}
        config.batching.update({"length": 2048, "rows": 512})
        config.finetune.stages = {
            "phonebook": {"task": "phonebook", **books, "length": 2048, "rows": 512, "steps": 250}
        }
        config.eval.tasks = {"phonebook": {"task": "phonebook", **books, "num_questions": 96}}
    return config
