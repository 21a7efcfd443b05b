"""Models without special tokens: prompts without a start token, and ids without a probability."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.config import default_config, parse_config
from birdie_jax.errors import ConfigError
from birdie_jax.generation import Generator, Prompt, generate
from birdie_jax.generation.likelihood import Scorer
from birdie_jax.generation.prompt import prompt_as_read
from birdie_jax.models.layout import causal_layout
from birdie_jax.models.mamba import MambaConfig
from birdie_jax.vocabulary import START
from tests.generation.conftest import VOCAB, small_model
from tests.quick_jit import quick_jit

END_TOKEN, LAST = 256, 299
NOTHING = np.empty(0, np.int32)
FIELDS = {
    "start_token": False,
    "end_token": END_TOKEN,
    "min_predicted_id": 256,
    "max_predicted_id": LAST,
    "sections": (MambaConfig(state_size=2),),
}


@pytest.fixture(scope="module")
def foreign():
    return small_model("mamba", bidirectional=False, **FIELDS)


@pytest.fixture(scope="module")
def log_probabilities(foreign):
    """Return tokens [length] -> log-softmax over the predicted ids alone, [length, ids]."""
    model, params = foreign

    @quick_jit
    def scores(tokens):
        hidden, _ = model.apply(
            {"params": params}, tokens[None], causal_layout(1, len(tokens)), method="hidden"
        )
        table = model.apply({"params": params}, method="head_table")
        return jax.nn.log_softmax(hidden[0] @ table[END_TOKEN : LAST + 1].T)

    return lambda tokens: np.asarray(scores(jnp.asarray(tokens)))


def test_a_prompt_is_only_its_text(foreign):
    model, _ = foreign
    context, prefix = np.array([270, 271], np.int32), np.array([272], np.int32)
    read = prompt_as_read(Prompt(context, prefix), model.config)
    np.testing.assert_array_equal(read.tokens, [270, 271, 272])
    np.testing.assert_array_equal(read.context, [270, 271, 272])
    np.testing.assert_array_equal(
        prompt_as_read(Prompt(NOTHING, NOTHING), model.config).tokens, [END_TOKEN]
    )
    usual, _ = small_model("mamba", bidirectional=False)
    kept = prompt_as_read(Prompt(context, prefix), usual.config)
    np.testing.assert_array_equal(kept.tokens, [270, 271, START, 272])


def test_greedy_answers_are_the_most_probable_ids_of_text(foreign, log_probabilities):
    model, params = foreign
    text = np.array([270, 271, 272, 290], np.int32)
    (answer,) = generate(model, params, [Prompt(NOTHING, text)], max_tokens=6)
    tokens = text
    for token in [*answer.tokens, *([] if answer.stop_token is None else [answer.stop_token])]:
        assert token == END_TOKEN + log_probabilities(tokens)[-1].argmax()
        tokens = np.append(tokens, token).astype(np.int32)
    assert Generator(model, params).stop_tokens[-1] == END_TOKEN


def test_a_text_is_scored_after_the_end_token(foreign, log_probabilities):
    model, params = foreign
    text = np.array([270, 271, 272, 290, 299], np.int32)
    (losses,) = Scorer(Generator(model, params)).text_losses([text])
    expected = log_probabilities(np.array([END_TOKEN, *text[:-1]], np.int32))
    np.testing.assert_allclose(losses, -expected[np.arange(5), text - END_TOKEN], rtol=1e-4, atol=1e-5)


def test_a_continuation_is_scored_after_its_text(foreign, log_probabilities):
    model, params = foreign
    text, continuation = np.array([270, 271], np.int32), np.array([280, 281], np.int32)
    ((found,),) = Scorer(Generator(model, params)).score([Prompt(NOTHING, text)], [[continuation]])
    expected = log_probabilities(np.array([270, 271, 280], np.int32))
    wanted = expected[1, 280 - END_TOKEN] + expected[2, 281 - END_TOKEN]
    np.testing.assert_allclose(found.log_likelihood, wanted, rtol=1e-4)


def test_excluded_ids_have_no_probability(foreign):
    model, params = foreign
    bias = np.asarray(model.apply({"params": params}, method="head_bias"))
    assert bias.shape == (VOCAB,)
    assert (bias[END_TOKEN : LAST + 1] == 0).all()
    assert (np.exp(bias[:END_TOKEN]) == 0).all()
    assert (np.exp(bias[LAST + 1 :]) == 0).all()
    usual, of_usual = small_model("mamba", bidirectional=False)
    assert usual.apply({"params": of_usual}, method="head_bias") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"start_token": False, "end_token": 256},
            "config.model.start_token: found False; allowed: true, or a causal model",
        ),
        (
            {"start_token": False, "bidirectional": False, "end_token": 12},
            "config.model.end_token: found 12; allowed: an id of text",
        ),
        (
            {"min_predicted_id": 256, "max_predicted_id": 255},
            "config.model.max_predicted_id: found 255; allowed: at least model.min_predicted_id = 256",
        ),
        ({"residual_dtype": "float16"}, "config.model.residual_dtype: found 'float16'"),
        ({"embedding_scale": -1.0}, "config.model.embedding_scale: found -1.0"),
    ],
)
def test_refusals(changes, message):
    config = default_config()
    config.model.update(changes)
    with pytest.raises(ConfigError, match=f"^{message}"):
        parse_config(config)


@pytest.mark.slow
def test_the_residual_stream_keeps_its_own_type_and_scale():
    model, params = small_model(
        "mamba", bidirectional=False, embedding_scale=1.0, residual_dtype="float32", dtype="bfloat16"
    )
    tokens = jnp.asarray([[270, 271]])
    embedded = model.apply({"params": params}, tokens, causal_layout(1, 2), method="embed")
    assert embedded.dtype == jnp.float32
    np.testing.assert_array_equal(embedded, params["embedding"][tokens])
    hidden, _ = model.apply({"params": params}, tokens, causal_layout(1, 2), method="hidden")
    assert hidden.dtype == jnp.bfloat16
    usual, _ = small_model("mamba", bidirectional=False, dtype="bfloat16")
    embedded = usual.apply({"params": params}, tokens, causal_layout(1, 2), method="embed")
    assert embedded.dtype == jnp.bfloat16
    np.testing.assert_allclose(embedded, 4 * params["embedding"][tokens], rtol=1e-2)
