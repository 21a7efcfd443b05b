"""Answers equal those of the plain forward pass, in any batch."""

from functools import partial

import jax
import numpy as np
import pytest

from birdie_jax.batch import Batch
from birdie_jax.errors import PromptTooLong
from birdie_jax.generation import GREEDY, STOP_TOKENS, Generator, Prompt, Sampling, cache_bytes, generate
from birdie_jax.generation.device_programs import cast_parameters
from birdie_jax.generation.prompt import bucket_length, pad_prompts
from birdie_jax.models.parameters import parameter_policies
from birdie_jax.models.sample_scores import score_samples
from birdie_jax.models.task_head import TASK_HEAD
from birdie_jax.vocabulary import DONE, END, MIDDLE, NUM_SPECIAL_TOKENS, PADDING, SEPARATOR, START
from tests.generation.conftest import VOCAB, kinds, small_model, some_prompts
from tests.quick_jit import quick_jit

MAX_TOKENS = 12
# tests/models/test_decoding.py compares every model with its forward pass.
KINDS = kinds(
    [
        *(("gated_ssm_plus", True), ("griffin", False), ("transformer", True)),
        *(("mamba", False), ("mamba2", False), ("gated_deltanet", False)),
    ]
)
RANDOM = Sampling(1.0, top_k=50, top_p=0.95, min_p=0.001)


def batch_of(prompt, answer):
    tokens = np.concatenate([prompt.tokens, answer]).astype(np.int32)
    row = np.ones((1, len(tokens)), np.int32)
    bidirectional = (np.arange(len(tokens)) < len(prompt.context))[None]
    positions = np.arange(len(tokens), dtype=np.int32)[None]
    return Batch(tokens[None], row, row > 0, row, positions, bidirectional, row)


def greedy_answers(model, params, prompts, max_tokens):
    """Return greedy answers from a whole pass of the model for every token."""
    apply = quick_jit(model.apply)
    length = max(len(prompt.tokens) for prompt in prompts) + max_tokens
    answers = []
    for prompt in prompts:
        answer = np.empty(0, np.int32)
        while len(answer) < max_tokens:
            batch = batch_of(prompt, np.concatenate([answer, np.full(max_tokens - len(answer), 300)]))
            fill = length - batch.tokens.shape[1]
            batch = Batch(*(np.pad(field, ((0, 0), (0, fill))) for field in batch))
            logits = np.array(apply({"params": params}, batch)[0, len(prompt.tokens) + len(answer) - 1])
            logits[[PADDING, START]] = -np.inf
            answer = np.append(answer, np.argmax(logits)).astype(np.int32)
            if answer[-1] in (END, DONE):
                break
        answers.append(answer[:-1] if answer[-1] in (END, DONE) else answer)
    return answers


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_answers_match_the_forward_pass(kind):
    model, params = small_model(*kind)
    prompts = some_prompts()
    answers = generate(model, params, prompts, max_tokens=MAX_TOKENS)
    for answer, expected in zip(answers, greedy_answers(model, params, prompts, MAX_TOKENS), strict=True):
        np.testing.assert_array_equal(answer.tokens, expected)
    assert len({tuple(answer.tokens) for answer in answers}) >= 5, "the context must matter"


def test_an_answer_does_not_depend_on_its_batch():
    model, params = small_model()
    prompts = some_prompts()
    generator = Generator(model, params, sampling=RANDOM, chunk_tokens=MAX_TOKENS)
    together = all_tokens(generator, prompts, [MAX_TOKENS] * len(prompts), range(len(prompts)))
    for number, prompt in enumerate(prompts):
        (alone,) = all_tokens(generator, [prompt], [MAX_TOKENS], [number])
        np.testing.assert_array_equal(together[number], alone)


def all_tokens(generator, prompts, max_tokens, seeds):
    """Return all tokens of each answer, with the stop token."""
    parts = list(generator.generate_chunks(prompts, max_tokens, seeds))
    return [np.concatenate([part[row] for part in parts]) for row in range(len(prompts))]


def test_neither_chunks_nor_repetition_changes_an_answer():
    model, params = small_model()
    prompts = some_prompts()[:3]
    results = []
    for chunk_tokens in (1, 7):
        generator = Generator(model, params, sampling=Sampling(1.0), chunk_tokens=chunk_tokens)
        results += [all_tokens(generator, prompts, [20, 7, 1], [3, 3, 3]) for _ in range(2)]
    for other in results[1:]:
        for mine, its in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(mine, its)
    assert [len(tokens) for tokens in results[0]] == [20, 7, 1]


def test_random_numbers_depend_on_seed_and_prompt():
    """The logits are nearly equal, so only the random draw decides."""
    model, params = small_model()
    flat = Generator(model, params, sampling=Sampling(1e6), stop_tokens=[])
    one, other = some_prompts()[4:6]
    first, same, seeded, prompted = all_tokens(flat, [one, one, one, other], [20] * 4, [0, 0, 1, 0])
    np.testing.assert_array_equal(first, same)
    assert (first != seeded).mean() > 0.8
    assert (first != prompted).mean() > 0.8


