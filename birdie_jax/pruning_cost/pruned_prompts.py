"""Rows of prompts of one length, and compiled programs that measure them.

The programs measure the loss of the continuation, the information flow and the redundancy by layer, dense
and pruned (Simba, Figures 2 and 5, appendix A.2). They also return the surviving tokens as text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32, PyTree

from birdie_jax.array_types import Activations
from birdie_jax.config_sections import ModelConfig
from birdie_jax.errors import PromptError
from birdie_jax.generation.decoding import PromptBatch
from birdie_jax.generation.device_programs import DevicePrograms, cast_parameters
from birdie_jax.generation.prompt import Prompt, prompt_as_read, prunable_tokens
from birdie_jax.generation.scoring import PromptState, read_prompts, score_choices
from birdie_jax.generation.text_generation import TextStream
from birdie_jax.generation.timing import GenerationTimes
from birdie_jax.models import LanguageModel
from birdie_jax.models.parameters import parameter_policies
from birdie_jax.objectives import Objective
from birdie_jax.planning.pruned_flops import counted_flops, paper_flops
from birdie_jax.pruning import PrunedLayer, PruningSettings, pruned_hidden
from birdie_jax.pruning.pruned_prefill import PromptRows, prompt_anchors, protected_tokens
from birdie_jax.text import Tokenizer

PREFIX_LM, CAUSAL_LM = "prefix_lm", "causal_lm"


class ContinuationLosses(NamedTuple):
    """The results of reading and scoring some windows.

    Attributes:
        losses: float64 [windows], the mean loss of a continuation's tokens, in nats.
        executed_flops: the FLOPs of the compiled prefill's matrix products, for one row.
    """

    losses: Float[np.ndarray, " windows"]
    executed_flops: float


def make_rows(
    model: ModelConfig,
    objective: Objective,
    contexts: Int32[np.ndarray, "rows context"],
    numbers: Int[np.ndarray, " rows"],
) -> PromptRows:
    """Return prompts as `generate` reads them: contexts in the format of an objective, without padding.

    With prefix_lm the start token follows the context. With causal_lm the context follows the start token.
    The context's tokens may be dropped; the start token always stays. A model without a start token reads
    the context alone.

    Args:
        model: the architecture.
        objective: the objective.
        contexts: the tokens of the contexts.
        numbers: a number for each row, for its random choices.

    Raises:
        PromptError: the objective is neither of these.
    """
    nothing = np.empty(0, np.int32)
    if objective.name == PREFIX_LM:
        marker = nothing if objective.marker is None else np.array([objective.marker], np.int32)
        prompts = [Prompt(np.concatenate([marker, context]), nothing) for context in contexts]
    elif objective.name == CAUSAL_LM:
        prompts = [Prompt(nothing, context) for context in contexts]
    else:
        raise PromptError(
            f"--objective: found {objective.name}, which does not continue a text; allowed: {PREFIX_LM}, "
            f"{CAUSAL_LM}"
        )
    prompts = [prompt_as_read(prompt, model) for prompt in prompts]
    tokens = jnp.asarray(np.stack([prompt.tokens for prompt in prompts]))
    segment_ids = jnp.ones(tokens.shape, jnp.int32)
    bidirectional = jnp.broadcast_to(jnp.arange(tokens.shape[1]) < len(prompts[0].context), tokens.shape)
    keys = jax.vmap(jax.random.key)(jnp.asarray(numbers))
    prunable = prunable_tokens(tokens, segment_ids, bidirectional)
    return PromptRows(tokens, segment_ids, bidirectional, keys, prunable)


def protected_count(rows: PromptRows, settings: PruningSettings) -> int:
    """Return the maximum number of tokens of a row that are never dropped."""
    assert rows.prunable is not None  # `make_rows` sets it.
    anchors = prompt_anchors(rows.segment_ids)
    kept = protected_tokens(rows.segment_ids, rows.prunable, anchors, keep_first=settings.keep_first)
    return int(kept.sum(axis=1).max())


class PrunedScorer:
    """A model that reads pruned contexts and scores their continuations, on one device.

    Attributes:
        model: the language model.
        programs: the parameters on the device and the compiled functions.
    """

    def __init__(self, model: LanguageModel, params: PyTree, objective: Objective, rows: int):
        """Put the parameters on this process's first device.

        Args:
            model: the language model.
            params: its parameters.
            objective: the objective that defines the format of contexts.
            rows: the number of windows to read at a time.
        """
        self.model, self._objective, self._rows = model, objective, rows
        params = cast_parameters(params, parameter_policies(model))
        self.programs = DevicePrograms(params, [jax.local_devices()[0]], GenerationTimes())

    def paper_flops(self, settings: PruningSettings | None, context: int) -> float:
        """Return the FLOPs of reading a context, by Simba's count."""
        layers = self.model.config.layers
        shares = (1.0,) * layers if settings is None else settings.layer_shares(layers)
        return paper_flops(self.model, shares, context)

    def losses(
        self,
        settings: PruningSettings | None,
        contexts: Int32[np.ndarray, "windows context"],
        continuations: Int32[np.ndarray, "windows tokens"],
    ) -> ContinuationLosses:
        """Return the loss of each continuation after its context.

        Args:
            settings: the settings of pruning; None: no pruning, and any model works.
            contexts: the tokens of the contexts.
            continuations: the tokens to score; none is dropped.

        Raises:
            PruningError: the policy requires scores, but the model's layers return none.
        """
        found, count = [], continuations.shape[1]
        flops = 0.0
        for first in range(0, len(contexts), self._rows):
            # Pad the last batch, so only one program compiles.
            numbers = np.minimum(np.arange(first, first + self._rows), len(contexts) - 1)
            read = self._read_program(
                settings, make_rows(self.model.config, self._objective, contexts[numbers], numbers), count
            )
            state = read.call(self.programs.params)
            flops = flops or counted_flops(read.compiled) / self._rows
            tokens = self.programs.put_rows(continuations[numbers][:, None])
            lengths = self.programs.put_rows(np.full((self._rows, 1), count, np.int32))
            given = (state, tokens, lengths)
            score = self.programs.compile("score", 0, partial(score_choices, self.model), *given)
            scores = np.asarray(score(self.programs.params, *given).log_likelihoods, np.float64)
            found.append(-scores[:, 0] / count)
        return ContinuationLosses(np.concatenate(found)[: len(contexts)], flops)

    def _read_program(
        self, settings: PruningSettings | None, rows: PromptRows, room: int
    ) -> "_ReadProgram":
        """Return the program that reads rows of this shape, with its arguments."""
        name = f"read {settings}"
        if settings is None:
            batch = PromptBatch(rows.tokens, rows.bidirectional, rows.segment_ids)
            prompts = jax.tree.map(self.programs.put_rows, batch)
            read = partial(read_prompts, self.model, room)
            compiled = self.programs.compile(name, room, read, prompts)
        else:
            prompts = rows
            read = partial(_read_pruned, self.model, settings, protected_count(rows, settings))
            compiled = self.programs.compile(name, room, read, prompts)
        return _ReadProgram(cast(jax.stages.Compiled, compiled), prompts)


