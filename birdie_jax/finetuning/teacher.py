"""The teacher of a run: the model of another run, or of an exported folder."""

from dataclasses import replace
from typing import NamedTuple

import jax
from jaxtyping import PyTree

from birdie_jax.config import check_batches, check_config
from birdie_jax.engine.mesh import fitting_sharding
from birdie_jax.errors import ConfigError
from birdie_jax.interop.initialization import check_source, config_of_source, read_initial_parameters
from birdie_jax.models import LanguageModel, build_model
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.models.parameters import ParameterPolicy, parameter_policies
from birdie_jax.models.platforms import for_platform
from birdie_jax.models.registry import architecture_of
from birdie_jax.resolve import ResolvedRun

FIELD = "config.finetune.teacher.from"


class Teacher(NamedTuple):
    """A frozen model.

    Attributes:
        source: the path of its parameters.
        model: the model.
        policies: the policy of each parameter.
        params: shapes, types and shardings of its parameters, on the mesh of the run.
    """

    source: str
    model: LanguageModel
    policies: PyTree[ParameterPolicy]
    params: PyTree[jax.ShapeDtypeStruct]

    def read(self, tokenizer_sha256: str) -> tuple[PyTree[jax.Array], str]:
        """Return the parameters and a text about their origin.

        Raises:
            ConfigError: the teacher has another tokenizer, or lacks a parameter.
            CheckpointError: its checkpoint is damaged or cannot be read.
            InteropError: a file of its folder is damaged.
        """
        found = read_initial_parameters(
            self.source, self.params, tokenizer_sha256, self.policies, field=FIELD
        )
        if found.new:
            lacking = ", ".join(f"{name} {shape}" for name, shape in list(found.new.items())[:3])
            raise ConfigError(
                f"{FIELD}: found {self.source}, which lacks {lacking}; allowed: a whole model"
            )
        return found.put_into(self.params), found.origin


def find_teacher(run: ResolvedRun) -> Teacher:
    """Return the teacher of a run on the run's mesh; of its files, read only config.json.

    Raises:
        ConfigError: the checkpoint or folder does not exist, or its model cannot read the run's batches.
        InteropError: a folder's config.json cannot be used.
    """
    source, mesh = run.config.finetune.teacher.from_, run.mesh
    check_source(source, name_checkpoint=False, field=FIELD, fixed=True)
    config = for_platform(config_of_source(source).model, mesh.devices.flat[0].platform)
    what = ""
    if architecture_of(config).encoder or config.head:
        what = "a bidirectional encoder" if architecture_of(config).encoder else "a model with a head"
    elif not config.start_token:
        what = "a model of another program, without a start token between prompt and answer"
    if what:
        raise ConfigError(f"{FIELD}: found {source}, {what}; allowed: a model that predicts the next token")
    try:
        reads = replace(run.config, model=config)
        check_config(reads)
        check_batches(reads)
    except ConfigError as error:
        raise ConfigError(f"{FIELD}: found {source}, which cannot read these batches: {error}") from error
    model = build_model(config, run.vocab_size)
    policies = parameter_policies(model)
    params = jax.tree.map(
        lambda leaf, policy: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=fitting_sharding(mesh, policy.axes, leaf.shape)
        ),
        parameter_shapes(model),
        policies,
    )
    return Teacher(source, model, policies, params)
