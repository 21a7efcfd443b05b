"""The commands and the code of the page on `transformers`, in its order, on a tiny run."""

import os
import re
import subprocess
import sys

import pytest

from tests.pages.page_commands import REPOSITORY, commands_of_page
from tests.pages.test_tiny_runs import of_micro_size, train
from tests.pages.verbs import parsed
from tests.trained_workdirs import micro_config, write_workdir

pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
PAGE = "docs/transformers.md"
TEXT = (REPOSITORY / PAGE).read_text()
COMMANDS = [
    command.arguments[2:]
    for command in commands_of_page(PAGE, TEXT)
    if command.whole and command.arguments[2].startswith("birdie_jax.")
]


def run(command, capsys):
    verb = command[0].removeprefix("birdie_jax.")
    with parsed(verb, command[1:], whole=True) as module:
        module.main([verb])
    return capsys.readouterr().out


def test_commands_and_code_of_the_page(tmp_path, monkeypatch, capsys, torch_packages):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    (tmp_path / "runs").mkdir()
    write_workdir(tmp_path / "runs/tiny", micro_config())
    export, generate, import_model, training = COMMANDS
    assert run(export, capsys) == "runs/tiny step 5: exported to exported/tiny-hf\n"
    card = (tmp_path / "exported/tiny-hf/README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    code = "\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))
    packages = {"PYTHONPATH": torch_packages, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | packages, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert run(generate, capsys).strip()
    assert "gated_ssm_plus, 1 layers of 16, imported to imported/capitals" in run(import_model, capsys)
    said = train(tmp_path, *training[1:], *of_micro_size(), "--config.train.num_steps=1")
    assert "init.from: capitals-hf step 5: loaded" in said
    assert not [line for line in said.splitlines() if line.startswith("  new ")]
