"""Answers from a saved state equal those of a forward pass with the reverse half cut at the state."""

import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.errors import SavedStateError
from birdie_jax.generation import Generator, Prompt, Sampling
from birdie_jax.models import LanguageModel
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.griffin import GriffinConfig
from birdie_jax.models.layout import packed_layout
from birdie_jax.vocabulary import PADDING, START
from tests.generation.conftest import VOCAB, kinds, small_model
from tests.generation.test_generator import RANDOM, all_tokens
from tests.quick_jit import quick_jit

NONE = np.empty(0, np.int32)
RECURRENT = kinds(
    [
        *(("gated_ssm_plus", True), ("gated_ssm_plus", False), ("hawk", True)),
        *(("mamba", True), ("mamba2", False), ("gated_deltanet", True)),
    ]
)
MAX_TOKENS = 6
NUMBERS = np.random.default_rng(5)
CONTEXT, *QUESTIONS = (NUMBERS.integers(256, VOCAB, count).astype(np.int32) for count in (40, 1, 5, 37))


def next_token_logits(kind, rows, cut):
    """Return the logits at every position of rows [context, START, target], and the place of START.

    In the reverse direction nothing enters the first `cut` tokens of the context from later tokens.
    """
    model, params = small_model(*kind)
    length = max(map(len, rows))
    tokens = np.stack([np.pad(row, (0, length - len(row)), constant_values=PADDING) for row in rows])
    segments = np.stack([np.arange(length) < len(row) for row in rows]).astype(np.int32)
    starts = np.array([list(row).index(START) for row in rows])[:, None]
    layout = packed_layout(jnp.asarray(segments), jnp.arange(length)[None] < starts)
    layout = layout._replace(reverse_reset=layout.reverse_reset.at[:, cut - 1].set(True))

    @quick_jit
    def scores(tokens, layout):
        hidden, _ = model.apply({"params": params}, tokens, layout, method=LanguageModel.hidden)
        return model.apply({"params": params}, hidden, method=LanguageModel.logits)

    logits = np.array(scores(jnp.asarray(tokens), layout))
    logits[..., [PADDING, START]] = -np.inf
    return logits, starts[:, 0]


@pytest.mark.parametrize("kind", RECURRENT)
def test_answers_from_a_state_match_a_split_forward_pass(kind):
    """For a causal model the cut has no effect: this is the forward pass of the whole prompt."""
    generator = Generator(*small_model(*kind), stop_tokens=[])
    state = generator.read_state(Prompt(CONTEXT, NONE))
    assert (state.tokens, state.context_tokens, state.started) == (40, 40, False)
    prompts = [Prompt(question, NONE) for question in QUESTIONS]
    chunks = generator.generate_chunks(
        prompts, [MAX_TOKENS] * len(prompts), [0] * len(prompts), states=[state] * len(prompts)
    )
    answers = [np.concatenate(parts) for parts in zip(*chunks, strict=True)]
    rows = [
        np.concatenate([CONTEXT, question, [START], answer])
        for question, answer in zip(QUESTIONS, answers, strict=True)
    ]
    logits, starts = next_token_logits(kind, rows, cut=len(CONTEXT))
    found = np.argmax(logits, axis=-1)
    for row, answer in enumerate(answers):
        np.testing.assert_array_equal(answer, found[row, starts[row] : starts[row] + MAX_TOKENS])
    assert len({tuple(answer) for answer in answers}) > 1, "the question must matter"
    uncut, _ = next_token_logits(kind, rows, cut=0)
    possible = np.isfinite(logits)
    difference = np.abs(uncut[possible] - logits[possible]).max()
    _, bidirectional = kind
    assert (difference > 1e-3) if bidirectional else (difference == 0), "the cut is one of the reverse half"


