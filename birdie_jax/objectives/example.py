"""What every objective makes of a text: something to read, and something to write."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32


@dataclass(frozen=True)
class Example:
    """One training example, before the start token is placed and rows are packed.

    Attributes:
        context: int32 `[context]`, read bidirectionally and without loss; empty for causal objectives.
        target: int32 `[target]`, what the model has to write; every position bears loss.
        arm: index, within the mixture, of the arm that asked for the example.
    """

    context: Int32[np.ndarray, " context"]
    target: Int32[np.ndarray, " target"]
    arm: int = 0
