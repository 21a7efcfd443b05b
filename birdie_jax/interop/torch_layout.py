"""The names and axes of a model's tensors in the PyTorch code of torch_models/.

The names follow `tensor_names`, with the prefix `model.` except for the head. A kernel becomes a weight
with its last two axes swapped, outputs first, as in `torch.nn.Linear`.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from birdie_jax.interop.huggingface_tensors import open_tensors
from birdie_jax.models.task_head import POOLER, TASK_HEAD

# Replacements for names that PyTorch does not allow or writes differently.
_PARTS = {"in": "up", "kernel": "weight", "scale": "weight"}
_TABLES = {"embedding", "position_embedding", "token_type_embedding"}
_OF_HEAD = {
    "head": "lm_head.weight",
    "scores_bias": "lm_head.bias",
    "head_transform": "lm_head.transform",
    "head_norm": "lm_head.norm",
}


def torch_name(name: str) -> str:
    """Return the PyTorch name of a tensor, from its name in `tensor_names`."""
    first, *rest = name.split(".")
    if first == TASK_HEAD:
        # In this project the last map has the name of its task.
        owner = POOLER if rest[0] == POOLER else "classifier"
        return ".".join([owner, *(_PARTS.get(part, part) for part in rest[1:])])
    place = [_OF_HEAD[first]] if first in _OF_HEAD else ["model", first]
    if first in _TABLES:
        return ".".join([*place, "weight"])
    return ".".join([*place, *(_PARTS.get(part, part) for part in rest)])


def to_torch(named: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert the tensors of `name_parameters` to PyTorch names and axes."""
    return {
        torch_name(name): np.swapaxes(tensor, -1, -2) if name.endswith(".kernel") else tensor
        for name, tensor in named.items()
    }


def read_torch_tensors(
    folder: Path, shapes: Mapping[str, tuple[int, ...]], described_by: str
) -> dict[str, np.ndarray]:
    """Read the tensors of a folder, from one file or from shards, by the names of `tensor_names`.

    Args:
        folder: the folder, on this machine.
        shapes: name -> shape of every tensor of the model.
        described_by: the source of the shapes, for messages.

    Raises:
        InteropError: a file is missing or damaged, or contains other tensors.
    """
    theirs = {
        torch_name(name): (*shape[:-2], shape[-1], shape[-2]) if name.endswith(".kernel") else shape
        for name, shape in shapes.items()
    }
    with open_tensors(folder) as stored:
        stored.check(theirs, described_by)
        read = {name: stored.read(torch_name(name)) for name in shapes}
    return {
        name: np.swapaxes(tensor, -1, -2) if name.endswith(".kernel") else tensor
        for name, tensor in read.items()
    }
