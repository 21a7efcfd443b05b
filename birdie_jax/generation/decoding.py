"""The two compiled programs of generation: one reads the prompts, the other writes a stretch of answers.

Reading (prefill) is one pass of the model over whole prompts, whose scan runs over the sequence. Writing is
a loop on the device with one model step a token, from a state whose size does not grow; it ends when every
row is done. It is called for a stretch of tokens at a time, with nothing exchanged with the host inside a
stretch: a callback for every token would make the device wait for the host, and one call for all tokens
could not be shown, or stopped by a string, before its end. The next stretch is dispatched before the last
one is looked at.
"""

from functools import partial
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from birdie_jax.generation.sampling import Sampling, choose
from birdie_jax.models import LanguageModel
from birdie_jax.models.layout import causal_layout, packed_layout
from birdie_jax.models.unrolled_decode import stack_caches, unrolled_hidden, unstack_layers
from birdie_jax.vocabulary import PADDING


class Request(NamedTuple):
    """Prompts laid out for the device, each at the right end of its row.

    Attributes:
        tokens: int32 [rows, length], context, start token and the given beginning of the
            answer, with padding to the left.
        bidirectional: bool [rows, length], true on the context.
        segment_ids: int32 [rows, length], 1 on the prompt, 0 on the padding.
        keys: [rows], a random key for each row's answer.
        most: int32 [rows], tokens that each row may write; 0 where the row is there to fill up the batch.
        allowed: bool [vocab], the tokens that may be written.
        stops: bool [vocab], the tokens that end an answer.
    """

    tokens: Any
    bidirectional: Any
    segment_ids: Any
    keys: Any
    most: Any
    allowed: Any
    stops: Any


class Settings(NamedTuple):
    """What the programs are compiled for.

    Attributes:
        model: what answers.
        sampling: how tokens are chosen.
        stretch: the most tokens a row that one call of `write` gives.
        most: the most tokens of an answer, for models whose cache has room for a number of tokens.
    """

    model: LanguageModel
    sampling: Sampling
    stretch: int
    most: int


class Rules(NamedTuple):
    """What of a request the writing loop reads; fields as in `Request`."""

    keys: Array
    most: Int[Array, " rows"]
    allowed: Bool[Array, " vocab"]
    stops: Bool[Array, " vocab"]


@flax.struct.dataclass
class Writing:
    """Where the answers stand: everything that the loop carries from token to token.

    Attributes:
        cache: the model's, whatever it is made of.
        token: int32 [rows], the last token written, which the model has not read yet.
        written: int32 [rows], tokens written so far.
        done: bool [rows], whether the answer is complete.
    """

    cache: Any
    token: Any
    written: Any
    done: Any


def read(settings: Settings, params: Any, request: Request) -> Writing:
    """Read the prompts, and write the first token of each answer.

    The head sees the last position alone: no logits of [rows, length, vocab] exist.
    """
    model = settings.model
    layout = packed_layout(request.segment_ids, request.bidirectional)
    rows, length = request.tokens.shape
    cache = model.empty_cache(rows, length + settings.most)
    hidden, cache = model.apply(
        {"params": params}, request.tokens, layout, cache, method=LanguageModel.hidden
    )
    none = jnp.zeros(rows, jnp.int32)
    state = Writing(cache, none, none, jnp.zeros(rows, bool))
    rules = Rules(request.keys, request.most, request.allowed, request.stops)
    return _write_one(settings, params, hidden[:, -1:], state, rules)


def write(
    settings: Settings,
    params: Any,
    state: Writing,
    rules: Rules,
    ended: Bool[Array, " rows"],
) -> tuple[Writing, Int[Array, "rows stretch"]]:
    """Write up to a stretch of further tokens a row, fewer if all rows are done before.

    Args:
        settings: static.
        params: the model's parameters.
        state: where the answers stand.
        rules: what may be written, and how long.
        ended: rows that the host has ended, by a stop string.

    Returns:
        The new state, and the tokens: padding where a row was done.
    """
    state = state.replace(done=state.done | ended)
    loops = {name: partial(loop, settings) for name, loop in (("cpu", _by_layer), ("default", _by_scan))}
    return jax.lax.platform_dependent(params, state, rules, **loops)


def _by_scan(settings: Settings, params, state: Writing, rules: Rules):
    model, layout = settings.model, causal_layout(len(state.token), 1)

    def read_one(token, cache):
        tokens = token[:, None]
        return model.apply({"params": params}, tokens, layout, cache, method=LanguageModel.hidden)

    return _loop(settings, params, state, rules, read_one)


def _by_layer(settings: Settings, params, state: Writing, rules: Rules):
    model, layout = settings.model, causal_layout(len(state.token), 1)
    layers = unstack_layers(model, params, state.cache)

    def read_one(token, caches):
        return unrolled_hidden(model, params, layers._replace(caches=caches), token[:, None], layout)

    state, tokens = _loop(settings, params, state.replace(cache=layers.caches), rules, read_one)
    return state.replace(cache=stack_caches(state.cache)), tokens


def _loop(settings: Settings, params, state: Writing, rules: Rules, read_one):
    """Write until all rows are done, or a stretch is; `read_one` is (token, cache) -> (hidden, cache)."""
    tokens = jnp.full((len(state.token), settings.stretch), PADDING, jnp.int32)

    def more(carried):
        count, state, _ = carried
        return (count < settings.stretch) & ~jnp.all(state.done)

    def step(carried):
        count, state, tokens = carried
        hidden, cache = read_one(state.token, state.cache)
        state = _write_one(settings, params, hidden, state.replace(cache=cache), rules)
        return count + 1, state, jax.lax.dynamic_update_index_in_dim(tokens, state.token, count, axis=1)

    _, state, tokens = jax.lax.while_loop(more, step, (jnp.zeros((), jnp.int32), state, tokens))
    return state, tokens


def _write_one(settings: Settings, params, hidden, state: Writing, rules: Rules) -> Writing:
    """Choose the token that follows `hidden` [rows, 1, features]."""
    logits = settings.model.apply({"params": params}, hidden, method=LanguageModel.logits)[:, 0]
    chosen = choose(logits, rules.allowed, rules.keys, state.written, settings.sampling)
    token = jnp.where(state.done, PADDING, chosen)
    written = state.written + ~state.done
    done = state.done | rules.stops[token] | (written >= rules.most)
    return state.replace(token=token, written=written, done=done)
