"""Measure what pruning costs: python -m birdie_jax.prune --workdir=runs/tiny --output=pruned.

The command reads contexts of held-out text and prunes their tokens as depth grows. It compares the loss of
the tokens after each context with that of the dense model and of other policies, window by window. If you
start it again with the same output folder, it resumes after the last cell that it has measured.
"""

from birdie_jax.host_memory import keep_freed_memory

if __name__ == "__main__":
    # Call this before the imports below start threads.
    keep_freed_memory()

# isort: split
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import jax
from absl import flags, logging

from birdie_jax.command_line import define_path, start, with_example
from birdie_jax.compiled_programs import cache_compiled_programs
from birdie_jax.errors import ConfigError, PruningError
from birdie_jax.generation import choose_arm
from birdie_jax.models.encoder_config import refuse_cache
from birdie_jax.models.registry import architecture_of, mixer_config
from birdie_jax.objectives import Objective
from birdie_jax.pruning import POLICIES, PruningSettings, parse_pruning
from birdie_jax.pruning_cost.cells import (
    FORMAT_VERSION,
    INFLUENCE,
    PAGE,
    RESULTS,
    TABLE,
    Cell,
    CellFolder,
    StudySettings,
    cells_table,
    outputs_below,
    summarise_cells,
)
from birdie_jax.pruning_cost.page import FlowPictures, PageHeading, ShownText, render_page
from birdie_jax.pruning_cost.pruned_prompts import layers_that_read, measure_flow, read_parts
from birdie_jax.pruning_cost.study import (
    MAX_DEFAULT_WINDOWS,
    Condition,
    HeldOutWindows,
    choose_windows,
    conditions,
    documents_of_run,
    documents_of_text,
    measure_cells,
)
from birdie_jax.storage import make_path, to_plain, write_json, write_whole
from birdie_jax.storage.outputs import Input, check_outputs
from birdie_jax.trained_model import TrainedModel, model_of_folder, model_of_workdir

_MANY = 1 << 20

Number = TypeVar("Number", int, float)

_WORKDIR = define_path("workdir", "Folder of a run.")
_MODEL = define_path("model", "Folder that birdie_jax.export wrote, in place of --workdir; with --text.")
_STEP = flags.DEFINE_integer("step", None, "Step of the checkpoint; default: the newest.", lower_bound=0)
_OUTPUT = define_path("output", "Folder for the measurements, the table and the page.", required=True)
_COMPARE = flags.DEFINE_multi_string(
    "compare",
    [],
    "Workdir of another model, such as a smaller one, to compare without pruning; several.",
)
_TEXT = define_path("text", "Held-out text: a file, a folder, a glob or a URL. Default: the run's own.")
_TEXT_FIELD = flags.DEFINE_string(
    "text_field", "text", "Field of JSON lines or Parquet that holds the text."
)
_KEEP = flags.DEFINE_list("keep", "0.9,0.7,0.5,0.3,0.1", "Shares of tokens at the end of the schedule.")
_POLICY = flags.DEFINE_list(
    "policy", "influence,uniform,random,recency,entry_norm", f"Policies: {', '.join(POLICIES)}."
)
_PRUNING = flags.DEFINE_multi_string(
    "pruning", [], "Setting of pruning except policy and shares, NAME=VALUE; several (docs/prune.md)."
)
_CONTEXT = flags.DEFINE_list("context", "256", "Lengths of contexts, in tokens.")
_CONTINUATION = flags.DEFINE_integer(
    "continuation", 100, "Number of tokens to score after a context.", lower_bound=1, upper_bound=_MANY
)
_WINDOWS = flags.DEFINE_integer(
    "windows",
    None,
    "Windows of text, the same for all policies. Default: as many as the text has, at most "
    f"{MAX_DEFAULT_WINDOWS}.",
    lower_bound=1,
    upper_bound=_MANY,
)
_ROWS = flags.DEFINE_integer("rows", 8, "Windows read at a time.", lower_bound=1, upper_bound=_MANY)
_OBJECTIVE = flags.DEFINE_string(
    "objective",
    None,
    "Read contexts in the form of this objective, or arm: prefix_lm or causal_lm. Default: the first of "
    "these that the model has learned.",
)
_SEED = flags.DEFINE_integer(
    "seed", 0, "Seed of the choice of windows and of the bootstrap.", lower_bound=0, upper_bound=1 << 30
)
_SHOWN = flags.DEFINE_integer(
    "shown",
    2,
    "The number of windows whose surviving tokens the page shows.",
    lower_bound=0,
    upper_bound=100,
)
_TRACED = flags.DEFINE_integer(
    "traced",
    16,
    "The number of windows for the plots of flow and redundancy.",
    lower_bound=0,
    upper_bound=_MANY,
)


