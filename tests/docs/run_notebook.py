"""Executes a notebook's code cells in order in one namespace, without Jupyter.

    python -m tests.docs.run_notebook docs/tour.ipynb [--write]

Printed text and shown figures become the outputs of cells; `--write` stores them in the notebook.
"""

import argparse
import base64
import contextlib
import io
import json
import os
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def execute(notebook: dict, name: str) -> None:
    """Execute the code cells of a notebook of format 4, and store their outputs in it.

    Raises:
        Exception: any exception of a cell; its traceback names the notebook and the number of the cell.
    """
    namespace = {"__name__": "__main__"}
    figures: list[bytes] = []
    plt.show = lambda *_, **__: figures.extend(_take_figures())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, start=1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"{name}, code cell {number}", "exec"), namespace)
        figures += _take_figures()
        cell["execution_count"] = number
        cell["outputs"] = _outputs(printed.getvalue(), figures)
        figures.clear()


def _take_figures() -> list[bytes]:
    images = []
    for number in plt.get_fignums():
        image = io.BytesIO()
        # Omit date and version, so equal figures give equal files.
        plt.figure(number).savefig(image, dpi=80, bbox_inches="tight", metadata={"Software": None})
        images.append(image.getvalue())
    plt.close("all")
    return images


def _outputs(printed: str, figures: list[bytes]) -> list[dict]:
    outputs: list[dict] = []
    if printed:
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": printed.splitlines(keepends=True)}
        )
    for image in figures:
        data = {"image/png": base64.b64encode(image).decode(), "text/plain": ["<Figure>"]}
        outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
    return outputs


def main() -> None:
    """Execute the notebook that the command line names."""
    parser = argparse.ArgumentParser(description="Executes a notebook's code cells.")
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--write", action="store_true", help="store the outputs in the notebook")
    options = parser.parse_args()
    path = options.notebook.resolve()
    notebook = json.loads(path.read_text())
    # Jupyter runs it here.
    os.chdir(path.parent)
    execute(notebook, path.name)
    if options.write:
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    else:
        json.dump([cell["outputs"] for cell in notebook["cells"] if "outputs" in cell], sys.stdout)


if __name__ == "__main__":
    main()
