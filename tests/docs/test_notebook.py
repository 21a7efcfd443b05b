"""The notebook of docs/ runs from first to last cell, and shows the results that its text states."""

import json
import os
import subprocess
import sys

from tests.docs.pages import REPOSITORY
from tests.quick_jit import QUICK_FLAGS

NOTEBOOK = REPOSITORY / "docs" / "tour.ipynb"


def kinds_and_text(outputs: list[list[dict]]) -> tuple[set[str], str]:
    flat = [output for cell in outputs for output in cell]
    kinds = {kind for output in flat for kind in output.get("data", {"stdout": None})}
    return kinds, "".join(line for output in flat for line in output.get("text", []))


def test_notebook_runs(tmp_path):
    ours = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": QUICK_FLAGS,
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": str(REPOSITORY),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.docs.run_notebook", str(NOTEBOOK)],
        cwd=REPOSITORY,
        check=False,
        env={**os.environ, **ours},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    kinds, text = kinds_and_text(json.loads(done.stdout))
    assert "image/png" in kinds
    assert "report.html" in text
    assert "[CONTEXT]" in text


def test_outputs_are_stored():
    notebook = json.loads(NOTEBOOK.read_text())
    outputs = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    kinds, text = kinds_and_text(outputs)
    assert "image/png" in kinds
    assert "[CONTEXT]" in text
    # The stored cells were executed in order.
    counts = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