def run() -> None:
    """Measure all cells, and write the table, the numbers and the page."""
    shares = _numbers("keep", _KEEP.value, float)
    contexts = sorted(_numbers("context", _CONTEXT.value, int))
    if contexts[0] < 1:
        raise ConfigError(f"--context: found {contexts[0]}; allowed: at least 1")
    for setting in _PRUNING.value:
        if setting.startswith(("policy=", "shares=")):
            raise ConfigError(
                f"--pruning: found {setting!r}; allowed: other settings; --policy and --keep set these"
            )
    settings = parse_pruning(min(shares), _PRUNING.value)
    policies = list(dict.fromkeys(_POLICY.value))
    if not policies:
        raise ConfigError(f"--policy: found ''; allowed: one or more of {', '.join(POLICIES)}")
    requested = list(conditions(settings, policies, shares, contexts))
    root = make_path(_OUTPUT.value)
    read = [Input("--text", _TEXT.value, all_files=True)] if _TEXT.value is not None else []
    check_outputs(outputs_below(root), read)
    trained = _load_model()
    _check_model(trained, settings)
    arm = choose_arm(trained.arms, _OBJECTIVE.value)
    windows = _windows(trained, contexts[-1])
    kept = StudySettings(
        FORMAT_VERSION,
        trained.identify().parameters_sha256,
        arm.name,
        windows.sha256,
        len(windows.tokens),
        contexts[-1],
        windows.continuation,
        sorted(_PRUNING.value),
    )
    others = [_compared_model(workdir, trained) for workdir in _COMPARE.value]
    folder = CellFolder(root, kept)
    print(f"{trained.origin}: {trained.model.config.name}, prompt form: {arm.name}", file=sys.stderr)
    cells = measure_cells(trained, arm.objective, windows, requested, folder, rows=_ROWS.value, log=_log)
    for other in others:
        cells += _compared_cells(other, windows, contexts, folder)
    summaries = summarise_cells(cells, windows.documents, _SEED.value)
    write_json(folder.root / RESULTS, {"cells": [to_plain(one) for one in summaries]})
    table = cells_table(summaries)
    write_whole(folder.root / TABLE, (table + "\n").encode())
    texts = _shown_texts(trained, arm.objective, windows, settings, policies)
    flow = _flow(trained, arm.objective, windows, settings) if INFLUENCE in policies else None
    description = (
        f"The loss of {windows.continuation} tokens after pruned contexts, in {len(windows.tokens):,} "
        f"windows of {len(set(windows.documents.tolist())):,} documents, read as {arm.name}."
    )
    heading = PageHeading(trained.origin, description, trained.model.config.layers)
    page = render_page(heading, summaries, texts, flow)
    path = folder.root / PAGE
    write_whole(path, page.encode(errors="backslashreplace"))
    print(table)
    print(path)


def _numbers(flag: str, values: Sequence[str], kind: Callable[[str], Number]) -> list[Number]:
    """Return the numbers of a flag, each once.

    Raises:
        ConfigError: there are no values, or one is not a number.
    """
    try:
        found = list(dict.fromkeys(kind(value) for value in values))
    except ValueError as error:
        raise ConfigError(
            f"--{flag}: found {','.join(values)!r}; allowed: numbers joined by commas"
        ) from error
    if not found:
        raise ConfigError(f"--{flag}: found ''; allowed: numbers joined by commas")
    return found


def _load_model() -> TrainedModel:
    """Return the model of --workdir or --model.

    Raises:
        ConfigError: both flags or neither are set.
    """
    if _WORKDIR.value is not None and _MODEL.value is None:
        return model_of_workdir(_WORKDIR.value, _STEP.value)
    if _MODEL.value is not None and _WORKDIR.value is None:
        if _TEXT.value is None or _STEP.value is not None:
            raise ConfigError(
                "--model: an exported folder has one step and no text; allowed: with --text, no --step"
            )
        return model_of_folder(_MODEL.value)
    raise ConfigError(with_example("give either --workdir, a run, or --model, an exported folder"))


