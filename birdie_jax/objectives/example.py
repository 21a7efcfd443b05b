"""The example that an objective makes: a context to read, and a target to write or labels in place."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

from birdie_jax.vocabulary import PADDING

NO_LABEL = PADDING
"""The value in `Example.labels` where there is no loss."""


@dataclass(frozen=True)
class Example:
    """One training example, before the start token is placed and rows are packed.

    Attributes:
        context: int32 `[context]`, read bidirectionally, and without loss but for `labels`; empty for
            causal objectives.
        target: int32 `[target]`, what the model has to write; every position bears loss.
        arm: index, within the mixture, of the arm that requested the example.
        labels: int32 `[context]`, what the model has to name in the places of the context, `NO_LABEL` where
            there is no loss. Such an example has an empty target, and no start token is placed in it. None:
            all loss is on the target.
        corpus: index, within the corpora of the run, of the one that the text is of.
    """

    context: Int32[np.ndarray, " context"]
    target: Int32[np.ndarray, " target"]
    arm: int = 0
    labels: Int32[np.ndarray, " context"] | None = None
    corpus: int = 0
