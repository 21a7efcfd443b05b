"""The verbs and options that pages show for a run, on a short run."""

import contextlib
import json
import re
import runpy
import shutil
import sys
from pathlib import Path

import fsspec
import ml_collections
import pytest
import zstandard

from birdie_jax.config import Config, parse_config
from birdie_jax.storage import exists, list_files, make_path, upload
from birdie_jax.tasks.glue_files import GLUE_DATASETS
from tests.gcs_server import BUCKET, run_gcs_server
from tests.pages.page_commands import REPOSITORY, commands_of_repository, commands_of_script
from tests.pages.verbs import parsed
from tests.reader_environment import reader_packages
from tests.tasks.glue_folders import write_learnable, write_unlabelled
from tests.trained_workdirs import write_workdir
from tests.whole_runs import CONFIG, finish, write_corpus

pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
COMMANDS = [one for one in commands_of_repository() if one.whole and "..." not in one.arguments]

# The first one trains a tokenizer.
SMALLER = ["--vocab_size=300", "--workers=0", "--validation_fraction=0.3"]


def shown(verb: str) -> list[tuple[str, list[str]]]:
    """Return the first page and the options of each command in a block, except commands for a bucket."""
    found: dict[tuple[str, ...], str] = {}
    for command in COMMANDS:
        options = command.arguments[3:]
        if command.arguments[1:3] == ("-m", f"birdie_jax.{verb}") and not any(
            "://" in one for one in options
        ):
            found.setdefault(options, command.page)
    return [(page, list(options)) for options, page in found.items()]


def run_verb(page: str, verb: str, options: list[str]) -> None:
    """Run a command of a page with the packages of its reader."""
    with reader_packages(REPOSITORY / page), parsed(verb, options, whole=True) as module:
        module.main([verb])


def of_micro_size(config: str = "tiny") -> list[str]:
    """Return overrides that give a file of configs/ the size of tests/micro_config.py."""

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
        for path in (REPOSITORY / f"configs/{config}.py", CONFIG)
    )
    # Keep the subject of the run.
    for name in ("--config.objectives.mixture", "--config.model.name"):
        micro[name] = tiny[name]
    micro["--config.model.encoder.attention_heads"] = micro["--config.model.encoder.ssm_state"] = 4
    changed = {name: value for name, value in micro.items() if value != tiny[name]}
    return [f"{name}={value}" for name, value in changed.items()] + [
        "--config.train.num_steps=4",
        "--config.bandit.policy=fixed",
    ]


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    """A folder with the repository's files, some text, and a run in runs/tiny."""
    folder = tmp_path_factory.mktemp("sandbox")
    for name in ("birdie_jax", "configs", "launch", "pallas_kernels"):
        (folder / name).symlink_to(REPOSITORY / name)
    corpus = write_corpus(folder)
    for name in ("pile", "wikipedia_and_books", "long_documents"):
        (folder / name).mkdir()
        (folder / name / "corpus.jsonl.zst").write_bytes(zstandard.compress(corpus.read_bytes()))
    options = ["--config=configs/tiny.py", "--workdir=runs/tiny"]
    assert options in [options for _, options in shown("train")]
    text = [f"--config.data.source={corpus}", f"--config.data.cache_dir={folder / 'prepared'}"]
    # The run prints the mesh that it chose.
    said = train(folder, *options, *text, *of_micro_size())
    assert "mesh data=2 of 2 x cpu, accumulation_steps=1; config.mesh.fsdp = 0 means 1 on" in said
    fine_tune(folder)
    return folder


def train(folder, *options: str) -> str:
    """Train in a separate process on two devices; return its output."""
    command = [sys.executable, "-m", "birdie_jax.train", *options]
    status, output = finish(command, folder=folder, devices=2)
    assert status == 0, output[-3000:]
    return output