def test_stop_tokens_end_an_answer_and_nothing_forbidden_is_generated():
    model, params = small_model()
    prompts = some_prompts()
    flat = Sampling(1e6)
    answers = generate(model, params, prompts, max_tokens=60, sampling=flat, stop_tokens=range(256, 320))
    assert {answer.stop_token is not None for answer in answers} == {True}
    for answer in answers:
        assert 256 <= answer.stop_token < 320
        assert not ((answer.tokens >= 256) & (answer.tokens < 320)).any()
    (one,) = generate(
        model, params, prompts[:1], max_tokens=400, sampling=flat, stop_tokens=[], num_tokens=300
    )
    assert len(one.tokens) == 400
    assert set(one.tokens) <= set(range(2, 300))
    assert len(set(one.tokens)) > 150


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM, Sampling(1e6)], ids=["greedy", "filtered", "flat"])
def test_an_answer_only_contains_the_special_tokens_of_its_format(sampling):
    """Each prompt of a batch has its own; every format accepts the caller's stop tokens."""
    model, params = small_model()
    prompts = some_prompts()
    forms = [(), (END,), (SEPARATOR, DONE), None]
    formed = [prompt._replace(special_tokens=form) for prompt in prompts for form in forms]
    count = len(formed)
    for stop_tokens, more in ((STOP_TOKENS, set()), ((*STOP_TOKENS, MIDDLE), {MIDDLE})):
        generator = Generator(model, params, sampling=sampling, stop_tokens=stop_tokens)
        answers = all_tokens(generator, formed, [60] * count, range(count))
        held = [set(tokens[tokens < NUM_SPECIAL_TOKENS].tolist()) for tokens in answers]
        for special, form in zip(held, forms * len(prompts), strict=True):
            assert form is None or special <= set(form) | more
        assert set().union(*held[3::4]) - {END, DONE, SEPARATOR, MIDDLE}, "the model has to want others"


def test_an_ended_row_stops_generating():
    model, params = small_model()
    generator = Generator(model, params, stop_tokens=[], chunk_tokens=4)
    ended = np.zeros(2, bool)
    lengths = np.zeros(2, int)
    for number, chunk in enumerate(generator.generate_chunks(some_prompts()[:2], [30] * 2, [0] * 2, ended)):
        assert not (ended[0] and len(chunk[0]))
        lengths += [len(tokens) for tokens in chunk]
        if number == 2:
            ended[0] = True
    assert list(lengths) == [9, 30]


def test_prompts_of_one_bucket_share_compiled_functions():
    model, params = small_model()
    generator = Generator(model, params)
    spent = []
    for length in (1, 7, 30, 31):
        list(
            generator.generate_chunks(
                [Prompt(np.full(length, 300, np.int32), np.empty(0, np.int32))], [3], [0]
            )
        )
        spent.append(generator.times.compile_seconds)
    assert spent[0] > 0
    assert set(spent) == {spent[0]}
    assert generator.times.prompt_tokens == 1 + 7 + 30 + 31 + 4
    assert generator.times.decoded_tokens == 4 * 2


def test_cache_bytes_match_the_cache():
    model, _ = small_model()
    # Two layers: eight forward channels, and three inputs of the convolution, of four bytes each.
    assert cache_bytes(model, 1) == cache_bytes(model, 1 << 20) == 2 * (8 + 3 * 16) * 4


def test_buckets():
    sizes = sorted({bucket_length(length) for length in range(1, 2000)})
    assert sizes == [32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048]
    assert all(bucket_length(length) >= length for length in range(1, 2000))
    assert all(bucket_length(length) <= 1.5 * length for length in range(32, 2000))
    assert bucket_length(65_537) == 98_304


def test_padding_is_to_the_left():
    prompt = Prompt(np.array([300, 301], np.int32), np.array([302], np.int32))
    laid_out = pad_prompts([prompt], 2)
    assert laid_out.tokens[0].tolist() == [0] * 28 + [300, 301, START, 302]
    assert laid_out.segment_ids[0].tolist() == [0] * 28 + [1] * 4
    assert laid_out.bidirectional[0].tolist() == [False] * 28 + [True, True, False, False]
    assert laid_out.tokens[1].tolist() == [0] * 31 + [START]


def test_an_invalid_stop_token_is_refused():
    model, params = small_model()
    with pytest.raises(ValueError, match=r"^stop token: found 384; allowed: 0\.\.383$"):
        Generator(model, params, stop_tokens=[VOCAB])


def test_a_prompt_longer_than_the_limit_is_refused():
    model, params = small_model()
    generator = Generator(model, params, max_length=20)
    prompts = some_prompts()
    assert len(list(generator.generate_chunks(prompts[4:5], [10], [0]))) > 0
    with pytest.raises(PromptTooLong) as error:
        next(generator.generate_chunks([prompts[0], prompts[4]], [10, 11], [0, 0]))
    assert str(error.value) == (
        "prompt 2: has 10 tokens, and the answer up to 11; allowed: 20 together, the longest rows that "
        "gated_ssm_plus has learned"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gated_ssm_plus", "griffin", "mamba", "gated_deltanet"])
def test_cast_kernels_change_no_bit(name):
    model, params = small_model(name, dtype="bfloat16")
    converted = cast_parameters(params, parameter_policies(model))
    types = {leaf.dtype.name for leaf in jax.tree.leaves(converted)}
    assert types == {"bfloat16", "float32"}
    prompt = some_prompts()[6]
    batch = batch_of(prompt, np.arange(300, 310))
    apply = jax.jit(model.apply)
    np.testing.assert_array_equal(apply({"params": params}, batch), apply({"params": converted}, batch))


@pytest.mark.slow
def test_the_parameters_of_a_head_keep_their_type():
    """A head always computes in float32."""
    head = {"head": "classification", "head_name": "label", "head_outputs": 2}
    model, params = small_model("bigs", dtype="bfloat16", **head)
    converted = cast_parameters(params, parameter_policies(model))
    types = {leaf.dtype.name for leaf in jax.tree.leaves(converted["blocks"])}
    assert types == {"bfloat16", "float32"}
    assert {leaf.dtype.name for leaf in jax.tree.leaves(converted[TASK_HEAD])} == {"float32"}
    batch = batch_of(some_prompts()[6], np.arange(300, 310))
    score = jax.jit(partial(score_samples, model))
    np.testing.assert_array_equal(score(params, batch), score(converted, batch))
