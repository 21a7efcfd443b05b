"""Task models: batches and processes do not change answers."""

import dataclasses
import json
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from birdie_jax.generation import Generator, make_prompt
from birdie_jax.models import build_model
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.mamba2 import Mamba2Config
from birdie_jax.objectives import Arm, make_objective
from birdie_jax.pruning import PruningSettings
from birdie_jax.tasks import LENGTH_GROUP, Share, TaskModel
from birdie_jax.tasks.instructions import Instructions
from birdie_jax.tasks.jsonl import JsonlTask
from birdie_jax.tasks.task_model import max_length_of
from tests.tasks.tiny_task_model import tiny_task_model
from tests.tasks.toy_tasks import Lengths, OneChoice, Picks
from tests.trained_workdirs import micro_config, random_params, small_tokenizer

ARM = Arm("prefix_lm", make_objective("prefix_lm"), "prefix_lm")


def make_parts(**model):
    config = micro_config(**model)
    tokenizer = small_tokenizer()
    params = jax.tree.map(jnp.asarray, random_params(config, tokenizer.vocab_size, 0))
    return build_model(config.model, tokenizer.vocab_size), params, tokenizer


@pytest.fixture(scope="module")
def parts():
    return make_parts()


@pytest.mark.parametrize(("window", "limit"), [(0, 64), (64, None), (65, 64)])
@pytest.mark.parametrize("name", ["transformer", "griffin"])
def test_attention_limits_rows_unless_its_window_is_short(name, window, limit):
    sections = (AttentionConfig(heads=2, window=window),)
    config = micro_config(name=name, layers=3, sections=sections)
    config = dataclasses.replace(config, batching=dataclasses.replace(config.batching, length=64))
    assert max_length_of(build_model(config.model, 512), config) == limit