def fine_tune(folder: Path) -> None:
    """Run the commands of docs/fine_tune.md, with its own records, after the run in runs/tiny."""
    page = (REPOSITORY / "docs/fine_tune.md").read_text()
    (folder / "data").mkdir()
    (folder / "data/dialogues.jsonl").write_text(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0])
    (options,) = [options for _, options in shown("train") if "--workdir=runs/instructions" in options]
    stages = [
        f"--config.finetune.stages.{stage}.{field}={value}"
        for stage in ("1_short", "2_flan", "3_long")
        for field, value in {"length": 128, "rows": 2, "epochs": 2.0}.items()
    ]
    said = train(folder, *options, *of_micro_size(), "--config.train.num_steps=0", *stages)
    assert "stage 3_long: 2 examples in 1 rows of 128" in said


def test_commands_of_a_run(sandbox, monkeypatch, capsys):
    monkeypatch.chdir(sandbox)
    assert json.loads((sandbox / "runs/tiny/config.json").read_text())["train"]["num_steps"] == 4
    for verb, more in (("report", []), ("generate", ["--max_tokens=4"]), ("export", [])):
        for page, options in shown(verb):
            if "--workdir=runs/bigs_tiny" in options:
                # The page on masked LM has its own run, below.
                continue
            others = page == "docs/transformers.md"
            if others or any("mamba" in one or "recurrentgemma" in one for one in options):
                # The pages on Mamba, Griffin and transformers have their own test files.
                continue
            run_verb(page, verb, [*options, *more])
            out, err = capsys.readouterr()
            assert out or ("--save_state" in " ".join(options) and "the state after" in err)
    for page, options in shown("prune"):
        # The text of a few documents has fewer windows than the default.
        smaller = ["--context=96", "--continuation=24", "--keep=0.5", "--policy=influence"]
        run_verb(page, "prune", [*options, *smaller])
        assert "influence" in capsys.readouterr().out
        assert (sandbox / "pruned/index.html").is_file()
    assert (sandbox / "runs/tiny/report.html").is_file()
    assert (sandbox / "exported/tiny/model.safetensors").is_file()


def test_the_quickstart_ends_with_answers_to_held_out_lines(sandbox, monkeypatch, capsys):
    """Run the commands of its script with fewer questions, then its report."""
    monkeypatch.chdir(sandbox)
    commands = commands_of_script((REPOSITORY / "launch/quickstart.sh").read_text())
    assert [command[2] for command in commands] == [
        f"birdie_jax.{verb}" for verb in ("train", "evaluate", "report")
    ]
    fewer_questions = [
        one.replace("lengths=", "questions_per_length=3,lengths=") for one in commands[1][3:]
    ]
    run_verb("docs/start.md", "evaluate", fewer_questions)
    printed = capsys.readouterr().out
    run_verb("docs/start.md", "report", list(commands[2][3:]))
    answers = (sandbox / "runs/tiny/report.html").read_text().partition('id="answers"')[2]
    for name in ("copy", "pick_out", "copy_longer"):
        assert re.search(rf"^{name}: \d of 3 exactly right; the first:\n  read   \[", printed, re.MULTILINE)
        assert f"{name.replace('_', ' ')} <small>" in answers.partition("</section>")[0]
    assert printed.count("\n  wrote  ") == 3


def test_commands_of_the_pages_on_evaluation(sandbox, monkeypatch, capsys):
    """Run each command with fewer questions, after the export that it compares with."""
    monkeypatch.chdir(sandbox)
    with parsed("export", ["--workdir=runs/tiny", "--output=exported/compared"], whole=True) as module:
        module.main(["export"])
    tried = 0
    for command in COMMANDS:
        if (
            command.page in ("docs/fine_tune.md", "docs/evaluate.md")
            and "birdie_jax.evaluate" in command.arguments
        ):
            options = [
                re.sub(r"(num_questions|questions_per_length)=\d+", r"\1=4", one)
                for one in command.arguments[3:]
            ]
            options = [one.replace("exported/tiny", "exported/compared") for one in options]
            # The page fine-tunes the run first, but any run accepts these commands.
            options = [one.replace("runs/phonebook_tiny", "runs/tiny") for one in options]
            capsys.readouterr()
            run_verb(command.page, "evaluate", options)
            assert re.search("number_accuracy|exactly right", capsys.readouterr().out)
            tried += 1
    assert tried == 5
    assert (sandbox / "runs/tiny/evaluations/00000004/phonebook.json").is_file()
    assert json.loads((sandbox / "scores.json").read_text())["evaluations"]


