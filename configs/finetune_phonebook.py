r"""Fine-tune on phone number retrieval (Birdie paper, section 4.3, appendix D), and evaluate.

    python -m launch.local --processes=1 --gpus=8 -- \
        python -m birdie_jax.train --config=configs/finetune_phonebook.py \
        --config.init.from=runs/birdie_1_4b --workdir=runs/phonebook_1_4b
    python -m birdie_jax.train --config=configs/finetune_phonebook.py:tiny --config.init.from=runs/tiny \
        --workdir=runs/phonebook_tiny

Variants: the size of the pre-trained model, 1_4b (the default), 400m, 110m or tiny. The name of the model
follows a comma unless it is gated_ssm_plus, as in `110m,hawk`.

The paper's values: 250 steps of 32 rows of 16,384 tokens, packed with books of 8 to 800 entries that ask
for 1 to 32 numbers, a learning rate of 5e-5, and no weight decay. The number of devices must divide 32. The
paper gives no schedule; here the rate is constant, without warm-up. `tiny` has books of 4 to 16 first names
with numbers of four digits, in rows of 256. Its questions consist of the names alone.
"""

import runpy
from pathlib import Path

import ml_collections

from birdie_jax.presets import choose_variant

_PRESETS = {"1_4b": "birdie_1_4b.py", "400m": "birdie_400m.py", "110m": "birdie_110m.py", "tiny": "tiny.py"}
_TINY_BOOKS = {
    "min_entries": 4,
    "max_entries": 16,
    "max_numbers": 2,
    "max_positions": 256,
    "number_format": "####",
    "name_words": 1,
    # If letters are tokens, sentences would be longer than a short book.
    "question_form": "names",
}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration; `variant` is a size, or a size and a model with a comma between."""
    size, _, model = variant.partition(",")
    size = choose_variant(size, tuple(_PRESETS))
    preset = Path(__file__).with_name(_PRESETS[size])
    config = runpy.run_path(str(preset))["get_config"](model)

    is_tiny = size == "tiny"
    books = {"task": "phonebook", **(_TINY_BOOKS if is_tiny else {})}
    batch = {"length": 256, "rows": 16} if is_tiny else {"length": 16_384, "rows": 32}
    config.finetune.stages = {"phonebook": {**books, **batch, "steps": 400 if is_tiny else 250}}
    config.batching.update(batch)
    config.eval.tasks = {"phonebook": {**books, "num_questions": 96}}

    config.optimizer.learning_rate = 1e-3 if is_tiny else 5e-5
    config.optimizer.final_learning_rate = config.optimizer.learning_rate
    config.optimizer.warmup_steps = 0
    config.optimizer.weight_decay = 0.0
    # 0: all steps of the stage.
    config.train.num_steps = 0
    config.checkpoint.every_steps = 50
    return config
