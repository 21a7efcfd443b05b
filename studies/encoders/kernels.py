"""Kernels of a run's state-space layers before and after fine-tuning (the paper's Figures 3 and 4)."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from matplotlib.figure import Figure

from birdie_jax.reporting.kernels import LayerKernels, draw_curves, draw_maps, layer_kernels
from birdie_jax.trained_model import model_of_workdir
from studies.encoders.plans import DECIDING, TITLES, Run

LENGTH = 128
PRETRAINED = "pretrained"
_DIGITS = 4
_SHOWN_OFFSETS = 11
_SHOWN_LAYERS = 3


def kernels_record(run: Run, workdirs: Mapping[str, Path]) -> dict[str, Any] | None:
    """Return the kernels of a run's checkpoints as plain JSON; None for a cell with attention.

    Args:
        run: the run.
        workdirs: the workdir of each checkpoint by a name for it.
    """
    if run.model not in DECIDING:
        return None
    record = {}
    for name, workdir in workdirs.items():
        kernels = layer_kernels(model_of_workdir(str(workdir)).params, LENGTH)
        record[name] = {way: _rounded(values) for way, values in kernels._asdict().items()}
    return record


def _rounded(kernels: Float32[np.ndarray, "layers heads length"]) -> list[list[list[float]]]:
    return np.asarray(kernels, np.float64).round(_DIGITS).tolist()


def kernel_figures(results: Mapping[Run, Mapping[str, Any]]) -> Iterator[tuple[str, Figure]]:
    """Yield names and figures: maps of each cell's first run, and curves of its most changed layers."""
    first: dict[str, Mapping[str, Any]] = {}
    for run, result in results.items():
        if result.get("kernels"):
            first.setdefault(run.model, result["kernels"])
    if not first:
        return
    found = {
        model: {name: _kernels(record) for name, record in records.items()}
        for model, records in first.items()
    }
    yield (
        "kernels",
        draw_maps(
            {
                f"{TITLES[model]}, {name}": LayerKernels(*(part[..., :_SHOWN_OFFSETS] for part in kernels))
                for model, by_name in found.items()
                for name, kernels in by_name.items()
            }
        ),
    )
    for model, by_name in found.items():
        yield f"kernels_{model}", draw_curves(by_name, _moved_most(by_name))


def _kernels(record: Mapping[str, Any]) -> LayerKernels:
    return LayerKernels(*(np.asarray(record[way], np.float32) for way in LayerKernels._fields))


def _moved_most(by_name: Mapping[str, LayerKernels]) -> list[int]:
    """Return the layers with the largest difference between the first and the last checkpoint."""
    before, *_, after = by_name.values()
    moved = sum(np.abs(one - other).sum(axis=(1, 2)) for one, other in zip(before, after, strict=True))
    return sorted(np.argsort(moved)[-_SHOWN_LAYERS:].tolist())
