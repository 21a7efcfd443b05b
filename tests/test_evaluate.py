"""The command `evaluate`: tables, files, comparison, processes; answers equal those of `generate`."""

import json
import re
import socket
import subprocess
import sys

import pytest

from birdie_jax.evaluation_record import parse_evaluation
from tests.forked_verbs import run_commands
from tests.trained_workdirs import micro_config, write_workdir
from tests.whole_runs import REPOSITORY, run_environment

pytestmark = pytest.mark.slow

PROMPTS = ["abc abc", "hello" * 20, "mnop", "n", "klm " * 30]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs, runs/a and runs/b, and a file of questions."""
    folder = tmp_path_factory.mktemp("evaluate")
    for name, step in (("a", 5), ("b", 9)):
        write_workdir(folder / "runs" / name, micro_config(), steps=(step,))
    records = [{"id": f"q{n}", "prompt": text, "reference": "a"} for n, text in enumerate(PROMPTS)]
    (folder / "text.txt").write_text("\n\n".join(PROMPTS))
    (folder / "questions.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.fixture(scope="module")
def printed(folder):
    """The output of the successful commands."""
    task = f"--task=mine=jsonl:path={folder}/questions.jsonl,max_tokens=8"
    commands = [
        (
            *("evaluate", f"--workdir={folder}/runs/a", task, f"--json={folder}/a.json", "--shown=2"),
            *("--task=copying_by_length:lengths=[8,90],questions_per_length=1",),
        ),
        (
            *("evaluate", f"--workdir={folder}/runs/a", f"--compare={folder}/runs/b", task),
            *(f"--answers={folder}/answers.jsonl", f"--json={folder}/both.json"),
        ),
        ("generate", f"--workdir={folder}/runs/a", f"--prompt={PROMPTS[1]}", "--max_tokens=8"),
        (
            *("evaluate", f"--workdir={folder}/runs/a", f"--compare={folder}/runs/b"),
            *(f"--task=perplexity:path={folder}/text.txt,window=32", f"--json={folder}/text.json"),
        ),
        ("report", f"--workdir={folder}/runs/a"),
    ]
    (folder / "runs/a/metrics.jsonl").write_text('{"step": 5, "tokens_per_second": 9.0}\n{"step": 5}\n')
    results = run_commands(commands)
    for command, (status, _, errors) in zip(commands, results, strict=True):
        assert status == 0, (command, errors)
    return results


def test_the_table_and_the_files(folder, printed):
    _, table, errors = printed[0]
    assert f"{folder}/runs/a step 5: gated_ssm_plus, prompt form: prefix_lm" in errors
    assert "mine: 5 answers in " in errors
    assert table.splitlines()[1].split()[0] == "mine"
    assert "mine by prompt tokens" in table
    assert f"\nmine: 0 of 5 exactly right; the first:\n  read   {PROMPTS[0]}\n  wrote  " in table
    assert table.count("\n  right  a") == 2
    record, _ = json.loads((folder / "a.json").read_text())["evaluations"]
    kept = folder / "runs/a/evaluations/00000005"
    saved = parse_evaluation((kept / "mine.json").read_bytes(), "mine.json")
    assert saved.to_json()["metrics"] == record["metrics"]
    assert (saved.name, saved.task, saved.answers, saved.model.step) == ("mine", "jsonl", 5, 5)
    assert len(saved.model.parameters_sha256) == len(saved.model.config_sha256) == 64
    lines = [json.loads(line) for line in (kept / "mine.jsonl").read_text().splitlines()]
    assert [line["prompt"] for line in lines] == PROMPTS


def test_the_cost_is_printed_first(folder, printed):
    _, _, errors = printed[0]
    tokens = re.search(
        r"^mine: 5 questions, (\d+) prompt tokens, at most 40 answer tokens; (.*)", errors, re.M
    )
    assert tokens
    minutes = (int(tokens[1]) + 40) / 9 / 60
    assert tokens[2] == f"about {minutes:.1f} min at the training speed of 9 tokens/s"
    assert errors.index(tokens[0]) < errors.index("mine: 5 answers in ")
    # Marker, start token and passage, which ends with END.
    assert (
        "copying_by_length: the longest takes 183 tokens, and the model has learned rows of 128; that fits "
        "--task='copying_by_length:lengths=[8],questions_per_length=1'"
    ) in errors
    # No setting of this task shortens its prompts.
    assert "mine: the longest takes 130 tokens, and the model has learned rows of 128\n" in errors


def test_answers_match_generate(folder, printed):
    lines = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    assert [line["model"] for line in lines] == [f"{folder}/runs/a"] * 5 + [f"{folder}/runs/b"] * 5
    assert lines[1]["answer"] + "\n" == printed[2][1]
    assert lines[1]["evaluation"] == "mine"


@pytest.mark.parametrize("name", ["both", "text"])
def test_models_are_compared(folder, printed, name):
    assert f"A: {folder}/runs/a step 5\nB: {folder}/runs/b step 9\n" in printed[1][1]
    found = json.loads((folder / f"{name}.json").read_text())
    first, second = (one["metrics"] for one in found["evaluations"])
    (difference,) = found["differences"]
    assert difference["model"] == f"{folder}/runs/b"
    assert difference["metrics"].keys() == first.keys()
    for metric, interval in difference["metrics"].items():
        assert interval["mean"] == pytest.approx(second[metric]["mean"] - first[metric]["mean"])
    if name == "both":
        assert difference["pairs"] == 5
        return
    assert first.keys() >= {"loss", "perplexity"}
    shown = difference["metrics"]["loss"]["mean"]
    assert re.search(rf"^ +B .* {re.escape(f'{shown:+.4f}')} ", printed[3][1], re.M), printed[3][1]


def test_the_report_shows_it(folder, printed):
    page = (folder / "runs/a/report.html").read_text()
    assert "evaluated at step 5" in page
    (loss,) = json.loads((folder / "text.json").read_text())["differences"]
    shown = f'<td class="n">{loss["metrics"]["loss"]["mean"]:+.4g}</td>'
    assert f"<td>{folder}/runs/b step 9</td>" in page and shown in page
    answers = page.partition('<section id="answers">')[2].partition("</section>")[0]
    # The answers come first.
    assert page.index('id="answers"') == page.index('<section id="') + len("<section ")
    assert "mine <small>0 of 5 exactly right, at step 5</small>" in answers
    assert answers.count('<td class="text">a</td></tr>') == 3


def test_wrong_input_is_reported_in_one_line_and_leaves_no_files(folder):
    workdir = f"--workdir={folder}/runs/a"
    (folder / "empty.jsonl").write_text("")
    (folder / "bad.jsonl").write_text('{"prompt": "a", "reference": "b"}\n{"prompt": 3}\n{\n')
    good = f"--task=perplexity:path={folder}/text.txt"
    cases = [
        ((workdir,), "--task: missing; allowed: one or more of "),
        ((workdir, "--task=phoneboko"), "--task=phoneboko: task: found 'phoneboko'; allowed: "),
        ((workdir, "--task=phonebook:max_entires=3"), "--task=phonebook.max_entires: unknown setting"),
        (
            ("--task=phonebook",),
            "give either --workdir, a run, or --model, an exported folder; example: ",
        ),
        ((f"--workdir={folder}/none", "--task=phonebook"), f"{folder}/none/config.json: not found"),
        ((workdir, "--step=7", "--task=phonebook"), "has no checkpoint of step 7; allowed: 5"),
        ((workdir, "--task=phonebook", "--compare="), "--compare: found ''"),
        ((workdir, "--task=phonebook", "--task=phonebook"), "found 2 evaluations with the name phonebook"),
        ((workdir, f"--task=jsonl:path={folder}/empty.jsonl"), f"{folder}/empty.jsonl"),
        ((workdir, f"--task=jsonl:path={folder}/bad.jsonl"), f"{folder}/bad.jsonl"),
        ((workdir, good, f"--task=jsonl:path={folder}/absent.jsonl"), f"{folder}/absent.jsonl"),
        ((workdir, "--task=phonebook", "--objective=copyign"), "objective 'copyign' is unknown"),
        ((workdir, good, f"--compare={folder}/nope"), f"{folder}/nope/config.json: not found"),
        ((workdir, "--task=" + "x" * 300 + "=phonebook"), "--task: found the name 'xxx"),
        ((workdir, good, f"--json={folder}"), f"--json={folder}: found a folder; allowed: a file"),
        ((workdir, good, f"--answers={folder}/no/a"), f"--answers={folder}/no/a: found no folder"),
        ((workdir, good, f"--json={folder}/text.txt"), "is what path of --task perplexity reads"),
        ((workdir, good, f"--json={folder}/runs/a/config.json"), "is a file of the run or the exported"),
        ((workdir, good, f"--json={folder}/a", f"--answers={folder}/a"), "is what --json writes too"),
    ]
    before = {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}
    results = run_commands([("evaluate", *arguments) for arguments, _ in cases])
    for (arguments, said), (status, output, errors) in zip(cases, results, strict=True):
        assert status == 2, (arguments, output, errors)
        *_, line = errors.splitlines()
        assert line.startswith("birdie_jax.evaluate: "), errors
        assert said in line
        assert "Traceback" not in errors
        # No questions were asked, not even of valid tasks.
        assert " answers in " not in errors
    assert {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")} == before


def test_two_processes_give_the_scores_of_one(folder, printed, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [
        *(sys.executable, "-m", "birdie_jax.evaluate", f"--workdir={folder}/runs/a"),
        f"--task=mine=jsonl:path={folder}/questions.jsonl,max_tokens=8",
        *(f"--json={tmp_path}/two.json", "--rows=2"),
        *(f"--coordinator_address={address}", "--num_processes=2"),
    ]
    processes = [
        subprocess.Popen(
            [*command, f"--process_id={number}"],
            cwd=REPOSITORY,
            env=run_environment(2),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    outputs = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    # Only the first process prints; JAX prints its own line when they connect.
    assert "mine" in outputs[0][0]
    assert "mine" not in outputs[1][0]
    (one, _), (two,) = (
        json.loads(path.read_text())["evaluations"] for path in (folder / "a.json", tmp_path / "two.json")
    )
    assert one["metrics"] == two["metrics"]
    assert one["model"] == two["model"]
