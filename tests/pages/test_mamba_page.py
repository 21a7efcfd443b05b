"""The commands of the page on Mamba, in order, with a folder like the published ones for a tiny model.

Those that fine-tune and export Mamba-2 are the same as Mamba's.
"""

import re

import pytest
import safetensors.numpy

from tests.interop.huggingface_folders import write_random_folder
from tests.pages.exported_run import is_the_run
from tests.pages.page_commands import REPOSITORY, commands_of_page
from tests.pages.test_tiny_runs import train
from tests.pages.verbs import parsed

pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
PAGE = "docs/mamba.md"
COMMANDS = [
    command
    for command in commands_of_page(PAGE, (REPOSITORY / PAGE).read_text())
    if command.whole and command.arguments[2].startswith("birdie_jax.")
]


def test_commands_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    write_random_folder(tmp_path / "mamba-130m-hf", "mamba")
    write_random_folder(tmp_path / "mamba2-130m-hf", "mamba2")
    (tmp_path / "held-out.txt").write_text("The river of seven returns to the river.\n" * 3)
    said = {}
    for command in COMMANDS:
        verb, options = command.arguments[2].removeprefix("birdie_jax."), list(command.arguments[3:])
        if "--workdir=runs/mamba2_phonebook" in options:
            continue
        if verb == "train":
            options = [one.replace(":130m", ":tiny") for one in options] + [
                "--config.model.dtype=float32",
                "--config.train.num_steps=2",
                "--config.eval.tasks.phonebook.num_questions=2",
                "--config.finetune.stages.phonebook.rows=2",
            ]
            said.setdefault(verb, []).append(train(tmp_path, *options))
            continue
        with parsed(verb, [one.replace("=32", "=4") for one in options], whole=True) as module:
            module.main([verb])
        said.setdefault(verb, []).append(capsys.readouterr().out)
    assert list(said) == ["import_model", "generate", "evaluate", "train", "export"]
    assert "mamba, 2 layers of 64, imported to imported/mamba-130m" in said["import_model"][0]
    dense, pruned = said["generate"]
    assert dense.strip() and pruned.strip()
    assert re.search(r"perplexity +\d", said["evaluate"][0])
    assert not [line for each in said["train"] for line in each.splitlines() if line.startswith("  new ")]
    assert "mamba2, 2 layers of 64, imported to imported/mamba2-130m" in said["import_model"][1]
    is_the_run("exported/mamba-hf", "runs/mamba_phonebook")
    # `--model` in place of `--workdir`: an imported model returns to the format of its program.
    options = ["--model=imported/mamba-130m", "--format=transformers", "--output=exported/returned"]
    with parsed("export", options, whole=True) as module:
        module.main(["export"])
    returned, source = (
        safetensors.numpy.load_file(f"{folder}/model.safetensors")
        for folder in ("exported/returned", "mamba-130m-hf")
    )
    assert returned.keys() == source.keys()
    assert all(returned[name].tobytes() == tensor.tobytes() for name, tensor in source.items())
