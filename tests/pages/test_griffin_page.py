"""The commands of the page on Griffin, with a folder like RecurrentGemma's for a tiny model."""

import re

import pytest

from tests.interop.huggingface_folders import write_random_folder
from tests.pages.exported_run import is_the_run
from tests.pages.page_commands import REPOSITORY, commands_of_page
from tests.pages.test_tiny_runs import train
from tests.pages.verbs import parsed

pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
PAGE = "docs/griffin.md"
COMMANDS = [
    command
    for command in commands_of_page(PAGE, (REPOSITORY / PAGE).read_text())
    if command.whole
    and command.arguments[2].startswith("birdie_jax.")
    # The first two commands train models of the quickstart's size.
    and not {"--workdir=runs/griffin", "--workdir=runs/hybrid"} & set(command.arguments)
]


def test_commands_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    write_random_folder(tmp_path / "recurrentgemma-2b", "recurrent_gemma")
    (tmp_path / "held-out.txt").write_text("The river of seven returns to the river.\n" * 3)
    said = {}
    for command in COMMANDS:
        verb, options = command.arguments[2].removeprefix("birdie_jax."), list(command.arguments[3:])
        if verb == "train":
            options = [one.replace(":2b", ":tiny") for one in options] + [
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
    assert "griffin, 3 layers of 64, imported to imported/recurrentgemma-2b" in said["import_model"][0]
    assert said["generate"][0].strip()
    assert re.search(r"perplexity +\d", said["evaluate"][0])
    assert not [line for line in said["train"][0].splitlines() if line.startswith("  new ")]
    is_the_run("exported/recurrentgemma-hf", "runs/recurrentgemma_phonebook")
