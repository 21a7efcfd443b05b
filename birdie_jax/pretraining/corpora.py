"""The corpora of a run: their expected epochs, the contents of corpora.json, and changes by a branch."""

from typing import Any

import numpy as np
from jaxtyping import Int64, PyTree

from birdie_jax.batching import RowStream, StreamLayout
from birdie_jax.batching.stream_state import carry_over
from birdie_jax.config import Config, corpora_of
from birdie_jax.engine.branch import Branch, MovedPosition
from birdie_jax.errors import ConfigError
from birdie_jax.objectives import Mixture
from birdie_jax.pretraining.mixture_batches import ROW_STREAMS
from birdie_jax.pretraining.mixture_shares import MixtureShares
from birdie_jax.resolve import configured_mixture, corpus_names, known_mixtures, row_settings
from birdie_jax.text import Tokenizer
from birdie_jax.text.corpora import Corpora

# The number of sample rows that measure how much text of each corpus a row reads.
_ROWS = 64


def describe_corpora(
    config: Config, mixture: Mixture, shares: MixtureShares, text: Corpora
) -> dict[str, Any]:
    """Return the contents of corpora.json, by corpus name.

    Each entry has the corpus's weight, share, folder, tokens, documents, and the epochs that the whole run
    is expected to read. The epochs are an estimate from a sample of rows under each mixture that is known
    before the run. If the policy reads losses, this is the first one.

    Raises:
        ConfigError: the expected epochs of a corpus exceed its `max_epochs`.
    """
    settings = row_settings(config)
    tokens = np.zeros(len(text.texts))
    for weights, steps in known_mixtures(config, mixture):
        stream = RowStream(text, mixture.arms, settings, row=0)
        stream.set_mixture(shares.sampling(weights))
        # The first rows also fill the buffer, so they read more text than later rows.
        for _ in range(settings.lookahead):
            stream.next_row()
        buffering = np.array(stream.tokens_read)
        for _ in range(_ROWS):
            stream.next_row()
        tokens += (np.array(stream.tokens_read) - buffering) / _ROWS * settings.rows * steps
    described: dict[str, Any] = {}
    for number, (name, corpus) in enumerate(corpora_of(config.data).items()):
        its_text = text.texts[number]
        epochs = float(tokens[number]) / its_text.num_tokens
        if corpus.max_epochs and epochs > corpus.max_epochs:
            raise ConfigError(
                f"config.data.corpora.{name}.max_epochs: the run is expected to read its "
                f"{its_text.num_tokens:,} tokens {epochs:.3g} times in {config.train.num_steps:,} steps; "
                f"found {corpus.max_epochs:g}; allowed: {epochs:.3g}, a lower weight or fewer steps"
            )
        described[name] = {
            "weight": corpus.weight,
            "share": corpus.weight / sum(text.weights),
            "place": str(its_text.directory),
            "tokens": its_text.num_tokens,
            "documents": its_text.num_documents,
            "expected_epochs": epochs,
        }
    return described


def in_one_line(described: dict[str, Any]) -> str:
    """Return the line about the corpora that a run prints at its start."""
    parts = [
        f"{name} {each['share']:.1%} of {each['tokens']:,} tokens, {each['expected_epochs']:.2g} epochs"
        for name, each in described.items()
    ]
    return f"corpora: {'; '.join(parts)}"


def with_corpora_of(branch: Branch, before: Config, config: Config, tokenizer: Tokenizer) -> Branch:
    """Return a branch that continues each corpus at the other run's position, and starts new corpora.

    Args:
        branch: the branch from the other run.
        before: the configuration of the other run.
        config: the configuration of this run.
        tokenizer: the tokenizer of this run.

    Raises:
        ConfigError: the other run has a different tokenizer.
    """
    old, new = (
        StreamLayout.of(corpus_names(each) or ("",), configured_mixture(each).arms, each.batching.lookahead)
        for each in (before, config)
    )
    if before.data.corpora == config.data.corpora and old.pools == new.pools:
        return branch
    its_tokenizer = branch.source.tokenizer
    if Tokenizer(str(its_tokenizer)).sha256 != tokenizer.sha256:
        raise ConfigError(
            f"config.init.from: found a run with another tokenizer than that of config.data.corpora; "
            f"allowed: one with the same tokenizer, e.g. by config.data.tokenizer={its_tokenizer}"
        )
    # The number of rows of this run, so a checkpoint of another number is refused.
    initial = np.tile(old.initial(), (config.batching.rows, 1))

    def move(position: PyTree[np.ndarray]) -> PyTree[np.ndarray]:
        states: Int64[np.ndarray, "rows state"] = position[ROW_STREAMS]
        return {ROW_STREAMS: np.stack([carry_over(state, old, new) for state in states])}

    return branch._replace(moved=MovedPosition({ROW_STREAMS: initial}, move))
