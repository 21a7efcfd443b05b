"""Counts the language targets of a mixture, and the positions with as many targets in causal LM.

    python -m studies.retrieval.language_targets --scale=worth --seed=10 --prepared=WORKDIRS/text_512

Makes the rows that training reads, and counts the targets of the arms causal_lm and prefix_lm; for causal
LM in a twentieth of the rows.
"""

import argparse
from pathlib import Path

import numpy as np

from birdie_jax.batching.row_stream import RowStream
from birdie_jax.config import parse_config
from birdie_jax.resolve import configured_mixture, row_settings
from birdie_jax.text import TokenShards
from studies.retrieval.plans import DEFAULT_MODEL, Run
from studies.retrieval.pretraining import pretraining_config
from studies.retrieval.scales import SCALES

_LANGUAGE = ("causal_lm", "prefix_lm")
_PART = 20


def count_targets(run: Run, prepared: Path, num_steps: int) -> tuple[int, int]:
    """Return the numbers of language targets and of all targets in `num_steps` batches of a run."""
    config = parse_config(pretraining_config(run))
    mixture, settings = configured_mixture(config), row_settings(config)
    text = TokenShards(str(prepared), "train")
    targets = np.zeros(len(mixture.arms), np.int64)
    for row in range(settings.rows):
        stream = RowStream(text, mixture.arms, settings, row)
        stream.set_mixture(mixture.weights)
        for _ in range(num_steps):
            for example in stream.next_row():
                targets[example.arm] += len(example.target)
    is_language = np.array([name in _LANGUAGE for name in mixture.names])
    return int(targets[is_language].sum()), int(targets.sum())


def main() -> None:
    """Print the target counts of a scale's mixture and of causal LM."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", required=True, choices=list(SCALES))
    parser.add_argument("--seed", required=True, type=int)
    parser.add_argument("--prepared", required=True, type=Path, help="folder of prepared text")
    given = parser.parse_args()
    mixture, causal = (
        Run(given.scale, DEFAULT_MODEL, name, given.seed)
        for name in ("mixture_fixed_causal", "causal_lm_causal")
    )
    config = pretraining_config(mixture)
    steps, positions = config.train.num_steps, config.batching.rows * config.batching.length
    language, of_all = count_targets(mixture, given.prepared, steps)
    found, _ = count_targets(causal, given.prepared, steps // _PART)
    density = found / (steps // _PART * positions)
    print(f"mixture: {language:,} language targets of {of_all:,} in {steps * positions:,} positions")
    print(
        f"causal LM: {density:.4f} targets a position; as many in {round(language / density):,} positions"
    )


if __name__ == "__main__":
    main()
