"""The tokens of a prompt that pruning may drop: its context, or its text if it has no context."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.generation import GREEDY, Prompt
from birdie_jax.generation.decoding import DecodeRules, DecodeSettings, PromptBatch, prefill
from birdie_jax.generation.prompt import max_protected, pad_prompts, prunable_tokens
from birdie_jax.models.layer_stacks import Block
from birdie_jax.models.layout import packed_layout
from birdie_jax.pruning import PruningSettings
from birdie_jax.pruning.pruned_prefill import prompt_anchors, protected_tokens
from birdie_jax.vocabulary import END, MIDDLE, MIDDLE_PREFIX, MIDDLE_SUFFIX
from tests.generation.conftest import VOCAB, small_model
from tests.quick_jit import quick_jit

NOTHING = np.empty(0, np.int32)


def text(*tokens):
    return np.array(tokens, np.int32)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        pytest.param(Prompt(text(24, 300, 301), NOTHING), [1, 1, 1, 0], id="prefix_lm"),
        pytest.param(Prompt(text(24, 300), text(301, 302)), [1, 1, 0, 0, 0], id="begun answer"),
        pytest.param(Prompt(NOTHING, text(300, 301, 302)), [0, 1, 1, 1], id="causal_lm"),
        pytest.param(
            Prompt(NOTHING, text(MIDDLE_PREFIX, 300, MIDDLE_SUFFIX, 301, MIDDLE)),
            [0, 0, 1, 0, 1, 0],
            id="fill_in_the_middle",
        ),
        pytest.param(Prompt(NOTHING, NOTHING), [0], id="nothing"),
    ],
)
def test_prunable_tokens(prompt, expected):
    batch = pad_prompts([prompt], 2)
    segment_ids, bidirectional = jnp.asarray(batch.segment_ids), jnp.asarray(batch.bidirectional)
    found = prunable_tokens(jnp.asarray(batch.tokens), segment_ids, bidirectional)
    np.testing.assert_array_equal(found[0, -len(expected) :], np.array(expected, bool))
    assert not found[0, : -len(expected)].any() and not found[1].any()
    stays = protected_tokens(segment_ids, found, prompt_anchors(segment_ids), keep_first=True)
    assert 1 <= stays[0].sum() <= max_protected(prompt)


def test_a_causal_prompt_keeps_its_start_and_last_token():
    """The second layer's state equals its block on the start token and the last token of the text."""
    model, params = small_model("gated_ssm", bidirectional=False)
    prompt = Prompt(NOTHING, np.arange(300, 331, dtype=np.int32))
    batch = PromptBatch(*map(jnp.asarray, pad_prompts([prompt], 1)))
    pruning = PruningSettings(keep=0.25, policy="recency", schedule="constant")
    settings = DecodeSettings(model, GREEDY, 1, 0, pruning, max_protected(prompt))
    rules = DecodeRules(
        jax.random.key(0)[None],
        jnp.ones(1, jnp.int32),
        jnp.ones((1, VOCAB), bool),
        jnp.arange(VOCAB) == END,
    )
    state = quick_jit(lambda params: prefill(settings, params, batch, rules))(params)

    kept = np.array([0, *range(25, 32)])

    @quick_jit
    def expected(params):
        def causal(length):
            return packed_layout(jnp.ones((1, length), jnp.int32), jnp.zeros((1, length), bool))

        def layer(number, x):
            of_layer, empty = (
                jax.tree.map(lambda leaf: leaf[number], tree)
                for tree in (params["blocks"], model.empty_cache(1))
            )
            return Block(model.config).apply({"params": of_layer}, x, empty, causal(x.shape[1]))

        tokens = jnp.asarray(prompt.tokens)[None]
        x = model.apply({"params": params}, tokens, causal(tokens.shape[1]), method="embed")
        x, _ = layer(0, x)
        return layer(1, x[:, kept])[1]

    for found, wanted in zip(jax.tree.leaves(state.cache), jax.tree.leaves(expected(params)), strict=True):
        np.testing.assert_allclose(found[1], wanted, rtol=1e-4, atol=1e-5)