class _ReadProgram(NamedTuple):
    """A compiled program that reads prompts, and the prompts."""

    compiled: jax.stages.Compiled
    prompts: PromptBatch | PromptRows

    def call(self, params: PyTree) -> PromptState:
        return self.compiled(params, self.prompts)


def _read_pruned(
    model: LanguageModel, settings: PruningSettings, protected: int, params: PyTree, rows: PromptRows
) -> PromptState:
    """Read pruned prompts with a cache of constant size."""
    cache = model.empty_cache(rows.tokens.shape[0], rows.tokens.shape[1])
    hidden, cache, _ = pruned_hidden(model, params, rows, cache, settings, protected=protected)
    return PromptState(cache, hidden[:, -1:])


def read_places(
    model: LanguageModel, settings: PruningSettings, protected: int, params: PyTree, rows: PromptRows
) -> Int[Array, "rows length"]:
    """Return the number of layers that read each token of the rows."""
    cache = model.empty_cache(*rows.tokens.shape)
    _, _, layers = pruned_hidden(model, params, rows, cache, settings, protected=protected)
    depths = jnp.zeros(rows.tokens.shape, jnp.int32)
    places = jnp.arange(len(depths))[:, None]
    for layer in layers:
        depths = depths.at[places, layer.index].add((layer.segment_ids > 0).astype(jnp.int32))
    return depths


BINS = 5


@dataclass(frozen=True)
class LayerFlow:
    """The effect of the layers of one pass on tokens, as means over windows.

    Attributes:
        flow: for each layer and each of `BINS` equal parts of the prompt, the mean influence of the tokens
            that the layer reads, as a share of the norm of the output at the last token; NaN if none is
            left.
        redundancy: for each layer, the mean cosine of the block's outputs at adjacent tokens.
        mixer_redundancy: for each layer, the mean cosine of the mixer's outputs at adjacent tokens.
    """

    flow: Float[np.ndarray, "layers bins"]
    redundancy: Float[np.ndarray, " layers"]
    mixer_redundancy: Float[np.ndarray, " layers"]


