"""The verbs that pages show for a run, with the options that they show, on a run of seconds."""

import contextlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import ml_collections
import pytest
import zstandard

from birdie_jax.storage import exists, list_files, make_path, upload
from tests.gcs_server import BUCKET, run_gcs_server
from tests.pages.page_commands import REPOSITORY, commands_of_repository
from tests.pages.verbs import parsed
from tests.whole_runs import CONFIG, write_corpus

pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
COMMANDS = [one for one in commands_of_repository() if one.whole and "..." not in one.arguments]


def shown(verb: str, *, in_bucket: bool = False) -> list[list[str]]:
    """Return the options with which pages show a verb in a block, each once; on a disk or in a bucket."""
    found = [one.arguments[3:] for one in COMMANDS if one.arguments[1:3] == ("-m", f"birdie_jax.{verb}")]
    found = [options for options in found if any("://" in one for one in options) == in_bucket]
    return [list(options) for options in dict.fromkeys(found)]


def of_micro_size() -> list[str]:
    """Return overrides that make configs/tiny.py the run of seconds of tests/micro_config.py."""

    def flat(config: ml_collections.ConfigDict, prefix: str) -> dict[str, object]:
        return {
            f"{prefix}.{name}{rest}": leaf
            for name, value in config.items()
            for rest, leaf in (
                flat(value, "").items() if isinstance(value, ml_collections.ConfigDict) else [("", value)]
            )
        }

    tiny, micro = (
        flat(runpy.run_path(str(path))["get_config"](), "--config")
        for path in (REPOSITORY / "configs/tiny.py", CONFIG)
    )
    changed = {name: value for name, value in micro.items() if value != tiny[name]}
    return [f"{name}={value}" for name, value in changed.items()] + [
        "--config.train.num_steps=4",
        "--config.bandit.policy=fixed",
    ]


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    """A folder in which commands find the repository's files, some text, and a run in runs/tiny."""
    folder = tmp_path_factory.mktemp("sandbox")
    for name in ("birdie_jax", "configs", "launch", "pallas_kernels"):
        (folder / name).symlink_to(REPOSITORY / name)
    corpus = write_corpus(folder)
    (folder / "pile").mkdir()
    (folder / "pile" / "corpus.jsonl.zst").write_bytes(zstandard.compress(corpus.read_bytes()))
    (options,) = [options for options in shown("train") if "--workdir=runs/tiny" in options]
    text = [f"--config.data.source={corpus}", f"--config.data.cache_dir={folder / 'prepared'}"]
    done = subprocess.run(
        [sys.executable, "-m", "birdie_jax.train", *options, *text, *of_micro_size()],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    fine_tune(folder)
    # The mesh that was left to the program is told.
    assert "mesh data=2 of 2 x cpu, accumulation_steps=1; config.mesh.fsdp = 0 asks for 1 on" in done.stdout
    return folder


def fine_tune(folder: Path) -> None:
    """Do what docs/fine_tune.md shows, on its own records and after the run in runs/tiny."""
    page = (REPOSITORY / "docs/fine_tune.md").read_text()
    (folder / "data").mkdir()
    (folder / "data/dialogues.jsonl").write_text(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0])
    (options,) = [options for options in shown("train") if "--workdir=runs/instructions" in options]
    stages = [
        f"--config.finetune.stages.{stage}.{field}={value}"
        for stage in ("1_short", "2_flan", "3_long")
        for field, value in {"length": 128, "rows": 2, "epochs": 2.0}.items()
    ]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "birdie_jax.train", *options, *of_micro_size()),
            *("--config.train.num_steps=0", *stages),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "stage 3_long: 2 examples in 1 rows of 128" in done.stdout


@pytest.mark.slow
def test_commands_of_a_run(sandbox, monkeypatch, capsys):
    monkeypatch.chdir(sandbox)
    assert json.loads((sandbox / "runs/tiny/config.json").read_text())["train"]["num_steps"] == 4
    for verb, more in (("report", []), ("generate", ["--max_tokens=4"]), ("export", [])):
        for options in shown(verb) or [["--workdir=runs/tiny"]]:
            with parsed(verb, [*options, *more], whole=True) as module:
                module.main([verb])
            assert capsys.readouterr().out
    assert (sandbox / "runs/tiny/report.html").is_file()
    assert (sandbox / "exported/tiny/model.safetensors").is_file()


@pytest.mark.slow
def test_commands_of_a_run_in_a_bucket(sandbox, monkeypatch, capsys, tmp_path):
    """The same run, by URL."""
    with run_gcs_server(tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        run = sandbox / "runs/tiny"
        for name in list_files(run):
            upload(run / name, make_path(f"gs://{BUCKET}/runs/tiny") / name)
        for verb, more in (("report", []), ("generate", ["--max_tokens=4"]), ("export", [])):
            commands = [options for options in shown(verb, in_bucket=True) if "s3://" not in str(options)]
            assert commands, f"no page shows {verb} in a bucket"
            for options in commands:
                in_bucket = [one.replace("gs://BUCKET", f"gs://{BUCKET}") for one in options]
                with parsed(verb, [*in_bucket, *more], whole=True) as module:
                    module.main([verb])
                assert capsys.readouterr().out
        for name in ("runs/tiny/report.html", "exports/tiny/model.safetensors"):
            assert exists(make_path(f"gs://{BUCKET}/{name}")), name


@pytest.mark.slow
def test_text_is_prepared(sandbox, monkeypatch, capsys):
    monkeypatch.chdir(sandbox)
    for options in shown("prepare_data"):
        if "--input=stdlib" not in options and "--output=/shared/pile" not in options:
            output = next(one for one in options if one.startswith("--output=")).removeprefix("--output=")
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(sandbox / output)
            smaller = ["--vocab_size=300", "--workers=0", "--validation_fraction=0.3"]
            with parsed("prepare_data", [*options, *smaller], whole=True) as module:
                module.main(["prepare_data"])
            assert f"in {output}" in capsys.readouterr().out