@pytest.mark.parametrize(
    "chunk_tokens", [2, pytest.param(7, marks=pytest.mark.slow), pytest.param(None, marks=pytest.mark.slow)]
)
def test_a_causal_read_in_chunks_gives_the_same_state(chunk_tokens):
    """Two tokens are fewer than the convolution keeps."""
    model, params = small_model("gated_ssm_plus", False)
    generator = Generator(model, params)
    state = generator.read_state(Prompt(CONTEXT, NONE), chunk_tokens)
    whole = packed_layout(jnp.ones((1, 40), jnp.int32), jnp.ones((1, 40), bool))
    _, cache = quick_jit(model.apply, static_argnames="method")(
        {"params": params}, CONTEXT[None], whole, model.empty_cache(1), method="hidden"
    )
    np.testing.assert_allclose(state.cache.state, cache.state, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state.cache.conv_tail, cache.conv_tail, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("started", [False, True], ids=["context", "target"])
def test_sampled_answers_from_a_state_match_the_whole_prompt(started):
    """The random numbers depend on the prompt, not on the place of the cut."""
    generator = Generator(*small_model("gated_ssm_plus", False), sampling=RANDOM)

    def prompt(*parts):
        tokens = np.concatenate(parts)
        return Prompt(NONE, tokens) if started else Prompt(tokens, NONE)

    whole = [prompt(CONTEXT, question) for question in QUESTIONS]
    state = generator.read_state(prompt(CONTEXT))
    assert (state.tokens, state.started) == (41, True) if started else (40, False)
    limits, seeds = [MAX_TOKENS] * 3, [3, 4, 5]
    expected = all_tokens(generator, whole, limits, seeds)
    chunks = generator.generate_chunks(
        [prompt(question) for question in QUESTIONS], limits, seeds, states=[state] * 3
    )
    for answer, parts in zip(expected, zip(*chunks, strict=True), strict=True):
        np.testing.assert_array_equal(np.concatenate(parts), answer)


@pytest.mark.slow
def test_each_prompt_of_a_batch_continues_its_own_state():
    generator = Generator(*small_model(), sampling=Sampling(1.0))
    states = [generator.read_state(Prompt(part, NONE)) for part in (CONTEXT, CONTEXT[:9])]
    prompt = Prompt(QUESTIONS[1], NONE)
    together = generator.generate_chunks([prompt] * 2, [MAX_TOKENS] * 2, [1] * 2, states=states)
    together = [np.concatenate(parts) for parts in zip(*together, strict=True)]
    for state, expected in zip(states, together, strict=True):
        (alone,) = zip(*generator.generate_chunks([prompt], [MAX_TOKENS], [1], states=[state]), strict=True)
        np.testing.assert_array_equal(np.concatenate(alone), expected)
    assert together[0].tolist() != together[1].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer", "griffin"])
def test_attention_with_a_window_has_a_state_of_constant_size(name):
    """Causal attention over five tokens: reading in parts gives the answers of the whole prompt."""
    sections = (AttentionConfig(heads=4, window=5), GriffinConfig("attention,recurrent"))
    model, params = small_model(name, False, sections=sections)
    generator = Generator(model, params, sampling=RANDOM)
    questions = QUESTIONS[:2]
    whole = [Prompt(np.concatenate([CONTEXT, question]), NONE) for question in questions]
    expected = all_tokens(generator, whole, [MAX_TOKENS] * 2, [3, 4])
    state = generator.read_state(Prompt(CONTEXT, NONE), 9)
    windows = state.cache if name == "transformer" else state.cache["periods"]["block_0"]
    assert windows.keys.shape[1:] == (1, 5, 4, 4)
    chunks = generator.generate_chunks(
        [Prompt(question, NONE) for question in questions], [MAX_TOKENS] * 2, [3, 4], states=[state] * 2
    )
    for answer, parts in zip(expected, zip(*chunks, strict=True), strict=True):
        np.testing.assert_array_equal(np.concatenate(parts), answer)


def test_invalid_prompts_of_states_are_refused():
    generator = Generator(*small_model())
    question = Prompt(QUESTIONS[1], NONE)

    def refusal(function, *arguments, **options):
        with pytest.raises(SavedStateError) as error:
            function(*arguments, **options)
        return str(error.value)

    assert refusal(generator.read_state, Prompt(NONE, NONE)) == (
        "prompt of a state: found 0 tokens; allowed: at least 1"
    )
    assert refusal(generator.read_state, question, 1024) == (
        "chunks of 1,024 tokens: gated_ssm_plus reads a context in both directions, all of it at once; "
        "allowed: no chunks, or a model with model.bidirectional=False"
    )
    # Two layers with a key and a value of 16 numbers, and a mark, per token.
    assert refusal(Generator(*small_model("transformer")).read_state, question) == (
        "transformer: its state grows by 258 bytes with each token, and cannot be saved; allowed: a "
        "recurrent model, whose state has a constant size"
    )
    started = generator.read_state(Prompt(NONE, CONTEXT))
    assert refusal(lambda: next(generator.generate_chunks([question], [1], [0], states=[started]))) == (
        "prompt after a state that has the start token: found 5 tokens of context and 0 of a target "
        "prefix; allowed: 0, and at least 1"
    )
