"""A command overwrites neither its inputs nor files of a run, and checks its outputs before it runs."""

import json
import os
import re
from pathlib import Path

import pytest

from birdie_jax.errors import ConfigError
from birdie_jax.storage import write_whole
from birdie_jax.storage.outputs import Input, Output, check_outputs
from birdie_jax.storage.workdir import Workdir


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a text, a link to it, a run and an exported model, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    for name in ("text.jsonl", "data/a.txt", "run/config.json", "run/tokenizer.model"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(name)
    for name in ("config.json", "tokenizer.model", "model.safetensors"):
        Path("exported").mkdir(exist_ok=True)
        Path("exported", name).write_text(name)
    Path("link.jsonl").symlink_to("text.jsonl")
    Path("linked").symlink_to("data")
    Path("run_link").symlink_to("run")
    os.link("text.jsonl", "hard.jsonl")
    return tmp_path


def contents(folder):
    """Return every name below a folder, with what is in the files."""
    paths = sorted(folder.rglob("*"))
    return {path: path.read_bytes() if path.is_file() else None for path in paths}


def refusal(here, outputs, inputs=()):
    before = contents(here)
    with pytest.raises(ConfigError) as refused:
        check_outputs(outputs, inputs)
    assert contents(here) == before
    return str(refused.value)


@pytest.mark.parametrize("name", ["text.jsonl", "./data/../text.jsonl", "link.jsonl", "hard.jsonl", "{}"])
@pytest.mark.parametrize("read", ["text.jsonl", "link.jsonl", "*.jsonl", "../*/text.jsonl"])
def test_an_input_is_not_overwritten(here, name, read):
    name = name.format(here / "text.jsonl")
    for kind in ("file", "lines"):
        said = refusal(here, [Output("--answers", name, kind)], [Input("--prompt_file", read)])
        assert said == f"--answers={name}: is what --prompt_file reads; allowed: another name"
    said = refusal(here, [Output("--out", ".", "folder", (name,))], [Input("--text", read)])
    assert said == "--out=.: is what --text reads; allowed: another name"
    # The name that a file has until it is whole.
    os.rename("text.jsonl", "a.partial")
    said = refusal(here, [Output("--output", "a", "new folder")], [Input("--model", here / "a.partial")])
    assert said == "--output=a: is what --model reads; allowed: another name"


def test_a_folder_that_is_read_gets_no_file(here):
    for folder, name in (("data", "linked/new.txt"), ("linked", here / "data/deep/new.txt")):
        said = refusal(here, [Output("--output", name)], [Input("--text", folder, all_files=True)])
        assert said.startswith(f"--output={name}: is in the folder {folder}, which --text reads; allowed: ")
    # A model's folder is not read for whatever is in it.
    check_outputs([Output("--json", "exported/new.json")], [Input("--model", "exported")])


def test_a_device_is_read_and_written(here):
    check_outputs([Output("--output", "/dev/null", "lines")], [Input("--prompt_file", "/dev/null")])


@pytest.mark.parametrize("other", ["a.json", "./a.json", "missing/../a.json", "data/../a.json", "to_a"])
def test_two_outputs_are_two_files(here, other):
    Path("to_a").symlink_to("a.json")
    if other.startswith("missing"):
        Path("missing").mkdir()
    said = refusal(here, [Output("--json", "a.json"), Output("--answers", other)])
    assert said == f"--answers={other}: is what --json writes too; allowed: another name"


@pytest.mark.parametrize("folder", ["run", "run_link", "exported"])
@pytest.mark.parametrize("name", sorted(Workdir("").names() | {"model.safetensors"}))
def test_the_names_of_a_run_are_its_own(here, folder, name):
    for path in (f"{folder}/{name}", f"./{folder}/{name}/deeper/a.json"):
        said = refusal(here, [Output("--json", path)])
        assert said.startswith(f"--json={path}: is a file of the run or the exported model in {here}/")
    said = refusal(here, [Output("--output", folder, "folder", (name,))])
    assert said.startswith(f"--output={folder}: is a file of the run or the exported model in ")


def test_other_names_in_a_run_and_these_names_elsewhere_are_free(here):
    before = contents(here)
    for name in ("run/scores.json", "data/config.json", "report.html", "checkpoints"):
        check_outputs([Output("--json", name)])
    check_outputs([Output("--output", "run/pruned/now", "folder", ("index.html",))])
    check_outputs([Output("--output", "run/exported", "new folder")])
    assert contents(here) == before


REFUSED = [
    (("data",), "found a folder; allowed: a file"),
    (("/",), "found a folder; allowed: a file"),
    (("data", "lines"), "found a folder; allowed: a file"),
    (("pipe",), "found a pipe or device; allowed: a file"),
    (("pipe", "lines"), "found a named pipe; allowed: a file"),
    (("/dev/null",), "found a pipe or device; allowed: a file"),
    (("none/a",), "found no folder none; allowed: a file in one that is there"),
    (("none/a", "lines"), "found no folder none; allowed: a file in one that is there"),
    (("text.jsonl/a",), "found no folder text.jsonl; allowed: a file in one that is there"),
    (("x" * 250,), "cannot be written: File name too long"),
    (("x" * 300, "lines"), "cannot be written: File name too long"),
    (("data/a.txt", "folder"), "found the file data/a.txt; allowed: a folder, or a name that is free"),
    (("data/a.txt/b/c", "folder"), "found the file data/a.txt; allowed: a folder, or a name that is free"),
    (("deep/" + "x" * 300, "folder"), "cannot be written: File name too long"),
    (("data", "new folder"), "exists; allowed: the name of a new folder"),
    (("dangling", "new folder"), "exists; allowed: the name of a new folder"),
    (("gs://bucket/a", "lines"), "found a URL; allowed: a file of this machine"),
]


@pytest.mark.parametrize(("output", "said"), REFUSED)
def test_an_unwritable_output_is_refused_and_leaves_nothing(here, output, said):
    os.mkfifo("pipe")
    Path("dangling").symlink_to("nowhere")
    before = contents_without_pipe(here)
    with pytest.raises(ConfigError, match=re.escape(f"--output={output[0]}: {said}")):
        check_outputs([Output("--output", *output)])
    assert contents_without_pipe(here) == before


def contents_without_pipe(folder):
    return sorted(folder.rglob("*"))


def test_a_folder_in_the_place_of_a_file_below_is_named(here):
    Path("out/table.txt").mkdir(parents=True)
    said = refusal(here, [Output("--output", "out", "folder", ("index.html", "table.txt"))])
    assert said == "--output=out/table.txt: found a folder; allowed: a file"


def test_an_output_without_permission_is_refused(unprivileged_folder):
    data, text = unprivileged_folder / "data", unprivileged_folder / "text.jsonl"
    data.mkdir()
    text.write_text("")
    data.chmod(0o500)
    text.chmod(0o400)
    for output in ((data / "b",), (data / "b", "lines"), (data / "b", "folder"), (text, "lines")):
        said = refusal(unprivileged_folder, [Output("--output", *output)])
        assert "cannot be written: Permission denied" in said


def test_check_outputs_changes_no_file(here):
    Path("b.partial").write_text("of a run that was killed")
    before = contents(here)
    check_outputs(
        [
            *(Output("--json", "text.jsonl"), Output("--answers", "a.jsonl", "lines")),
            *(Output("--save_state", "b"), Output("--predictions", "c/d/e", "folder", ("f.tsv",))),
            *(Output("--output", "g/h", "new folder"), Output("--log", "/dev/null", "lines")),
        ]
    )
    assert contents(here) == before


def test_outputs_in_a_bucket(bucket_url):
    write_whole(f"{bucket_url}/run/config.json", json.dumps({}).encode())
    write_whole(f"{bucket_url}/run/tokenizer.model", b"x")
    text, missing = f"{bucket_url}/text.jsonl", "gs://no-such-bucket-of-anybody/a"
    write_whole(text, b"{}")
    for outputs, said in (
        ([Output("--json", text)], "is what --prompt_file reads"),
        ([Output("--json", f"{bucket_url}/a"), Output("--answers", f"{bucket_url}/a")], "writes too"),
        ([Output("--json", f"{bucket_url}/run/config.json")], "is a file of the run or"),
        ([Output("--output", f"{bucket_url}/run", "new folder")], "exists; allowed: the name of a new"),
        ([Output("--json", missing)], "there is no bucket no-such-bucket-of-anybody"),
        ([Output("--output", missing, "folder", ("b",))], "there is no bucket no-such-bucket-of-anybody"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            check_outputs(outputs, [Input("--prompt_file", text)])
    check_outputs([Output("--json", f"{bucket_url}/b"), Output("--output", f"{bucket_url}/c", "folder")])
