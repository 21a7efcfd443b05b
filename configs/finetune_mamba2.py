r"""Fine-tune an imported Mamba-2 on phone number retrieval (Birdie paper, section 4.3), and measure it.

    python -m birdie_jax.train --config=configs/finetune_mamba2.py:130m \
        --config.init.from=imported/mamba2-130m --workdir=runs/mamba2_phonebook

Variants: the published sizes 130m (the default), 370m, 780m, 1_3b and 2_7b, and tiny, a model of two layers
that tests write. docs/mamba.md shows how to import such a model.

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

# Width and layers as published (Dao and Gu 2024, table 9); E = 2 D, P = 64, N = 128, one group.
_SIZES = {
    "130m": (768, 24),
    "370m": (1024, 48),
    "780m": (1536, 48),
    "1_3b": (2048, 48),
    "2_7b": (2560, 64),
    "tiny": (64, 2),
}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration; `variant` is a size."""
    size = choose_variant(variant, tuple(_SIZES))
    features, layers = _SIZES[size]
    is_tiny = size == "tiny"
    other = Path(__file__).with_name("finetune_phonebook.py")
    config = runpy.run_path(str(other))["get_config"]("tiny" if is_tiny else "110m,mamba2")
    config.model.update(
        {
            "name": "mamba2",
            "features": features,
            "layers": layers,
            "state": 2 * features,
            "bidirectional": False,
            "norm_epsilon": 1e-5,
            "embedding_scale": 1.0,
            "residual_dtype": "float32",
            # Answers end with this program's end token, or with the model's own.
            "end_token": 256,
        }
    )
    config.model.mamba2.update(head_features=16 if is_tiny else 64, state_size=16 if is_tiny else 128)
    if not is_tiny:
        books = {"max_entries": 64, "max_positions": 2048}
        config.batching.update({"length": 2048, "rows": 512})
        config.finetune.stages = {
            "phonebook": {"task": "phonebook", **books, "length": 2048, "rows": 512, "steps": 250}
        }
        config.eval.tasks = {"phonebook": {"task": "phonebook", **books, "num_questions": 96}}
    return config
