"""A trained model and everything needed to use it, from a run's workdir or an exported folder."""

from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging
from etils import epath
from jax.sharding import SingleDeviceSharding

from birdie_jax.config import Config
from birdie_jax.engine.stored_parameters import restore_parameters
from birdie_jax.generation import choose_arm
from birdie_jax.interop import ModelIdentity, PromptForm, identify_model, read_model
from birdie_jax.models import LanguageModel, build_model
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.models.platforms import for_platform
from birdie_jax.models.registry import architecture_of
from birdie_jax.objectives import Arm
from birdie_jax.saved_config import parse_saved_config, read_json
from birdie_jax.storage import is_remote, make_path
from birdie_jax.storage.workdir import Workdir
from birdie_jax.tasks.evaluation import taught_arms
from birdie_jax.text import Tokenizer
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS, SEPARATOR, START


class TrainedModel(NamedTuple):
    """A model that a run has trained.

    Attributes:
        folder: the workdir, or the exported folder.
        step: the train step of the save.
        config: the configuration of the run.
        model: the model's architecture.
        params: the model's parameters, float32.
        tokenizer: the tokenizer of the run.
        arms: the objective arms that it was trained on.
        average: whether the parameters are an average over training.
    """

    folder: str
    step: int
    config: Config
    model: LanguageModel
    params: Any
    tokenizer: Tokenizer
    arms: tuple[Arm, ...]
    average: bool = False

    @property
    def name(self) -> str:
        """The folder, and whether the parameters are an average."""
        return f"{self.folder}, averaged parameters" if self.average else self.folder

    @property
    def origin(self) -> str:
        """The name and the step, in words."""
        return f"{self.name} step {self.step}"

    def identify(self) -> ModelIdentity:
        """Return the identity of the model, computed from all of its parameters."""
        return identify_model(self.config, self.params, self.tokenizer, origin=self.origin, step=self.step)


def model_of_workdir(
    workdir: epath.PathLike, step: int | None = None, *, average: bool = False
) -> TrainedModel:
    """Return the model of a run, at `step` or else at its newest whole checkpoint.

    The function reads only the parameters, onto this process's first device, for any mesh of the run.

    Args:
        workdir: the workdir of the run.
        step: the step of the checkpoint.
        average: whether to return the average of the parameters that the hook parameter_average keeps.

    Raises:
        ConfigError: config.json is missing or unusable.
        DataError: tokenizer.model is missing or unusable.
        CheckpointError: the checkpoint does not exist, is damaged, or has another architecture.
    """
    files = Workdir(workdir)
    config = parse_saved_config(
        read_json(files.config, "the workdir of a run"), files.config, importing=not is_remote(files.root)
    )
    arms = taught_arms(config)
    tokenizer = Tokenizer(str(files.tokenizer))
    model = _build_here(config, tokenizer.vocab_size)
    here = SingleDeviceSharding(jax.local_devices()[0])
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), parameter_shapes(model)
    )
    trained = restore_parameters(files, abstract, step, average=average)
    return TrainedModel(
        str(workdir),
        trained.step,
        config,
        model,
        trained.params,
        tokenizer,
        arms,
        average,
    )


def model_of_folder(folder: epath.PathLike) -> TrainedModel:
    """Return the model of an exported folder.

    Raises:
        InteropError: a file is missing or damaged, or does not match the others.
        ConfigError: its config.json describes an invalid mixture.
    """
    read = read_model(make_path(folder))
    model = _build_here(read.config, read.tokenizer.vocab_size)
    arms = taught_arms(read.config)
    # The parameters of an imported folder keep their own types.
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), read.params)
    return TrainedModel(str(folder), read.step, read.config, model, params, read.tokenizer, arms)


def prompt_form(config: Config) -> PromptForm:
    """Return the default format of prompts in `generate`.

    Raises:
        ConfigError: the configuration describes an invalid mixture.
    """
    model, arms = config.model, taught_arms(config)
    if architecture_of(model).encoder:
        objective = next((arm.objective for arm in arms if arm.objective.in_place), arms[0].objective)
        marker = () if objective.marker is None else (objective.marker,)
        return PromptForm(marker, (SEPARATOR,), (SEPARATOR,))
    if not model.start_token:
        return PromptForm((model.begin_token,) if model.begin_token else ())
    objective = choose_arm(arms, None).objective
    # The answers of some objectives may contain any special token of the context; allow all.
    answer = objective.answer_special_tokens(np.arange(NUM_SPECIAL_TOKENS, dtype=np.int32))
    if not objective.has_context:
        return PromptForm(before=(START,), answer=answer)
    marker = () if objective.marker is None else (objective.marker,)
    return PromptForm(marker, (START,), answer=answer)


def _build_here(config: Config, vocab_size: int) -> LanguageModel:
    """Return the model with implementations for this machine; warn if they differ from the run's."""
    model = for_platform(config.model, jax.default_backend())
    if model != config.model:
        logging.warning("the model was trained with implementations that this machine does not have")
    return build_model(model, vocab_size)
