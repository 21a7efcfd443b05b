r"""Fine-tune an encoder on SQuAD, QuALITY or ContractNLI, as in "Pretraining Without Attention".

    python -m birdie_jax.train --config=configs/finetune_reading.py:tiny,contract_nli \
        --config.init.from=runs/bigs_tiny --workdir=runs/contracts
    python -m launch.local --processes=1 --gpus=8 -- \
        python -m birdie_jax.train --config=configs/finetune_reading.py:512,squad \
        --config.init.from=runs/bigs_512 --workdir=runs/squad
    python -m launch.local --processes=1 --gpus=8 -- \
        python -m birdie_jax.train --config=configs/finetune_reading.py:4096,quality \
        --config.init.from=runs/bigs_4096 --workdir=runs/quality

A variant has up to three parts, separated by commas, as in `512,squad,stack_attention`:

- the pre-trained model: tiny (from configs/bigs_tiny.py), 11b, 29b, 97b, 119m (from configs/bigs.py), 512
  or 4096 (from configs/bigs_longer_rows.py)
- the data set: squad (the default: version 1.1), squad_2 (version 2.0), quality, contract_nli
- the name of the model

Files, with the published names: data/squad/train-v1.1.json and dev-v1.1.json, or -v2.0;
QuALITY.v1.0.1.htmlstripped.train and .dev in data/quality/; train.jsonl and validation.jsonl of SCROLLS in
data/contract_nli/.

The paper's grid (table 7): SQuAD with learning rates 4e-5 and 6e-5, batches of 32, 2 epochs; the others
with 3e-5 and 5e-5, batches of 16 and 24, 5, 8 and 10 epochs; weight decay 0 and 0.01, warm-up over a tenth
of the steps. The values here are the first of each, except for weight decay 0.01, and ten times the rate
for the small model. The other settings match configs/finetune_glue.py.

A question of QuALITY is four samples, one for each option, in one row with spacing between them. So each
sample has three positions fewer than in pre-training, and `init.from` repeats the table of positions to the
length of the row. Windows of SQuAD make more samples than questions; warm-up is a tenth of the questions'
steps.

The paper measures only SQuAD 1.1; squad_2 uses the same values. In training, a question without an answer,
and a window without a whole answer, has the first position as begin and end. In evaluation, the task gives
no answer if the score of that position, the least over all windows, exceeds the score of the best span by
more than no_answer_threshold. The threshold is 0 and was not selected on the development set.

The paper reports for SQuAD 1.1 with 512 tokens F1 89.5 (bigs) and 87.3 (stack_attention), on the
development set as here. For QuALITY and ContractNLI it reports SCROLLS's test sets (table 3), whose labels
are not published: 32.8 and 71.4 with 4,096 tokens, 32.3 and 68.7 with 128 (119m). This configuration
measures the development sets; the paper does not report their scores. It has not been run, because the
files are not available. Planned (docs/measurements/bigs.md): on 8 chips of v5e, a step of `4096,quality`
needs 6.2 of 15.75 GiB per chip. It takes 144 ms if everything overlaps and 257 ms if nothing does.
"""

import runpy
from pathlib import Path

import ml_collections

from birdie_jax.presets import choose_variant, set_encoder_fine_tuning

# The preset of each size, and whether the size is a variant of it.
_SIZES = {
    "tiny": ("bigs_tiny.py", False),
    **{name: ("bigs.py", True) for name in ("11b", "29b", "97b", "119m")},
    **{name: ("bigs_longer_rows.py", True) for name in ("512", "4096")},
}
# Task, training file, evaluation file, number of training questions, learning rate, rows, epochs.
_DATASETS = {
    "squad": ("squad_spans", "squad/train-v1.1.json", "squad/dev-v1.1.json", 87_599, 4e-5, 32, 2),
    "squad_2": ("squad_spans", "squad/train-v2.0.json", "squad/dev-v2.0.json", 130_319, 4e-5, 32, 2),
    "quality": (
        "quality",
        "quality/QuALITY.v1.0.1.htmlstripped.train",
        "quality/QuALITY.v1.0.1.htmlstripped.dev",
        2_523,
        3e-5,
        16,
        5,
    ),
    "contract_nli": (
        "contract_nli",
        "contract_nli/train.jsonl",
        "contract_nli/validation.jsonl",
        7_191,
        3e-5,
        16,
        5,
    ),
}
# SQuAD 2.0: allow no answer if its score exceeds the best span's by this margin.
_NO_ANSWER = {"no_answer": True, "no_answer_threshold": 0.0}
# The options of a question of QuALITY.
_OPTIONS = 4


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration; `variant` is a size, a data set and a model with commas between."""
    size, _, rest = variant.partition(",")
    dataset, _, model = rest.partition(",")
    size = choose_variant(size, tuple(_SIZES))
    file, is_variant = _SIZES[size]
    preset = runpy.run_path(str(Path(__file__).with_name(file)))["get_config"]
    config = preset(f"{size},{model}" if is_variant else model)
    dataset = choose_variant(dataset, tuple(_DATASETS))

    name, learned, measured, questions, learning_rate, rows, epochs = _DATASETS[dataset]
    positions = config.batching.length
    task = {"task": name, "max_positions": positions}
    if dataset == "squad_2":
        task |= _NO_ANSWER
    if name == "squad_spans" and positions < 384:
        # Half of the row, without the marker, the question and two [SEP].
        task |= {"max_question_tokens": 32, "stride": 32}
    length = positions
    if dataset == "quality":
        length = positions * _OPTIONS
        # The options of a question and the spacing between them must fit into a row.
        task["max_positions"] = (length - (_OPTIONS - 1) * config.batching.spacing) // _OPTIONS
    batch = {"length": length, "rows": rows, "pack": False}
    stage = {**task, "path": f"data/{learned}", **batch, "epochs": float(epochs), "steps": None}
    config.finetune.stages = {dataset: stage}
    config.batching.rows, config.batching.length = rows, length
    config.eval.tasks = {dataset: {**task, "path": f"data/{measured}"}}

    # The table has an entry for each token of a row; a sample reads only the first entries.
    config.model.encoder.positions = length
    learning_rate *= 10 if size == "tiny" else 1
    set_encoder_fine_tuning(config, model, learning_rate, epochs * questions // rows)
    return config