def test_commands_of_the_page_on_masked_lm(sandbox, monkeypatch, capsys):
    """Each of them, in the order of the page."""
    monkeypatch.chdir(sandbox)
    corpus, tried = sandbox / "corpus.jsonl", []
    pair = {"input": "the man near the cars ", "target_scores": {"was": 1, "were": 0}, "comment": "near"}
    (sandbox / "agreement.json").write_text(json.dumps({"examples": [pair]}))
    for command in COMMANDS:
        if command.page == "docs/masked_lm.md":
            verb, options = command.arguments[2].removeprefix("birdie_jax."), list(command.arguments[3:])
            if verb == "train":
                text = [f"--config.data.source={corpus}", f"--config.data.cache_dir={sandbox / 'prepared'}"]
                train(sandbox, *options, *text, *of_micro_size("bigs_tiny"))
            else:
                run_verb(command.page, verb, options)
                assert capsys.readouterr().out
            tried.append(verb)
    assert tried == ["train", "report", "evaluate", "evaluate", "draw_kernels"]
    assert (sandbox / "kernels.svg").is_file()
    assert "Masked tokens" in (sandbox / "runs/bigs_tiny/report.html").read_text()


def test_commands_of_the_page_on_glue(tmp_path, monkeypatch, capsys):
    """In the order of the page, on made-up files in the published formats.

    A copy replaces the run with a second seed. ContractNLI is fine-tuned like SQuAD.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    for dataset, folder in (("mnli", "MNLI"), ("rte", "RTE")):
        for split in ("train", *GLUE_DATASETS[dataset].splits):
            write_learnable(tmp_path / "data/glue" / folder, dataset, split, 48)
        for split in GLUE_DATASETS[dataset].predictions:
            write_unlabelled(tmp_path / "data/glue" / folder, dataset, split)
    (tmp_path / "data/squad").mkdir()
    for split in ("train", "dev"):
        (tmp_path / f"data/squad/{split}-v2.0.json").write_text(json.dumps(squad_2()))
    (tmp_path / "runs").mkdir()
    source = tmp_path / "runs/bigs_tiny"
    source.mkdir()
    config = load_overridden("configs/bigs_tiny.py", of_micro_size("bigs_tiny"))
    write_workdir(source, config)
    tried = []
    for command in COMMANDS:
        if command.page == "docs/glue.md" and command.arguments[2].startswith("birdie_jax."):
            verb, options = command.arguments[2].removeprefix("birdie_jax."), list(command.arguments[3:])
            if "--workdir=runs/contracts" in options:
                continue
            if verb == "train" and "--workdir=runs/rte_1" in options:
                shutil.copytree("runs/rte", "runs/rte_1")
                config = json.loads(Path("runs/rte/config.json").read_text())
                Path("runs/rte_1/config.json").write_text(json.dumps(config | {"seed": 1}))
            elif verb == "train":
                preset, dataset = re.search(r"configs/(\w+).py:tiny,(\w+)", options[0]).groups()
                said = train(tmp_path, *options, *of_micro_size(preset))
                new = [line.split()[1] for line in said.splitlines() if line.startswith("  new ")]
                assert f"task_head/{dataset.removesuffix('_2')}/kernel" in new
                # RTE reuses the pooler of MNLI, and a head of spans has none.
                assert ("task_head/pooler/kernel" in new) == (dataset not in ("rte", "squad_2"))
            else:
                run_verb(command.page, verb, options)
                said = capsys.readouterr().out
                if "--predictions=predictions" in options:
                    verb = "predict"
                else:
                    assert re.search(r"(rte +accuracy|squad_spans +f1) +[01]\.\d{4}", said)
            tried.append(verb)
    assert sorted(path.name for path in (tmp_path / "predictions").iterdir()) == [
        "MNLI-m.tsv",
        "MNLI-mm.tsv",
        "RTE.tsv",
    ]
    measured = ["train", "train", "evaluate", "predict", "predict"]
    assert tried == [*measured, "train", "evaluate", "tasks.seed_summary", "train", "evaluate"]


def squad_2() -> dict:
    """Return a file of SQuAD 2.0: two questions on a paragraph, one with an answer."""
    context = "abc def ghi jkl"
    answered = {"question": "abc?", "answers": [{"text": "def ghi", "answer_start": 4}]}
    unanswered = {"question": "xyz?", "answers": [], "is_impossible": True}
    paragraphs = [
        {
            "context": context,
            "qas": [{"id": f"{number} {kind}", **qa} for kind, qa in enumerate((answered, unanswered))],
        }
        for number in range(40)
    ]
    return {"version": "v2.0", "data": [{"title": "abc", "paragraphs": paragraphs}]}


def load_overridden(path: str, options: list[str]) -> Config:
    """Return the configuration of a file with command-line overrides."""
    config = runpy.run_path(str(REPOSITORY / path))["get_config"]()
    for option in options:
        name, _, value = option.removeprefix("--config.").partition("=")
        known = config
        for part in name.split(".")[:-1]:
            known = known[part]
        kind = type(known[name.rpartition(".")[2]])
        config.update_from_flattened_dict({name: value == "True" if kind is bool else kind(value)})
    return parse_config(config)


@pytest.fixture(scope="module")
def in_bucket(tmp_path_factory):
    """The environment of commands for which BUCKET is the bucket of a server."""
    with run_gcs_server(tmp_path_factory.mktemp("gcs")) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        fsspec.filesystem("gcs").clear_instance_cache()
        yield
        fsspec.filesystem("gcs").clear_instance_cache()


def test_commands_of_the_page_on_buckets(sandbox, in_bucket, s3_server, monkeypatch, capsys):
    """Each of them, in the order of the page."""
    monkeypatch.chdir(sandbox)
    monkeypatch.setenv("XDG_CACHE_HOME", str(sandbox / "cache"))
    more = {"prepare_data": SMALLER, "train": of_micro_size(), "generate": ["--max_tokens=4"]}
    tried = []
    for command in COMMANDS:
        if command.page != "docs/buckets.md" or command.arguments[1] != "-m" or "pip" in command.arguments:
            continue
        verb, options = command.arguments[2].removeprefix("birdie_jax."), list(command.arguments[3:])
        options = [one.replace("://BUCKET", f"://{BUCKET}") for one in options] + more.get(verb, [])
        if verb == "train":
            train(sandbox, *options)
        else:
            with parsed(verb, options, whole=True) as module:
                module.main([verb])
            assert capsys.readouterr().out
        tried.append(verb)
    assert tried == ["prepare_data", "train", "report", "generate", "export", "export"]
    for name in (
        *("gs://BUCKET/runs/tiny/report.html", "gs://BUCKET/exports/tiny/model.safetensors"),
        "s3://BUCKET/exports/tiny/model.safetensors",
    ):
        assert exists(make_path(name.replace("BUCKET", BUCKET))), name


def test_a_report_is_written_to_s3(sandbox, s3_url, capsys):
    """Write the report of a run that was copied there."""
    for name in list_files(sandbox / "runs/tiny"):
        if not name.startswith("checkpoints"):
            upload(sandbox / "runs/tiny" / name, make_path(s3_url) / name)
    with parsed("report", [f"--workdir={s3_url}"], whole=True) as module:
        module.main(["report"])
    assert capsys.readouterr().out == f"{s3_url}/report.html\n"
    assert exists(f"{s3_url}/report.html")


def test_text_is_prepared(sandbox, monkeypatch, capsys):
    monkeypatch.chdir(sandbox)
    for page, options in shown("prepare_data"):
        if "--input=stdlib" not in options and "--output=/shared/pile" not in options:
            output = next(one for one in options if one.startswith("--output=")).removeprefix("--output=")
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(sandbox / output)
            given = any(one.startswith("--tokenizer=") for one in options)
            run_verb(page, "prepare_data", [*options, *SMALLER[given:]])
            assert f"in {output}" in capsys.readouterr().out
