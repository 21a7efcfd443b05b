"""Measure the padding of packed rows and the time of packing: python -m benchmarks.packing.

The distributions of lengths resemble those of instructions, long documents and short questions. For each,
the script prints the share of positions without an example, including the spacing of 3 between examples,
the seconds to place all examples, and the seconds to shuffle an epoch.
"""

import time
from collections.abc import Callable

import numpy as np

from birdie_jax.finetuning.packed_epochs import PackedEpochs

_SPACING = 3
_COUNTS = (1_000, 100_000, 1_000_000)
_LENGTHS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "log-normal, median 300": lambda random, count: np.exp(random.normal(np.log(300), 1.0, count)),
    "uniform, 16 to a row": lambda random, count: random.uniform(16, 2048, count),
    "exponential, mean 230": lambda random, count: 30 + random.exponential(200, count),
    "short, mean 68": lambda random, count: 8 + random.exponential(60, count),
    "heavy tail": lambda random, count: 40 * random.zipf(1.6, count),
}


def main() -> None:
    """Print a line for each distribution, row length and number of examples."""
    print("lengths | row | examples | padding | packing, s | an epoch, s")
    for name, draw in _LENGTHS.items():
        for row_length in (2048, 8192):
            for count in _COUNTS:
                drawn = draw(np.random.default_rng(0), count)
                lengths = np.clip(drawn, 2, row_length).astype(np.int64)
                begin = time.monotonic()
                packed = PackedEpochs(lengths, row_length, _SPACING, seed=0, key=0)
                placed = time.monotonic()
                packed.row(0)
                shuffled = time.monotonic()
                print(
                    f"{name} | {row_length:,} | {count:,} | {packed.padding_share:.2%} | "
                    f"{placed - begin:.2f} | {shuffled - placed:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
