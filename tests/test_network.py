"""The verbs use no network except for named stores, and show no secret."""

import json
import os
import subprocess
import sys

import pytest

from tests.forked_verbs import ForkedVerbs, run_commands
from tests.whole_runs import CONFIG, REPOSITORY, write_corpus

SECRET = "a0PlantedSecret9"
# Variables with credentials for libraries of stores and trackers, and those that starts.json records.
ENVIRONMENT = {
    name: SECRET
    for name in (
        *("AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "HF_TOKEN", "COMET_API_KEY", "NEPTUNE_API_TOKEN"),
        *("BIRDIE_TOKEN", "JAX_CLIENT_SECRET", "GOOGLE_API_KEY"),
    )
} | {"HTTPS_PROXY": f"http://user:{SECRET}@proxy.invalid:1", "WANDB_MODE": "online", "HF_HUB_OFFLINE": "0"}
# Variables that would prevent a library from using the network.
UNSET = dict.fromkeys(("TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "DO_NOT_TRACK"))


def run_verbs(folder):
    """Train, use the run with each verb, and return all output."""
    workdir, corpus = folder / "run", write_corpus(folder)
    data = [f"--config.data.source={corpus}", f"--config.data.cache_dir={folder / 'prepared'}"]
    task = "--task=copying_by_length:lengths=[8],questions_per_length=1"
    sizes = ("--vocab_size=300", "--validation_fraction=0.3")
    commands = [
        ("prepare_data", f"--input={corpus}", f"--output={folder / 'text'}", *sizes),
        ("train", f"--config={CONFIG}:fixed", f"--workdir={workdir}", *data, "--config.train.num_steps=4"),
        ("evaluate", f"--workdir={workdir}", task),
        ("generate", f"--workdir={workdir}", "--prompt=abc", "--max_tokens=2"),
        ("report", f"--workdir={workdir}"),
        ("export", f"--workdir={workdir}", f"--output={folder / 'exported'}"),
    ]
    environment = {**ENVIRONMENT, **UNSET, "ATTEMPTS_FILE": str(folder / "attempts.txt")}
    verbs = ForkedVerbs("tests.no_network", "tests.without_reports", **environment)
    for command in commands:
        status, *output = verbs.run(*command)
        assert status == 0, output
        yield from output


@pytest.mark.slow
def test_a_run_uses_no_network_and_keeps_no_secret(tmp_path):
    output = "".join(run_verbs(tmp_path))
    attempts = tmp_path / "attempts.txt"
    assert not attempts.exists(), attempts.read_text()
    assert SECRET not in output
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"config.json", "starts.json", "metrics.jsonl", "report.html", "README.md"} <= {
        p.name for p in files
    }
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    (start,) = json.loads((tmp_path / "run" / "starts.json").read_text())
    assert start["program"]["environment"]["BIRDIE_TOKEN"] == "***"


ATTEMPT = """
import socket
from tests.no_network import prepare
prepare()
socket.create_connection(("192.0.2.1", 80))
"""


@pytest.mark.slow
def test_an_attempt_is_seen(tmp_path):
    attempts = tmp_path / "attempts.txt"
    environment = {**os.environ, "ATTEMPTS_FILE": str(attempts)}
    command = [sys.executable, "-c", ATTEMPT]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, check=False)
    assert b"ConnectionRefusedError: a test has no network" in done.stderr
    assert "socket.getaddrinfo 192.0.2.1 by" in attempts.read_text()


URL = f"gs://user:{SECRET}@bucket/x"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (f"--workdir={URL}", "found a URL that cannot be used"),
        (f"--workdir=s3://key:{SECRET}@bucket/x", "allowed: a folder or gs://BUCKET/..."),
        (
            f"--config.data.source={URL}",
            "found a password, token or key in 'gs://***@bucket/x'; allowed",
        ),
        (
            f"--config.data.tokenizer=https://host/x?X-Goog-Signature={SECRET}",
            "config.data.tokenizer: found a p",
        ),
        (f"--config.init.from={URL}", "config.init.from: found a password"),
        (f"--config.eval.tasks=jsonl:path={URL}", "config.eval.tasks"),
        (f"--config.imports=('{URL}',)", "config.imports[0]: found a password"),
        (f"--config.data.sorce={URL}", "sorce"),
        (f"--config.train.num_steps=password={SECRET}", "num_steps"),
    ],
)
def test_a_secret_is_refused_and_not_shown(tmp_path, flag, message):
    workdir = tmp_path / "run"
    command = ("train", f"--config={CONFIG}", f"--workdir={workdir}", flag)
    ((status, output, errors),) = run_commands([command])
    assert status == 2
    assert message in errors
    assert SECRET not in output + errors
    assert not workdir.exists()