@pytest.mark.parametrize(
    "name",
    ["gated_ssm_plus", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mamba2", "transformer"))],
)
def test_answers_match_generate(parts, name):
    if name != "gated_ssm_plus":
        sections = (AttentionConfig(heads=2), Mamba2Config(head_features=4, state_size=4))
        parts = make_parts(name=name, sections=sections)
    model, params, tokenizer = parts
    reported = []
    task_model = TaskModel(*parts, ARM, rows=4)
    result = Lengths().measure(task_model, lambda *counts: reported.append(counts))
    assert reported == [(4, 8), (8, 8)]
    assert result.refused[0] == "lengths.txt line 3: found no question"
    assert result.refused[1].startswith("question q4: the prompt is empty")
    assert len(result.refused) == 2
    assert [answer.question.name for answer in result.answers] == [
        f"q{n}" for n in (0, 1, 2, 3, 5, 6, 7, 8)
    ]
    generator = Generator(model, params, num_tokens=256 + tokenizer.num_pieces)
    for answer in result.answers:
        prompt = make_prompt(answer.question.prompt, ARM.objective, tokenizer)
        chunks = generator.generate_chunks([prompt], [6], [0])
        tokens = [token for (chunk,) in chunks for token in chunk if token not in generator.stop_tokens]
        assert answer.answer == tokenizer.decode(np.array(tokens, np.int32))
        assert answer.metrics["characters"] == len(answer.answer)
        assert answer.question.groups[LENGTH_GROUP] == len(prompt.tokens)
        assert answer.question.groups["size"] == len(answer.question.prompt)
    assert len({answer.answer for answer in result.answers}) > 1


@pytest.mark.slow
def test_answers_to_pruned_prompts_match_the_generator():
    config, tokenizer = micro_config(layers=2), small_tokenizer()
    model = build_model(config.model, tokenizer.vocab_size)
    params = jax.tree.map(jnp.asarray, random_params(config, tokenizer.vocab_size, 0))
    pruning = PruningSettings(keep=0.1, policy="recency", schedule="constant")
    letters = np.random.default_rng(0).choice(list("abcdefgh "), (6, 60))
    prompts = [make_prompt("".join(text), ARM.objective, tokenizer) for text in letters]
    pruned, dense = (
        TaskModel(model, params, tokenizer, ARM, pruning=one).generate_tokens(prompts, [2] * 6)
        for one in (pruning, None)
    )
    generator = Generator(model, params, num_tokens=256 + tokenizer.num_pieces, pruning=pruning)
    alone = [()] * 6
    for chunk in generator.generate_chunks(prompts, [2] * 6, [0] * 6):
        alone = [(*found, *new.tolist()) for found, new in zip(alone, chunk, strict=True)]
    assert pruned == alone
    assert pruned != dense


def test_prompts_over_the_limit_are_named(parts):
    result = Lengths().measure(TaskModel(*parts, ARM, max_length=60))
    assert {answer.question.name for answer in result.answers} == {"q0", "q1", "q3", "q6", "q7"} - {
        line.split()[1].rstrip(":") for line in result.refused
    }
    assert any("question q5: has " in line and "allowed: 60 together" in line for line in result.refused)


def test_choices_and_responses_over_the_limit_are_named(tmp_path):
    prompt, answers = "abc de fgh", ["ab", "cdefgh mno"]
    path = tmp_path / "records.jsonl"
    path.write_text(
        json.dumps({"prompt": prompt, "choices": answers, "label": 0, "reference": answers[1]}) + "\n"
    )
    responses = tmp_path / "responses.jsonl"
    responses.write_text(json.dumps({"prompt": prompt, "response": answers[1]}) + "\n")
    tokenizer = small_tokenizer()
    read = len(make_prompt(prompt, ARM.objective, tokenizer).tokens)
    longest = len(tokenizer.encode(answers[1]))
    for task in (
        JsonlTask(path=str(path), metrics=("accuracy",)),
        JsonlTask(path=str(path), metrics=("f1", "log_likelihood"), max_tokens=1),
        Instructions(path=str(responses)),
        OneChoice(prompt=prompt, choices=tuple(answers)),
    ):
        result = task.measure(tiny_task_model(max_length=read + longest - 1))
        assert not result.answers
        (line,) = result.refused
        assert f"has {read} tokens, and the answer up to {longest}; allowed: {read + longest - 1}" in line
    assert len(task.measure(tiny_task_model(max_length=read + longest)).answers) == 1


@pytest.mark.slow
def test_several_processes_return_the_result_of_one(parts):
    """Three processes answer a part each, and all receive every answer."""

    class TwoLengths(Lengths):
        # Few padded lengths, because every process compiles its own programs for each.
        sizes = (20, 30, 41, 22, 0, 48, 33, 17, 25)

    tasks = (TwoLengths(), Picks())
    whole_model = TaskModel(*parts, ARM, rows=2)
    alone = [task.measure(whole_model) for task in tasks]
    meeting, texts, results = threading.Barrier(3), [""] * 3, [[]] * 3
    # Run one at a time. Otherwise they compile the same program at the same time.
    turn = threading.Lock()

    def gather(index, text):
        texts[index] = text
        turn.release()
        meeting.wait(60)
        found = list(texts)
        meeting.wait(60)
        turn.acquire()
        return found

    def process(index):
        share = Share(index, 3, lambda text: gather(index, text))
        with turn:
            model = TaskModel(*parts, ARM, rows=1, share=share)
            results[index] = [task.measure(model) for task in tasks]

    threads = [threading.Thread(target=process, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for found in results:
        for one, other in zip(found, alone, strict=True):
            assert [answer.answer for answer in one.answers] == [answer.answer for answer in other.answers]
            assert one.refused == other.refused
    assert len(json.loads(texts[0])) < len(alone[1].answers)


def test_the_choice_has_the_highest_likelihood_per_token(parts):
    model, params, tokenizer = parts
    result = Picks().measure(TaskModel(*parts, ARM))
    forward = jax.jit(model.apply)
    for answer in result.answers:
        prompt = make_prompt(answer.question.prompt, ARM.objective, tokenizer)
        sums, counts = [], []
        for choice in answer.question.choices:
            tokens = tokenizer.encode(choice)
            sums.append(whole_log_likelihood(forward, params, prompt, tokens))
            counts.append(len(tokens))
        assert answer.details["tokens"] == counts
        assert answer.details["log_likelihoods"] == pytest.approx(sums, rel=1e-4)
        label = answer.question.choices.index(answer.question.references[0])
        best = int(np.argmax(np.array(sums) / counts))
        assert answer.answer == answer.question.choices[best]
        assert answer.metrics == {
            "accuracy": float(best == label),
            "accuracy_of_sums": float(int(np.argmax(sums)) == label),
        }


def whole_log_likelihood(forward, params, prompt, tokens, length=64):
    """Return the log-likelihood by one forward pass over the padded example."""
    from birdie_jax.batching.packing import layout_example
    from birdie_jax.objectives import Example

    batch = layout_example(Example(prompt.context, np.concatenate([prompt.target_prefix, tokens])))
    end = len(batch.tokens)
    batch = jax.tree.map(lambda field: np.pad(field, (0, length - end))[None], batch)
    logits = scipy.special.log_softmax(forward({"params": params}, batch)[0, end - len(tokens) : end], -1)
    return float(logits[np.arange(len(tokens)), tokens].sum())


@pytest.mark.slow
def test_replaced_parameters_change_the_answers(parts):
    model, params, tokenizer = parts
    task_model = TaskModel(*parts, ARM)
    before = Lengths().measure(task_model)
    changed = jax.tree.map(lambda leaf: leaf[..., ::-1], params)
    task_model.replace_params(changed)
    after = Lengths().measure(task_model)
    fresh = Lengths().measure(TaskModel(model, changed, tokenizer, ARM))
    assert [answer.answer for answer in after.answers] == [answer.answer for answer in fresh.answers]
    assert [answer.answer for answer in after.answers] != [answer.answer for answer in before.answers]
    assert dataclasses.replace(after, answers=()) == dataclasses.replace(before, answers=())
