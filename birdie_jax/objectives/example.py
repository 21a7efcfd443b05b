"""The example that an objective makes: a context, and a target or labels on the context."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

from birdie_jax.vocabulary import PADDING

NO_LABEL = PADDING
"""The value in `Example.labels` at positions without loss."""


@dataclass(frozen=True)
class Example:
    """One training example, before the start token is placed and rows are packed.

    Attributes:
        context: int32 `[context]`, the tokens that the model reads bidirectionally; empty for causal
            objectives. It has loss only where `labels` says so.
        target: int32 `[target]`, the tokens that the model learns to write. Every position has loss.
        arm: index of the example's arm in the mixture.
        labels: int32 `[context]`, the token to predict at each position of the context, or `NO_LABEL`. An
            example with labels has an empty target and gets no start token. If None, only the target has
            loss.
        corpus: index of the text's corpus among the run's corpora.
    """

    context: Int32[np.ndarray, " context"]
    target: Int32[np.ndarray, " target"]
    arm: int = 0
    labels: Int32[np.ndarray, " context"] | None = None
    corpus: int = 0
