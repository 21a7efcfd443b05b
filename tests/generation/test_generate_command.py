"""The commands `generate` and `export`, from a workdir to text, in separate processes."""

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest

from birdie_jax.models.encoder_config import EncoderConfig
from tests.forked_verbs import run_commands
from tests.trained_workdirs import micro_config, write_workdir
from tests.whole_runs import start

pytestmark = pytest.mark.slow

PROMPTS = ["abc abc", "hello" * 20, "naïve 日本", "n"]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    path = tmp_path_factory.mktemp("generate") / "run"
    write_workdir(path, micro_config(layers=2), steps=(5, 9))
    return path


def command(verb, *arguments):
    return [sys.executable, "-m", f"birdie_jax.{verb}", *map(str, arguments)]


def run(verb, *arguments):
    ((status, stdout, stderr),) = run_commands([(verb, *map(str, arguments))])
    return subprocess.CompletedProcess(arguments, status, stdout, stderr)


def write_prompts(path, prompts):
    path.write_text("".join(json.dumps({"prompt": text, "id": n}) + "\n" for n, text in enumerate(prompts)))
    return path


def read_lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_prompts_on_the_terminal_and_in_a_file_have_equal_answers(workdir, tmp_path):
    """A batch gives the answers of single prompts, and an exported folder the answers of its run."""
    options = ("--max_tokens=24", "--temperature=0.9", "--top_k=200", "--seed=4")
    alone = run("generate", f"--workdir={workdir}", f"--prompt={PROMPTS[0]}", *options)
    assert alone.returncode == 0, alone.stderr
    assert f"{workdir} step 9: gated_ssm_plus, prompt form: prefix_lm" in alone.stderr
    # Two layers: eight forward channels, and three inputs of sixteen channels, of four bytes each.
    assert "state: 448 bytes a row as computed, for a context of any length" in alone.stderr
    assert "prefill: " in alone.stderr
    assert "decode: " in alone.stderr

    exported = run("export", f"--workdir={workdir}", f"--output={tmp_path / 'exported'}")
    assert exported.returncode == 0, exported.stderr
    assert exported.stdout == f"{workdir} step 9: exported to {tmp_path / 'exported'}\n"
    file = write_prompts(tmp_path / "prompts.jsonl", PROMPTS)
    together = run("generate", f"--model={tmp_path / 'exported'}", f"--prompt_file={file}", *options)
    assert together.returncode == 0, together.stderr
    answers = read_lines(together.stdout)
    assert [answer["id"] for answer in answers] == [0, 1, 2, 3]
    assert [answer["prompt"] for answer in answers] == PROMPTS
    assert answers[0]["generated"] + "\n" == alone.stdout
    assert all(answer["stopped_by"] in ("max_tokens", "[EOS]", "[DONE]") for answer in answers)
    assert len({answer["generated"] for answer in answers}) == 4


def test_an_encoder_is_refused_by_name(tmp_path):
    """Also if its mixture has arms with prompt formats, as here."""
    section = EncoderConfig(positions=128, ssm_state=4)
    write_workdir(tmp_path / "run", micro_config(name="bigs", sections=(section,)))
    refused = run("generate", f"--workdir={tmp_path / 'run'}", "--prompt=abc")
    assert refused.returncode != 0
    assert refused.stderr.splitlines()[-1].startswith(
        "birdie_jax.generate: config.model.name: found 'bigs', a bidirectional encoder, which cannot "
        "generate: "
    )


def test_a_stopped_command_resumes_its_file(tmp_path):
    workdir = tmp_path / "run"
    write_workdir(workdir, micro_config(layers=2), steps=(9,))
    file, output = write_prompts(tmp_path / "prompts.jsonl", PROMPTS * 3), tmp_path / "answers.jsonl"
    arguments = [f"--workdir={workdir}", f"--prompt_file={file}", f"--output={output}", "--batch=1"]
    arguments += ["--max_tokens=16", "--samples=2", "--temperature=1"]
    process = start(command("generate", *arguments))
    while process.poll() is None and not (output.exists() and output.read_text().count("\n") >= 3):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    lines = output.read_text().splitlines(keepends=True)
    assert len(lines) >= 3
    output.write_text("".join(lines[:2]) + lines[2][:14])
    finished = run("generate", *arguments)
    assert finished.returncode == 0, finished.stderr
    assert "resuming after line" in finished.stderr
    whole = output.read_text()
    assert whole.startswith("".join(lines[:2]))
    answers = read_lines(whole)
    assert [(answer["id"], answer["sample"]) for answer in answers] == [
        (n, sample) for n in range(12) for sample in range(2)
    ]
    # The same prompt has the same answer in any place, and different answers for different samples.
    texts = [answer["generated"] for answer in answers]
    assert texts[:8] == texts[8:16] == texts[16:]
    assert texts[0] != texts[1]

    # Another seed, and other parameters of the same step in the same folder.
    shutil.rmtree(workdir / "checkpoints")
    write_workdir(workdir, micro_config(layers=2), steps=(9,), seed=1)
    for changed in ([*arguments, "--seed=1"], arguments):
        other = run("generate", *changed)
        assert other.returncode == 2
        assert f"{output}: exists, and its line 1 is not an answer of this command" in other.stderr
        assert output.read_text() == whole


def test_errors_are_one_line(workdir, tmp_path):
    good = f"--workdir={workdir}"
    bad_file = write_prompts(tmp_path / "prompts.jsonl", ["a", "", "b"])
    cases = [
        (
            [good, "--prompt="],
            "--prompt: the prompt is empty (found 0 characters); prefix_lm allows: text of at least one "
            "token",
        ),
        (
            [good, "--prompt=a", "--prompt="],
            "--prompt number 2: the prompt is empty (found 0 characters); prefix_lm allows: text of at "
            "least one token",
        ),
        (
            [good, f"--prompt_file={bad_file}"],
            f"{bad_file} line 2: the prompt is empty (found 0 characters); prefix_lm allows: text of at "
            "least one token",
        ),
        (
            [good],
            "give either --prompt, which may be repeated, or --prompt_file; example: python -m "
            "birdie_jax.generate --workdir=runs/tiny --prompt='def main(' --max_tokens=64",
        ),
        (
            [good, f"--prompt_file={bad_file}", f"--output={bad_file}"],
            f"--output={bad_file}: is what --prompt_file reads; allowed: another name",
        ),
        ([good, "--prompt=a", "--temperature=-1"], "--temperature: found -1.0; allowed: at least 0"),
    ]
    for arguments, message in cases:
        finished = run("generate", *arguments)
        assert finished.returncode == 2
        assert finished.stderr == f"birdie_jax.generate: {message}\n"
        assert finished.stdout == ""
