"""What the pages on adding something register lives as long as the run: their commands, anywhere."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.docs.pages import fenced_blocks
from tests.docs.test_code_of_pages import PAGES, write_files_and_program
from tests.reader_environment import hide_in_processes

# A run of a second, of the page's own configuration.
SMALL = (
    "--config.train.num_steps=4",
    "--config.data.source=text.jsonl",
    "--config.data.vocab_size=300",
    "--config.data.cache_dir=data",
    "--config.model.layers=1",
    "--config.model.features=16",
    "--config.model.state=16",
    "--config.model.mlp_features=16",
    "--config.batching.rows=2",
    "--config.batching.length=128",
    "--config.eval.tasks={}",
)


def commands_of(page):
    blocks = [contents for _, contents in fenced_blocks(page.read_text())]
    return [line for block in blocks for line in re.findall(r"^python -m birdie_jax\.[^\n]+", block, re.M)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page(page, tmp_path):
    folder = tmp_path / "anywhere"
    folder.mkdir()
    write_files_and_program(page, folder)
    texts = (" ".join(str(number**2) for number in range(first, first + 300)) for first in range(60))
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "questions.jsonl").write_text(json.dumps({"prompt": "1 4 9", "reference": "9 4 1"}) + "\n")
    ours = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": hide_in_processes(tmp_path / "packages", page)}
    verbs = []
    for command in commands_of(page):
        words = shlex.split(command)
        verbs.append(words[2])
        more = SMALL if words[2] == "birdie_jax.train" else ()
        done = subprocess.run(
            [sys.executable, *words[1:], *more],
            check=False,
            cwd=folder,
            env={**os.environ, **ours},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
    assert "birdie_jax.train" in verbs
    assert not {"birdie_jax.generate", "birdie_jax.evaluate"}.isdisjoint(verbs)
