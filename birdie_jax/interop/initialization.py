"""`init.from`: the parameters that a new run starts with, of another run or of an exported folder."""

from typing import NamedTuple

import jax
import numpy as np
from etils import epath
from jaxtyping import PyTree

from birdie_jax.config_errors import ConfigError
from birdie_jax.engine.checkpoint_format import named_leaves, step_folder
from birdie_jax.engine.stored_parameters import read_some_parameters
from birdie_jax.interop.model_folder import TOKENIZER, WEIGHTS, read_model
from birdie_jax.storage import exists, make_path
from birdie_jax.storage.workdir import Workdir
from birdie_jax.text import Tokenizer

_ALLOWED = (
    "the workdir of a run, the folder of one of its checkpoints (<workdir>/checkpoints/<step>), or a "
    "folder that birdie_jax.export wrote"
)


class InitialParameters(NamedTuple):
    """Parameters by name, and where they are from.

    Attributes:
        origin: the folder and the step, in words.
        loaded: the parameters that the new run starts with, by name.
        left: what the source has besides: name -> why it was not taken.
        new: what the source does not give: name -> its shape in the new run.
    """

    origin: str
    loaded: dict[str, jax.Array]
    left: dict[str, str]
    new: dict[str, str]

    def table(self) -> str:
        """Return what was loaded, left and new, a line each."""
        size = sum(array.size for array in self.loaded.values())
        lines = [f"init.from: {self.origin}: loaded {len(self.loaded)} arrays, {size:,} parameters"]
        lines += [f"  loaded  {name}  {_shape(array)}" for name, array in self.loaded.items()]
        lines += [f"  left    {name}  {why}" for name, why in self.left.items()]
        lines += [f"  new     {name}  {shape}" for name, shape in self.new.items()]
        return "\n".join(lines)

    def put_into(self, params: PyTree[jax.Array]) -> PyTree[jax.Array]:
        """Return `params` with what was loaded in its place."""
        leaves = [self.loaded.get(name, leaf) for name, leaf in named_leaves(params).items()]
        return jax.tree.unflatten(jax.tree.structure(params), leaves)


def check_source(source: str, *, name_checkpoint: bool) -> str:
    """Check `config.init.from` before anything else is done; return it.

    Args:
        source: `config.init.from`.
        name_checkpoint: return the folder of the newest checkpoint in place of a workdir, so that several
            processes read the same one.

    Raises:
        ConfigError: the source is none of what is allowed.
    """
    folder = make_path(source)
    if exists(folder / WEIGHTS):
        return source
    root, step = _run_of(folder)
    workdir = Workdir(root)
    steps = workdir.saved_steps()
    if not steps or (step is not None and step not in steps):
        raise ConfigError(
            f"config.init.from: found {folder}, which holds no checkpoint; allowed: {_ALLOWED}"
        )
    return str(workdir.checkpoints / step_folder(step or steps[-1])) if name_checkpoint else source


def tokenizer_of_source(source: str) -> Tokenizer:
    """Return the tokenizer that the parameters of `config.init.from` were trained with.

    Raises:
        DataError: it cannot be read.
    """
    folder = make_path(source)
    root = folder if exists(folder / WEIGHTS) else _run_of(folder)[0]
    return Tokenizer(str(root / TOKENIZER))


def read_initial_parameters(
    source: str, abstract_params: PyTree[jax.ShapeDtypeStruct], tokenizer_sha256: str
) -> InitialParameters:
    """Read what `source` has of the parameters of a new run, by their names.

    A parameter that the source lacks, or has in another shape, stays new.

    Args:
        source: `config.init.from`.
        abstract_params: shapes, types and shardings of the new run's parameters.
        tokenizer_sha256: the identity of the new run's tokenizer.

    Raises:
        ConfigError: the source is none of what is allowed, has another tokenizer, or gives no parameter.
        CheckpointError: a checkpoint of it is damaged or cannot be read.
        InteropError: a file of an exported folder is damaged or does not fit the others.
    """
    folder = make_path(source)
    if exists(folder / WEIGHTS):
        origin, loaded, found = _read_export(folder, abstract_params, tokenizer_sha256)
    else:
        origin, loaded, found = _read_checkpoint(folder, abstract_params, tokenizer_sha256)
    if not loaded:
        raise ConfigError(
            f"config.init.from: found {source}: none of its parameters has name and shape of one of this "
            "model's; allowed: a model of the same kind"
        )
    wanted = named_leaves(abstract_params)
    left = {
        name: f"{shape}, this model has {_shape(wanted[name])}"
        if name in wanted
        else f"{shape}, not in this model"
        for name, shape in found.items()
        if name not in loaded
    }
    new = {name: _shape(leaf) for name, leaf in wanted.items() if name not in loaded}
    return InitialParameters(origin, loaded, left, new)


def _read_export(
    folder: epath.Path, abstract_params: PyTree[jax.ShapeDtypeStruct], tokenizer_sha256: str
) -> tuple[str, dict[str, jax.Array], dict[str, str]]:
    read = read_model(folder)
    _check_tokenizer(folder, read.tokenizer.sha256, tokenizer_sha256)
    found = named_leaves(read.params)
    loaded = {
        name: _put(found[name], leaf)
        for name, leaf in named_leaves(abstract_params).items()
        if name in found and found[name].shape == leaf.shape
    }
    return f"{folder} step {read.step}", loaded, {name: _shape(leaf) for name, leaf in found.items()}


def _read_checkpoint(
    folder: epath.Path, abstract_params: PyTree[jax.ShapeDtypeStruct], tokenizer_sha256: str
) -> tuple[str, dict[str, jax.Array], dict[str, str]]:
    root, step = _run_of(folder)
    workdir = Workdir(root)
    _check_tokenizer(root, Tokenizer(str(workdir.tokenizer)).sha256, tokenizer_sha256)
    loaded, saved, found_step = read_some_parameters(workdir, abstract_params, step)
    shapes = {name: f"{array.dtype}{list(array.shape)}" for name, array in saved.items()}
    return f"{root} step {found_step}", loaded, shapes


def _run_of(folder: epath.Path) -> tuple[epath.Path, int | None]:
    """Return the workdir of a folder, and the step if the folder is one of its checkpoints."""
    if folder.name.isdigit() and folder.parent.name == Workdir("").checkpoints.name:
        return folder.parent.parent, int(folder.name)
    return folder, None


def _check_tokenizer(folder: epath.Path, found: str, wanted: str) -> None:
    if found != wanted:
        raise ConfigError(
            f"config.init.from: {folder} was trained with another tokenizer than this run's; allowed: "
            f"config.data.tokenizer={folder}/tokenizer.model, or text prepared with that tokenizer"
        )


def _put(array: np.ndarray, wanted: jax.ShapeDtypeStruct) -> jax.Array:
    array = np.asarray(array, wanted.dtype)
    return jax.make_array_from_callback(array.shape, wanted.sharding, lambda index: array[index])


def _shape(array: jax.Array | jax.ShapeDtypeStruct | np.ndarray) -> str:
    return f"{np.dtype(array.dtype).name}{list(array.shape)}"