def _check_model(trained: TrainedModel, settings: PruningSettings) -> None:
    """Check, before the first compilation, that a model supports pruning.

    Raises:
        PruningError: the layers do not score tokens, or the schedule has another number of layers.
    """
    config = trained.model.config
    if architecture_of(config).encoder:
        refuse_cache(config)
    problem = mixer_config(config).influence_problem
    if problem is not None:
        raise PruningError(f"--workdir: found model {config.name!r}, {problem[0]}; allowed: {problem[1]}")
    settings.layer_shares(config.layers)


def _windows(trained: TrainedModel, context: int) -> HeldOutWindows:
    if _TEXT.value is not None:
        documents = documents_of_text(_TEXT.value, _TEXT_FIELD.value, trained.tokenizer)
    else:
        documents = documents_of_run(trained.folder, trained.tokenizer)
    return choose_windows(
        documents, _WINDOWS.value, context=context, continuation=_CONTINUATION.value, seed=_SEED.value
    )


def _compared_model(workdir: str, first: TrainedModel) -> TrainedModel:
    """Return another model with its parameters on the host; check that it reads the same tokens.

    Raises:
        ConfigError: the workdir is empty, or the model has another tokenizer or is an encoder.
        PromptError: the model was not trained on the format of the contexts.
    """
    if not workdir:
        raise ConfigError("--compare: found ''; allowed: a workdir")
    other = model_of_workdir(workdir)
    if architecture_of(other.model.config).encoder:
        refuse_cache(other.model.config)
    if other.tokenizer.sha256 != first.tokenizer.sha256:
        raise ConfigError(
            f"--compare: {workdir} has the tokenizer of SHA-256 {other.tokenizer.sha256}, the first model "
            f"{first.tokenizer.sha256}; allowed: models with the same tokenizer"
        )
    choose_arm(other.arms, _OBJECTIVE.value)
    return other._replace(params=jax.device_get(other.params))


def _compared_cells(
    other: TrainedModel, windows: HeldOutWindows, contexts: Sequence[int], folder: CellFolder
) -> list[Cell]:
    """Return the dense cells of another model on the same windows."""
    arm = choose_arm(other.arms, _OBJECTIVE.value)
    requested = [Condition("dense", 1.0, context, None) for context in contexts]
    return measure_cells(other, arm.objective, windows, requested, folder, rows=_ROWS.value, log=_log)


def _shown_texts(
    trained: TrainedModel,
    objective: Objective,
    windows: HeldOutWindows,
    settings: PruningSettings,
    policies: Sequence[str],
) -> list[ShownText]:
    """Return the survivors of each policy in the first windows, at the smallest share."""
    contexts = windows.contexts(windows.tokens.shape[1] - windows.continuation)[: _SHOWN.value]
    if not len(contexts):
        return []
    texts = []
    for policy in policies:
        own = replace(settings, policy=policy)
        read = layers_that_read(trained.model, trained.params, objective, contexts, own)
        texts += [
            ShownText(
                f"{policy}, keep {own.keep:g}, window {number}",
                read_parts(trained.tokenizer, tokens.tolist(), layers.tolist()),
            )
            for number, (tokens, layers) in enumerate(zip(*read, strict=True))
        ]
    return texts


def _flow(
    trained: TrainedModel, objective: Objective, windows: HeldOutWindows, settings: PruningSettings
) -> FlowPictures | None:
    """Return the flow through the layers in the first windows, at the smallest share and dense."""
    contexts = windows.contexts(windows.tokens.shape[1] - windows.continuation)[: _TRACED.value]
    if not len(contexts):
        return None
    pruned = replace(settings, policy=INFLUENCE, norm="absolute", directions="forward")
    dense = replace(pruned, keep=1.0, shares=())
    flows = [
        measure_flow(trained.model, trained.params, objective, contexts, one) for one in (dense, pruned)
    ]
    return FlowPictures(pruned.keep, *flows)


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: list[str]) -> None:
    """Parse flags and measure."""
    logging.set_verbosity(logging.WARNING)
    cache_compiled_programs()
    run()


if __name__ == "__main__":
    start("prune", main, OSError)