def measure_flow(
    model: LanguageModel,
    params: PyTree,
    objective: Objective,
    contexts: Int32[np.ndarray, "windows context"],
    settings: PruningSettings,
) -> LayerFlow:
    """Return the flow of windows; read all of them in one batch.

    Args:
        model: a model with layers that return scores.
        params: its parameters.
        objective: the objective that defines the format of contexts.
        contexts: the tokens of the contexts.
        settings: the settings of pruning, with norm "absolute" and directions "forward".

    Raises:
        PruningError: the settings differ from these, or the layers return no scores.
    """
    rows = make_rows(model.config, objective, contexts, np.arange(len(contexts)))
    measure = jax.jit(partial(_flow_sums, model, settings, protected_count(rows, settings)))
    sums = [
        jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), layer) for layer in measure(params, rows)
    ]
    with np.errstate(invalid="ignore"):
        flow = np.array([influence / count for influence, count, *_ in sums])
    redundancy, mixed, pairs = (np.array([layer[part] for layer in sums]) for part in (2, 3, 4))
    pairs = np.maximum(pairs, 1)
    return LayerFlow(flow, redundancy / pairs, mixed / pairs)


def _flow_sums(
    model: LanguageModel, settings: PruningSettings, protected: int, params: PyTree, rows: PromptRows
) -> list[tuple[Array, ...]]:
    """Return the sums of each layer for the means: of influence, tokens, cosines and pairs."""
    cache = model.empty_cache(*rows.tokens.shape)
    _, _, layers = pruned_hidden(model, params, rows, cache, settings, protected=protected, traced=True)
    return [_layer_sums(layer, rows.tokens.shape[1]) for layer in layers]


def _layer_sums(layer: PrunedLayer, length: int) -> tuple[Array, ...]:
    assert layer.trace is not None  # traced
    real = layer.segment_ids > 0
    parts = jnp.where(real, layer.index * BINS // length, BINS).reshape(-1)
    influence = jnp.where(real, layer.trace.influence, 0.0).reshape(-1)
    pairs = real[:, 1:] & real[:, :-1]
    return (
        jnp.zeros(BINS + 1).at[parts].add(influence)[:BINS],
        jnp.zeros(BINS + 1).at[parts].add(1.0)[:BINS],
        _cosine_sum(layer.trace.output, pairs),
        _cosine_sum(layer.trace.mixed, pairs),
        pairs.sum(),
    )


def _cosine_sum(vectors: Activations, pairs: Bool[Array, "rows _"]) -> Float[Array, ""]:
    """Return the sum of the cosines of adjacent tokens' vectors, over the pairs in `pairs`."""
    vectors = vectors.astype(jnp.float32)
    norms = jnp.maximum(jnp.linalg.norm(vectors, axis=-1), jnp.finfo(jnp.float32).tiny)
    products = jnp.sum(vectors[:, 1:] * vectors[:, :-1], axis=-1)
    return jnp.sum(jnp.where(pairs, products / norms[:, 1:] / norms[:, :-1], 0.0))


@dataclass(frozen=True)
class ReadPart:
    """A part of a text; the same number of layers read each of its tokens.

    Attributes:
        text: the text.
        layers: the number of layers that read it.
    """

    text: str
    layers: int


def layers_that_read(
    model: LanguageModel,
    params: PyTree,
    objective: Objective,
    contexts: Int32[np.ndarray, "windows context"],
    settings: PruningSettings,
) -> tuple[Int[np.ndarray, "windows tokens"], Int[np.ndarray, "windows tokens"]]:
    """Return the tokens of each context's prompt, and the number of layers that read each token."""
    rows = make_rows(model.config, objective, contexts, np.arange(len(contexts)))
    read = jax.jit(partial(read_places, model, settings, protected_count(rows, settings)))
    return np.asarray(rows.tokens), np.asarray(read(params, rows))


def read_parts(tokenizer: Tokenizer, tokens: Sequence[int], layers: Sequence[int]) -> list[ReadPart]:
    """Return the parts of a text; adjacent tokens with equal numbers of layers form one part.

    A character of several tokens belongs to the last token.
    """
    stream, parts = TextStream(tokenizer), []
    texts = [stream.push([token]) for token in tokens]
    texts[-1] += stream.finish()
    for text, count in zip(texts, layers, strict=True):
        if parts and parts[-1].layers == count:
            parts[-1] = ReadPart(parts[-1].text + text, count)
        else:
            parts.append(ReadPart(text, count))
    return [part for part in parts if part.text]
