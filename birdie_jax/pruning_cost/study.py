"""The study of a model: windows of held-out text, and cells, which it measures or reads from files.

A window has contexts of several lengths before the same scored tokens.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from etils import epath
from jaxtyping import Int, Int32

from birdie_jax.errors import ConfigError
from birdie_jax.objectives import Objective
from birdie_jax.pruning import PruningSettings
from birdie_jax.pruning_cost.cells import DENSE, Cell, CellFolder
from birdie_jax.pruning_cost.pruned_prompts import PrunedScorer
from birdie_jax.storage import exists, read_bytes
from birdie_jax.storage.json_text import parse_json
from birdie_jax.storage.workdir import Workdir
from birdie_jax.text import Tokenizer, TokenShards, open_source
from birdie_jax.trained_model import TrainedModel

# The default of --windows.
MAX_DEFAULT_WINDOWS = 300


class HeldOutWindows(NamedTuple):
    """Parts of documents: the longest context and the scored tokens after it.

    Attributes:
        tokens: int32 [windows, longest context + continuation].
        documents: int64 [windows], the document of each window.
        continuation: the number of scored tokens at the end of each window.
    """

    tokens: Int32[np.ndarray, "windows tokens"]
    documents: Int[np.ndarray, " windows"]
    continuation: int

    def contexts(self, length: int) -> Int32[np.ndarray, "windows context"]:
        """Return the `length` tokens before the scored tokens."""
        end = self.tokens.shape[1] - self.continuation
        return self.tokens[:, end - length : end]

    @property
    def continuations(self) -> Int32[np.ndarray, "windows continuation"]:
        """The scored tokens."""
        return self.tokens[:, self.tokens.shape[1] - self.continuation :]

    @property
    def sha256(self) -> str:
        """The hash of all windows."""
        return hashlib.sha256(self.tokens.astype("<i4").tobytes()).hexdigest()


def documents_of_run(
    folder: epath.PathLike, tokenizer: Tokenizer
) -> Iterator[Int32[np.ndarray, " tokens"]]:
    """Yield the documents of a run's validation text, from the prepared folder that the run records.

    Raises:
        ConfigError: the workdir records no text, or no folder for it.
        DataError: the text no longer exists, or was prepared with another tokenizer.
    """
    path = Workdir(folder).text
    allowed = "allowed: --text, a file or folder of held-out text"
    if not exists(path):
        raise ConfigError(f"{path}: not found; {allowed}")
    try:
        place = parse_json(read_bytes(path))["place"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: found no folder of prepared text; {allowed}") from error
    shards = TokenShards(place, "validation", tokenizer_sha256=tokenizer.sha256)
    parts: list[np.ndarray] = []
    for number in range(len(shards)):
        record = shards[number]
        parts.append(record.tokens)
        if record.ends_document:
            yield np.concatenate(parts)
            parts = []


def documents_of_text(path: str, text_field: str, tokenizer: Tokenizer) -> Iterator[Int[np.ndarray, " _"]]:
    """Yield the tokens of each document of a text, as `prepare_data` reads them.

    Raises:
        DataError: a document cannot be read.
    """
    for document in open_source(path, text_field).documents():
        yield tokenizer.encode(document.text)


def choose_windows(
    documents: Iterator[Int[np.ndarray, " _"]],
    count: int | None,
    *,
    context: int,
    continuation: int,
    seed: int,
) -> HeldOutWindows:
    """Return windows, drawn from all non-overlapping windows of the documents.

    Args:
        documents: the tokens of each document.
        count: the number of windows; None: all windows, at most `MAX_DEFAULT_WINDOWS`.
        context: the number of tokens in the longest context.
        continuation: the number of tokens to score after it.
        seed: the seed of the choice.

    Raises:
        ConfigError: the text has fewer windows, or none.
    """
    length, found, owners = context + continuation, [], []
    for number, tokens in enumerate(documents):
        whole = len(tokens) // length
        found.append(tokens[: whole * length].reshape(whole, length).astype(np.int32))
        owners += [number] * whole
    count = min(max(1, len(owners)), MAX_DEFAULT_WINDOWS) if count is None else count
    if len(owners) < count:
        raise ConfigError(
            f"--windows: found {count:,} of {length:,} tokens, --context and --continuation together; "
            f"the text has {len(owners):,}; allowed: at most as many, or shorter ones"
        )
    chosen = np.sort(np.random.default_rng(seed).permutation(len(owners))[:count])
    return HeldOutWindows(np.concatenate(found)[chosen], np.array(owners, np.int64)[chosen], continuation)


Log = Callable[[str], None]


class Condition(NamedTuple):
    """The condition of a cell.

    Attributes:
        policy: the name of the policy; "dense": no pruning.
        keep: the share at the end of the schedule.
        context: the number of tokens in a context.
        settings: the settings of pruning; None: no pruning.
    """

    policy: str
    keep: float
    context: int
    settings: PruningSettings | None


def conditions(
    settings: PruningSettings, policies: Sequence[str], shares: Sequence[float], contexts: Sequence[int]
) -> Iterator[Condition]:
    """Yield all conditions of a pruned model: for each length, the dense condition, then the others."""
    for context in contexts:
        yield Condition(DENSE, 1.0, context, None)
        for policy in policies:
            for keep in shares:
                yield Condition(policy, keep, context, replace(settings, policy=policy, keep=keep))


def measure_cells(
    trained: TrainedModel,
    objective: Objective,
    windows: HeldOutWindows,
    requested: Sequence[Condition],
    folder: CellFolder,
    *,
    rows: int,
    log: Log,
) -> list[Cell]:
    """Measure the cells of a model, write each one at once, and return them.

    Args:
        trained: the model.
        objective: the objective that defines the format of contexts.
        windows: the windows.
        requested: the conditions.
        folder: the folder of the cells.
        rows: the number of windows to read at a time.
        log: called with a line about each measured cell.

    Raises:
        PruningError: a policy requires scores, but the model returns none.
        PromptError: the objective does not continue a text.
    """
    sha256 = trained.identify().parameters_sha256
    scorer: PrunedScorer | None = None
    cells = []
    for number, one in enumerate(requested, start=1):
        cell = folder.read(sha256, one.policy, one.keep, one.context)
        if cell is None:
            # If all cells have files, no parameters enter the device.
            scorer = scorer or PrunedScorer(trained.model, trained.params, objective, rows)
            found = scorer.losses(one.settings, windows.contexts(one.context), windows.continuations)
            cell = Cell(
                trained.origin,
                sha256,
                one.policy,
                one.keep,
                one.context,
                found.losses.tolist(),
                scorer.paper_flops(one.settings, one.context),
                found.executed_flops,
            )
            folder.write(cell)
            log(
                f"{number} of {len(requested)}: {one.policy} keep {one.keep:g}, {one.context:,} tokens: "
                f"loss {cell.mean:.4f}"
            )
        # The model's folder may have moved since the measurement.
        cells.append(replace(cell, model=trained.origin))
    return cells
