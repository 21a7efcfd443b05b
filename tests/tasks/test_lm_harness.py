"""The adapter for the harness returns the results of a full forward pass."""

import dataclasses
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.batching.packing import layout_example
from birdie_jax.errors import ConfigError
from birdie_jax.generation import Prompt, generate, make_prompt
from birdie_jax.interop import ExportedModel, write_transformers
from birdie_jax.models import build_model
from birdie_jax.objectives import Arm, Example, make_objective
from birdie_jax.tasks import TaskModel, task_of_flag
from birdie_jax.trained_model import prompt_form
from birdie_jax.vocabulary import START
from tests.docs.pages import REPOSITORY, fenced_blocks
from tests.lm_eval_packages import OFFLINE, lm_eval_packages
from tests.pages.page_commands import commands_of_page, commands_of_repository
from tests.quick_jit import QUICK_FLAGS, quick_jit
from tests.tasks.toy_tasks import letters
from tests.trained_workdirs import micro_config, random_params, small_tokenizer, write_workdir

TASK = """
task: letters_{name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/choice.jsonl}}}}
test_split: test
{form}
"""
FORMS = {
    "choice": """
output_type: multiple_choice
doc_to_text: "{{question}} is"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "written": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[label]}}"
generation_kwargs: {until: ["e"], max_gen_toks: 6, do_sample: false}
metric_list: [{metric: exact_match}]
""",
    "rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: byte_perplexity}]
""",
}
DOCUMENTS = [
    {
        "question": letters(number, 9 + 5 * number),
        "choices": [letters(number + place, 2 + 3 * place) for place in range(4)],
        "label": number % 4,
    }
    for number in range(6)
]
FORMATS = ("prefix_lm", "causal_lm")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def task_folder(tmp_path_factory):
    """Write a folder of tasks, and make the harness importable."""
    folder = tmp_path_factory.mktemp("harness")
    (folder / "choice.jsonl").write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    for name, form in FORMS.items():
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, folder=folder, form=form))
    with lm_eval_packages(str(folder / "hf")):
        yield folder


@pytest.fixture(scope="module")
def parts():
    config = micro_config()
    tokenizer = small_tokenizer()
    params = jax.tree.map(jnp.asarray, random_params(config, tokenizer.vocab_size, 0))
    return build_model(config.model, tokenizer.vocab_size), params, tokenizer


def arm(name):
    return Arm(name, make_objective(name), name)


@pytest.fixture(scope="module")
def models(parts):
    return {name: TaskModel(*parts, arm(name)) for name in FORMATS}


@pytest.fixture(scope="module")
def by_hand(parts):
    """Return a function (prompt, tokens) -> log-probability of each token, by a full forward pass."""
    model, params, _ = parts
    apply = quick_jit(model.apply)

    def run(prompt, tokens):
        example = Example(prompt.context, np.concatenate([prompt.target_prefix, tokens]).astype(np.int32))
        batch = layout_example(example, start_id=START)
        fill = 96 - batch.tokens.shape[-1]
        row = jax.tree.map(lambda field: np.pad(field, (0, fill))[None], batch)
        first = len(prompt.context) + len(prompt.target_prefix)
        found = jax.nn.log_softmax(apply({"params": params}, row)[0])[first : first + len(tokens)]
        return np.asarray(found)[np.arange(len(tokens)), tokens]

    return run


def evaluated(folder, model, *tasks):
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return simple_evaluate(model=model, tasks=list(tasks), task_manager=manager, bootstrap_iters=0)


def expected_tokens(name, tokenizer, context, continuation):
    """Return the prompt and the scored tokens in the format of an objective."""
    nothing = np.empty(0, np.int32)
    if name == "prefix_lm":
        marker = make_objective(name).marker
        markers = nothing if marker is None else np.array([marker], np.int32)
        return Prompt(np.concatenate([markers, tokenizer.encode(context)]), nothing), tokenizer.encode(
            continuation
        )
    own = tokenizer.encode(context)
    return Prompt(nothing, own), tokenizer.encode(context + continuation)[len(own) :]


@pytest.mark.parametrize("name", FORMATS)
def test_multiple_choice_matches_a_full_forward_pass(name, task_folder, models, parts, by_hand):
    from birdie_jax.tasks.lm_harness import HarnessModel

    tokenizer = parts[2]
    accuracies = {"none": [], "characters": [], "tokens": []}
    results = evaluated(task_folder, HarnessModel(models[name]), "letters_choice")
    for document, sample in zip(DOCUMENTS, results["samples"]["letters_choice"], strict=True):
        sums, means, by_character = [], [], []
        for choice, (found, _) in zip(document["choices"], sample["filtered_resps"], strict=True):
            prompt, tokens = expected_tokens(name, tokenizer, f"{document['question']} is", f" {choice}")
            own = by_hand(prompt, tokens)
            assert found == pytest.approx(own.sum(), rel=1e-4)
            sums.append(own.sum())
            means.append(own.mean())
            by_character.append(own.sum() / len(choice))
        for kind, scores in (("none", sums), ("characters", by_character), ("tokens", means)):
            accuracies[kind].append(np.argmax(scores) == document["label"])
    figures = results["results"]["letters_choice"]
    assert figures["acc,none"] == np.mean(accuracies["none"])
    assert figures["acc_norm,none"] == np.mean(accuracies["characters"])
    normalised = evaluated(task_folder, HarnessModel(models[name], "tokens"), "letters_choice")
    assert normalised["results"]["letters_choice"]["acc,none"] == np.mean(accuracies["tokens"])
    task = task_of_flag(f'lm_eval:tasks=["letters_choice"],include_path={task_folder}')
    answers = task.measure(models[name]).answers
    for metric, kind in (("accuracy", "none"), ("accuracy_per_token", "tokens")):
        assert [answer.metrics[metric] for answer in answers] == accuracies[kind]


def test_generated_answers_match_generate(task_folder, models, parts):
    from birdie_jax.tasks.lm_harness import HarnessModel

    model, params, tokenizer = parts
    results = evaluated(task_folder, HarnessModel(models["prefix_lm"]), "letters_written")
    prompts = [
        make_prompt(document["question"], make_objective("prefix_lm"), tokenizer) for document in DOCUMENTS
    ]
    answers = generate(model, params, prompts, max_tokens=6, num_tokens=256 + tokenizer.num_pieces)
    found = [sample["filtered_resps"][0] for sample in results["samples"]["letters_written"]]
    assert found == [tokenizer.decode(answer.tokens).split("e")[0] for answer in answers]
    assert any(found)


def test_rolling_likelihoods_match_a_full_forward_pass(task_folder, models, parts, by_hand):
    from birdie_jax.tasks.lm_harness import HarnessModel

    tokenizer, nothing = parts[2], Prompt(np.empty(0, np.int32), np.empty(0, np.int32))
    results = evaluated(task_folder, HarnessModel(models["prefix_lm"]), "letters_rolling")
    for document, sample in zip(DOCUMENTS, results["samples"]["letters_rolling"], strict=True):
        tokens = tokenizer.encode(document["question"])
        expected = by_hand(nothing, tokens).sum()
        assert sample["filtered_resps"][0] == pytest.approx(expected, rel=1e-4)


def test_the_harness_scores_an_exported_model_the_same(task_folder, models, parts, torch_packages):
    from birdie_jax.tasks.lm_harness import HarnessModel

    config, (_, params, tokenizer) = micro_config(), parts
    arguments, expected = [task_folder], []
    for name, options, tasks in (
        ("prefix_lm", "backend=seq2seq", ("choice", "written")),
        ("causal_lm", "add_bos_token=True", ("choice", "written")),
        ("causal_lm", "add_bos_token=False", ("rolling",)),
    ):
        folder = task_folder / f"hf_{name}"
        objectives = dataclasses.replace(config.objectives, arms={name: {"objective": name}})
        own = dataclasses.replace(config, objectives=objectives)
        if not folder.exists():
            write_transformers(folder, ExportedModel(own, params, tokenizer, 5), prompt_form(own))
        for task in tasks:
            arguments += [folder, options, f"letters_{task}"]
            results = evaluated(task_folder, HarnessModel(models[name]), f"letters_{task}")
            expected.append([sample["filtered_resps"] for sample in results["samples"][f"letters_{task}"]])
    output = subprocess.run(
        [sys.executable, "-m", "tests.tasks.harness_hf", *map(str, arguments)],
        env=os.environ
        | OFFLINE
        | {
            "PYTHONPATH": os.pathsep.join([torch_packages, os.environ["BIRDIE_LM_EVAL"]]),
            "HF_HOME": str(task_folder / "hf"),
        },
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    texts = 0
    for found, own in zip(json.loads(output.splitlines()[-1]), expected, strict=True):
        for one, other in zip(found, own, strict=True):
            if isinstance(other[0], str):
                # The two libraries replace invalid bytes differently.
                texts += "\ufffd" not in one[0]
                assert "\ufffd" in one[0] or one == other
            elif isinstance(other[0], float):
                assert one == pytest.approx(other, rel=1e-4)
            else:
                assert [greedy for _, greedy in one] == [greedy for _, greedy in other]
                assert [score for score, _ in one] == pytest.approx([score for score, _ in other], rel=1e-4)
    assert texts > 2


def request(*arguments):
    """Return a request for document 3 of the task "mine"."""
    from lm_eval.api.instance import Instance

    return Instance("loglikelihood", {}, arguments, 0, ("mine", 3, 1))


def test_long_and_empty_contexts_have_prompts(task_folder, parts, models, by_hand, caplog):
    from birdie_jax.tasks.lm_harness import HarnessModel

    tokenizer, nothing = parts[2], np.empty(0, np.int32)
    limited = HarnessModel(TaskModel(*parts, arm("prefix_lm"), max_length=20))
    text, choice = letters(1, 60), letters(2, 5)
    tokens = tokenizer.encode(choice)
    pairs = [("", choice), (text, choice), ("ab ", choice)]
    with caplog.at_level("WARNING"):
        found = limited.loglikelihood([request(*pair) for pair in pairs])
    # Marker, context, start token and choice are 20 tokens.
    kept = tokenizer.encode(text)[-(20 - 2 - len(tokens)) :]
    marked = [make_objective("prefix_lm").marker]
    expected = [
        by_hand(Prompt(nothing, nothing), tokens),
        by_hand(Prompt(np.concatenate([marked, kept]).astype(np.int32), nothing), tokens),
        by_hand(
            Prompt(np.concatenate([marked, tokenizer.encode("ab")]).astype(np.int32), nothing),
            tokenizer.encode(f" {choice}"),
        ),
    ]
    np.testing.assert_allclose([one for one, _ in found], [own.sum() for own in expected], rtol=1e-4)
    assert "1 of 3 contexts are longer than the model's limit of 20 tokens" in caplog.text
    with pytest.raises(
        ConfigError, match=r"found a continuation of .* tokens; allowed: fewer than the model's"
    ):
        limited.loglikelihood([request("ab", letters(1, 80))])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": 4}, "mine document 3: generation_kwargs: found 'num_beams'; allowed: until,"),
        ({"max_gen_toks": 0}, "mine document 3: generation_kwargs: found max_gen_toks 0; allowed: at"),
        ({"temperature": -1.0, "do_sample": True}, "generation_kwargs: temperature: found -1.0; allowed:"),
    ],
)
def test_bad_generation_settings_are_refused(settings, message, task_folder, models):
    from birdie_jax.tasks.lm_harness import HarnessModel

    with pytest.raises(ConfigError) as error:
        HarnessModel(models["prefix_lm"]).generate_until([request("ab", {"until": [], **settings})])
    assert message in str(error.value)


def test_equal_sampling_requests_have_different_answers(task_folder, models):
    from birdie_jax.tasks.lm_harness import HarnessModel

    settings = {"until": "zz", "max_tokens": 8, "do_sample": True, "temperature": 3.0, "top_k": 200}
    model = HarnessModel(models["prefix_lm"])
    answers = model.generate_until([request("abc", settings)] * 4)
    assert len(set(answers)) > 1
    assert answers == model.generate_until([request("abc", settings)] * 4)


def test_unusable_requests_are_named(task_folder, models, parts):
    from birdie_jax.tasks.lm_harness import HarnessModel

    with pytest.raises(ConfigError, match=r"^objective: found span_corruption, which cannot format"):
        HarnessModel(TaskModel(*parts, arm("span_corruption")))
    with pytest.raises(
        ConfigError, match=r"^normalization=tokens: found 1 continuation of document 3 of mine"
    ):
        HarnessModel(models["prefix_lm"], "tokens").loglikelihood([request("a", "b")])
    for flag, message in (
        ("lm_eval:tasks=[]", "tasks: found none; allowed: one or more"),
        ('lm_eval:tasks=["nothing"]', "lm_eval.tasks: found 'nothing'; allowed: the names that"),
        ('lm_eval:tasks=["letters_written"]', "lm_eval.tasks: found letters_written, which has no acc"),
    ):
        with pytest.raises(ConfigError) as error:
            task_of_flag(f"{flag},include_path={task_folder}").measure(models["prefix_lm"])
        assert message in str(error.value)


def test_the_harness_has_the_tasks_of_the_paper(task_folder):
    from lm_eval.tasks import TaskManager

    from birdie_jax.tasks.lm_harness import PAPER_TASKS

    assert len(set(PAPER_TASKS)) == 21
    manager = TaskManager()
    assert [name for name in PAPER_TASKS if not manager.match_tasks([name])] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "--model_args: give either workdir=DIR, a run, or model=DIR, an exported folder"),
        ({"wrokdir": "x"}, "--model_args: found 'wrokdir'; allowed: workdir, model, step, objective, "),
        ({"workdir": "x", "step": "new"}, "--model_args step: found 'new'"),
        ({"workdir": "x", "batch_size": "many"}, "--model_args batch_size: found 'many'; allowed: auto"),
        ({"workdir": "x", "normalization": "bytes"}, "--model_args normalization: found 'bytes';"),
        ({"model": "x", "step": 3}, "--model_args step: found a model, which has one checkpoint"),
    ],
)
def test_bad_model_arguments_are_refused(arguments, message, task_folder):
    from lm_eval.api.registry import get_model

    import birdie_jax.lm_eval  # noqa: F401

    with pytest.raises(ConfigError) as error:
        get_model("birdie_jax").create_from_arg_obj(arguments, {"device": "cuda:0", "max_batch_size": None})
    assert message in str(error.value)


def test_an_unwritable_output_is_refused_before_the_harness_starts(task_folder):
    from birdie_jax.lm_eval import check_output

    before, file = sorted(task_folder.iterdir()), task_folder / "choice.jsonl"
    for options in (("--output_path", str(file)), ("-o", f"{file}/a.json"), (f"--output_path={file}/a/b",)):
        with pytest.raises(
            ConfigError, match=f"^--output_path={file}.*: found the file {file}; allowed: a "
        ):
            check_output(["run", *options, "--tasks", "sciq"])
    for options in (("-o", f"{task_folder}/results"), ("-o", f"{task_folder}/a.json"), ()):
        check_output([*options, "--tasks", "sciq"])
    assert sorted(task_folder.iterdir()) == before


def test_the_command_adds_default_options(task_folder):
    from birdie_jax.lm_eval import with_defaults

    added = ["--model", "birdie_jax", "--batch_size", "auto"]
    assert with_defaults(["--tasks", "sciq"]) == ["--tasks", "sciq", *added]
    assert with_defaults(["run", "-b", "4", "--model=hf"]) == ["run", "-b", "4", "--model=hf"]
    assert with_defaults(["ls", "tasks"]) == ["ls", "tasks"]
    assert with_defaults(["--config", "x.yaml"]) == ["--config", "x.yaml"]


def test_every_command_of_the_pages_is_accepted(task_folder, monkeypatch):
    """The harness accepts its options, and its model their arguments."""
    from lm_eval._cli import HarnessCLI

    from birdie_jax.lm_eval import parse_model_arguments, with_defaults

    commands = [one.arguments for one in commands_of_repository() if "birdie_jax.lm_eval" in one.arguments]
    assert len(commands) > 3
    for command in commands:
        monkeypatch.setattr("sys.argv", ["lm_eval", *with_defaults(command[3:])])
        try:
            found = HarnessCLI().parse_args()
        except SystemExit as error:
            assert error.code == 0, f"{command}: refused by the harness"
            continue
        if found.command == "run":
            parse_model_arguments({"batch_size": found.batch_size, **found.model_args})


def test_the_command_of_the_page_prints_a_table(task_folder, tmp_path, monkeypatch, capsys):
    """The command of docs/lm_harness.md runs the task that the page writes."""
    page = REPOSITORY / "docs/lm_harness.md"
    (task,) = [text for language, text in fenced_blocks(page.read_text()) if language == "yaml"]
    (records,) = [text for language, text in fenced_blocks(page.read_text()) if language == "json"]
    (command,) = [
        one.arguments
        for one in commands_of_page(page.name, page.read_text())
        if one.arguments[2:3] == ("birdie_jax.lm_eval",) and "my_harness_tasks" in one.arguments
    ]
    tasks = tmp_path / "my_harness_tasks"
    tasks.mkdir()
    (tasks / "capitals.yaml").write_text(task)
    (tasks / "capitals.jsonl").write_text(records)
    write_workdir(tmp_path / "runs/tiny", micro_config(), steps=(5,))
    paths = [str(REPOSITORY), os.environ.get("BIRDIE_LM_EVAL", "")]

    done = subprocess.run(
        [sys.executable, *command[1:], "--output_path", "out"],
        env={
            **os.environ,
            **OFFLINE,
            "PYTHONPATH": os.pathsep.join(paths),
            "HF_HOME": str(tmp_path),
            "XLA_FLAGS": QUICK_FLAGS,
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "|capitals|" in done.stdout and "acc_norm" in done.stdout
    (written,) = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(written.read_text())["config"]["step"] == 5

    from birdie_jax import lm_eval

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lm_eval, "cache_compiled_programs", lambda: None)
    monkeypatch.setattr("sys.argv", [one.replace("runs/tiny", "nowhere") for one in command[2:]])
    with pytest.raises(SystemExit, match=r"^2$"):
        lm_eval.main()
    assert capsys.readouterr().err.splitlines()[-1].startswith("birdie_jax.lm_eval: nowhere/config.json")
