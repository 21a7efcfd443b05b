"""`init.from`: initial parameters of a new run from another run or an exported folder."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import jax
import numpy as np
from etils import epath
from jaxtyping import PyTree

from birdie_jax.config import Config, to_dict
from birdie_jax.engine.branch import Branch
from birdie_jax.engine.checkpoint_format import named_leaves, step_folder
from birdie_jax.engine.coordination import Processes
from birdie_jax.engine.stored_parameters import read_some_parameters, same_but_for
from birdie_jax.errors import ConfigError, shown
from birdie_jax.interop.model_folder import TOKENIZER, WEIGHTS, read_model, read_model_config
from birdie_jax.models.parameters import ParameterPolicy, resize_rows
from birdie_jax.saved_config import parse_saved_config, read_json
from birdie_jax.storage import exists, is_remote, make_path
from birdie_jax.storage.workdir import Workdir, differences, flat
from birdie_jax.text import Tokenizer

_ALLOWED = (
    "the workdir of a run, one of its checkpoints (<workdir>@<step> or <workdir>/checkpoints/<step>), or a "
    "folder that birdie_jax.export wrote"
)


_FIELD = "config.init.from"


class InitialParameters(NamedTuple):
    """Parameters by name, and their source.

    Attributes:
        origin: the folder and the step, in words.
        loaded: the parameters that the new run starts with, by name.
        left: the other arrays of the source: name -> why the run does not use it.
        new: the parameters that the source lacks: name -> shape in the new run.
        resized: the loaded tables with another number of rows in the source: name -> shape in the new
            run, and the method.
    """

    origin: str
    loaded: dict[str, jax.Array]
    left: dict[str, str]
    new: dict[str, str]
    resized: dict[str, str]

    def table(self) -> str:
        """Return a line for each loaded, left and new parameter."""
        size = sum(array.size for array in self.loaded.values())
        lines = [f"init.from: {self.origin}: loaded {len(self.loaded)} arrays, {size:,} parameters"]
        lines += [
            f"  resized {name}  {self.resized[name]}"
            if name in self.resized
            else f"  loaded  {name}  {_shape(array)}"
            for name, array in self.loaded.items()
        ]
        lines += [f"  left    {name}  {why}" for name, why in self.left.items()]
        lines += [f"  new     {name}  {shape}" for name, shape in self.new.items()]
        return "\n".join(lines)

    def put_into(self, params: PyTree[jax.Array]) -> PyTree[jax.Array]:
        """Return `params` with the loaded parameters filled in."""
        leaves = [self.loaded.get(name, leaf) for name, leaf in named_leaves(params).items()]
        return jax.tree.unflatten(jax.tree.structure(params), leaves)


def find_source(source: str, workdir: Workdir, processes: Processes) -> str:
    """Return the source of a run, the same in every process.

    If the run has a checkpoint, return `source` without a check.

    Args:
        source: `config.init.from`, or an empty string for new parameters.
        workdir: the folder of the run.
        processes: the processes of the run.

    Raises:
        ConfigError: as in `check_source`.
    """
    if not source or workdir.saved_steps():
        return source
    several = processes.count > 1
    return processes.broadcast_from_first(
        "init.from", lambda: check_source(source, name_checkpoint=several)
    )


def check_source(source: str, *, name_checkpoint: bool, field: str = _FIELD, fixed: bool = False) -> str:
    """Check `config.init.from` and return it.

    Args:
        source: `config.init.from`.
        name_checkpoint: return the folder of the newest checkpoint instead of a workdir, so all processes
            read the same checkpoint.
        field: the field with the source, for messages.
        fixed: whether to require a step for a workdir, because its newest checkpoint may change before the
            next read.

    Raises:
        ConfigError: the source is not allowed.
    """
    folder = make_path(source)
    if exists(folder / WEIGHTS):
        return source
    root, step = _run_of(folder)
    workdir = Workdir(root)
    steps = workdir.saved_steps()
    if not steps or (step is not None and step not in steps):
        raise ConfigError(f"{field}: found {folder}, which holds no checkpoint; allowed: {_ALLOWED}")
    if fixed and step is None:
        raise ConfigError(
            f"{field}: found {source}, a workdir without a step; allowed: {source}@{steps[-1]}, its newest "
            "checkpoint, another one, or an exported folder"
        )
    return str(workdir.checkpoints / step_folder(step or steps[-1])) if name_checkpoint else source


def find_branch(config: Config, source: str) -> Branch:
    """Return the start of a run with `config.init.optimizer`, and print its changes.

    The bandit restarts if one of its settings or the mixture differs.

    Args:
        config: the configuration of the run.
        source: the result of `find_source`.

    Raises:
        ConfigError: the source is an exported folder, which has no optimizer, or has another optimizer.
    """
    folder = make_path(source)
    if exists(folder / WEIGHTS):
        raise ConfigError(
            f"config.init.optimizer: found true with the exported folder {source}; allowed: with a run or "
            "one of its checkpoints, which have an optimizer"
        )
    root, step = _run_of(folder)
    workdir = Workdir(root)
    before, after = (flat(to_dict(one)) for one in (config_of_source(source), config))
    changed = [one for one in differences(before, after) if not one[0].startswith("init.")]
    for name, one, other in changed:
        if name == "optimizer.name":
            raise ConfigError(
                f"config.optimizer.name: found {shown(other)} with config.init.optimizer=true; allowed: "
                f"{shown(one)}, which the run has, or another optimizer with config.init.optimizer=false"
            )
    renewed = any(name.startswith(("bandit.", "objectives.")) for name, *_ in changed)
    branch = Branch(workdir, step or workdir.saved_steps()[-1], frozenset({"bandit"} if renewed else ()))
    if jax.process_index() == 0:
        lines = [f"init.from: {root} step {branch.step}: continues with its optimizer and data position"]
        lines += [f"  config.{name}: {shown(one)} -> {shown(other)}" for name, one, other in changed]
        lines += ["  the bandit starts anew"] if renewed else []
        print("\n".join(lines), flush=True)
    return branch


def tokenizer_of_source(source: str) -> Tokenizer:
    """Return the tokenizer of `config.init.from`.

    Raises:
        DataError: the tokenizer cannot be read.
    """
    return Tokenizer(str(_root_of(make_path(source)) / TOKENIZER))


def config_of_source(source: str) -> Config:
    """Return the configuration of the run that trained the parameters of `config.init.from`.

    Raises:
        ConfigError: config.json of a workdir is missing or invalid.
        InteropError: config.json of an exported folder is missing or invalid.
    """
    folder = make_path(source)
    if exists(folder / WEIGHTS):
        return read_model_config(folder)
    path = Workdir(_run_of(folder)[0]).config
    return parse_saved_config(read_json(path, _ALLOWED), path, importing=not is_remote(path))


def read_initial_parameters(
    source: str,
    abstract_params: PyTree[jax.ShapeDtypeStruct],
    tokenizer_sha256: str,
    policies: PyTree[ParameterPolicy],
    not_taken: Mapping[str, str] = MappingProxyType({}),
    *,
    field: str = _FIELD,
) -> InitialParameters:
    """Read the parameters of a new run from `source`, by name.

    A parameter that the source lacks, or has in another shape, stays new. `resize_rows` makes tables of
    positions, such as the learned positions of an encoder, longer or shorter.

    Args:
        source: `config.init.from`.
        abstract_params: shapes, types and shardings of the new run's parameters.
        tokenizer_sha256: the identity of the new run's tokenizer.
        policies: the policies of the new run's parameters.
        not_taken: path of a module with parameters that always stay new -> the reason.
        field: the field with the source, for messages.

    Raises:
        ConfigError: the source is not allowed, has another tokenizer, has no matching parameter, or
            has a table of positions that differs in more than its number of rows.
        CheckpointError: the checkpoint is damaged or cannot be read.
        InteropError: a file of an exported folder is damaged or does not match the others.
    """
    folder = make_path(source)
    wanted = named_leaves(abstract_params)
    row_axes = {
        # Arrays of scanned layers have an additional leading axis.
        name: wanted[name].ndim - len(policy.axes)
        for name, policy in named_leaves(policies).items()
        if policy.repeats_rows
    }
    read = _read_export if exists(folder / WEIGHTS) else _read_checkpoint
    if tokenizer_of_source(source).sha256 != tokenizer_sha256:
        root = _root_of(folder)
        raise ConfigError(
            f"{field}: {root} was trained with another tokenizer than this run's; allowed: "
            f"config.data.tokenizer={root}/tokenizer.model, or text prepared with that tokenizer"
        )
    origin, loaded, found = read(folder, abstract_params, row_axes)
    if not loaded:
        raise ConfigError(
            f"{field}: found {source}: no parameter matches one of this model in name and "
            "shape; allowed: a model of the same kind"
        )
    unwanted = {
        name: f"{found[name]}, {why}"
        for module, why in not_taken.items()
        for name in loaded
        if name.startswith(f"{module}/")
    }
    loaded = {name: array for name, array in loaded.items() if name not in unwanted}
    resized = {}
    for name, axis in row_axes.items():
        if name in found and name not in loaded:
            raise ConfigError(
                f"{field}: found {source}, whose {name} is {found[name]}; this model's is "
                f"{_shape(wanted[name])}; allowed: a table that differs only in its number of rows"
            )
        if name in loaded and (rows := loaded[name].shape[axis]) != wanted[name].shape[axis]:
            loaded[name] = _resize(loaded[name], wanted[name], axis)
            how = f"the {rows} rows repeated" if rows < wanted[name].shape[axis] else f"the first of {rows}"
            resized[name] = f"{_shape(wanted[name])}, {how}"
    left = {
        name: f"{shape}, this model has {_shape(wanted[name])}"
        if name in wanted
        else f"{shape}, not in this model"
        for name, shape in found.items()
        if name not in loaded
    } | unwanted
    new = {name: _shape(leaf) for name, leaf in wanted.items() if name not in loaded}
    return InitialParameters(origin, loaded, left, new, resized)


def _resize(table: jax.Array, wanted: jax.ShapeDtypeStruct, axis: int) -> jax.Array:
    resize = partial(resize_rows, rows=wanted.shape[axis], axis=axis)
    return jax.jit(resize, out_shardings=wanted.sharding)(table)


def _read_export(
    folder: epath.Path,
    abstract_params: PyTree[jax.ShapeDtypeStruct],
    row_axes: Mapping[str, int],
) -> tuple[str, dict[str, jax.Array], dict[str, str]]:
    read = read_model(folder)
    found = named_leaves(read.params)
    loaded = {
        name: _put(found[name], leaf)
        for name, leaf in named_leaves(abstract_params).items()
        if name in found and same_but_for(row_axes.get(name), found[name].shape, leaf.shape)
    }
    return f"{folder} step {read.step}", loaded, {name: _shape(leaf) for name, leaf in found.items()}


def _read_checkpoint(
    folder: epath.Path,
    abstract_params: PyTree[jax.ShapeDtypeStruct],
    row_axes: Mapping[str, int],
) -> tuple[str, dict[str, jax.Array], dict[str, str]]:
    root, step = _run_of(folder)
    workdir = Workdir(root)
    loaded, saved, found_step = read_some_parameters(workdir, abstract_params, step, free_axes=row_axes)
    shapes = {name: f"{array.dtype}{list(array.shape)}" for name, array in saved.items()}
    return f"{root} step {found_step}", loaded, shapes


def _root_of(folder: epath.Path) -> epath.Path:
    """Return the exported folder or the workdir of a source."""
    return folder if exists(folder / WEIGHTS) else _run_of(folder)[0]


def _run_of(folder: epath.Path) -> tuple[epath.Path, int | None]:
    """Return the workdir of a folder, and the step if the folder is one of its checkpoints."""
    if folder.name.isdigit() and folder.parent.name == Workdir("").checkpoints.name:
        return folder.parent.parent, int(folder.name)
    root, at, step = folder.name.rpartition("@")
    if root and at and step.isdecimal():
        return folder.parent / root, int(step)
    return folder, None


def _put(array: np.ndarray, wanted: jax.ShapeDtypeStruct) -> jax.Array:
    array = np.asarray(array, wanted.dtype)
    return jax.make_array_from_callback(array.shape, wanted.sharding, lambda index: array[index])


def _shape(array: jax.Array | jax.ShapeDtypeStruct | np.ndarray) -> str:
    return f"{np.dtype(array.dtype).name}{list(array.shape)}"
