"""The head that the stages of a run need, as a part of its model's configuration."""

import dataclasses
from collections.abc import Sequence

from birdie_jax.config import Config
from birdie_jax.errors import ConfigError
from birdie_jax.finetuning.stages import Stage
from birdie_jax.models.registry import architecture_of
from birdie_jax.models.task_head import TASK_HEAD, Head, head_type
from birdie_jax.tasks.head_task import trained_head

# [MASKED_LM] and [SEP]; normalization may leave a text without tokens.
_SHORTEST_SAMPLE = 2


def with_task_head(config: Config, stages: Sequence[Stage]) -> Config:
    """Return the configuration of a run with the head that its stages' tasks need.

    Raises:
        ConfigError: the stages need different heads, or another head than `config.model` has; an encoder
            has a task without a head; or the mesh divides the positions of a row.
    """
    if not stages:
        return config
    heads = {stage.where: stage.task.head for stage in stages}
    (first, head), *others = heads.items()
    for where, other in others:
        if other != head:
            named = head is not None and other is not None and other.form == head.form
            raise ConfigError(
                f"{where}.task: found one that needs {_described(other, named)}; allowed: what {first} "
                f"needs, {_described(head, named)}: all stages of a run have one head"
            )
    wanted = head.form if head is not None else ("", "", 0)
    for path, allowed in zip(("head", "head_name", "head_outputs"), wanted, strict=True):
        found = getattr(config.model, path)
        if found and found != allowed:
            default = "''" if isinstance(found, str) else "0"
            own = f", or {allowed!r}, which {first} needs" if allowed else f": {first} needs no head"
            raise ConfigError(f"config.model.{path}: found {found!r}; allowed: {default}{own}")
    if head is None:
        if architecture_of(config.model).encoder:
            raise ConfigError(
                f"{first}.task: found {stages[0].task.name}, which generates text, and config.model.name "
                f"= {config.model.name!r}, a bidirectional encoder, which cannot; allowed: a task with a "
                "head, such as glue"
            )
        return config
    if config.mesh.sequence != 1:
        raise ConfigError(
            f"config.mesh.sequence: found {config.mesh.sequence}; allowed: 1: the head of {first} reads "
            "whole samples"
        )
    model = dataclasses.replace(
        config.model, head=head.kind, head_name=head.name, head_outputs=head.outputs
    )
    return dataclasses.replace(config, model=model)


def maps_of_other_classes(config: Config, source: Config) -> dict[str, str]:
    """Return the last map of a run's head, if the source run's head has other classes.

    Args:
        config: the configuration of the run, with its head.
        source: the configuration of the source run.

    Returns:
        The path of the map's parameters -> the reason to initialize them; empty if they are reused.
    """
    head, before = trained_head(config), trained_head(source)
    if head is None or before is None or head.name != before.name or not head.has_other_classes(before):
        return {}
    why = f"for the classes {', '.join(before.classes)}; this model's are {', '.join(head.classes)}"
    return {f"{TASK_HEAD}/{head.name}": why}


def max_samples(config: Config, stage: Stage) -> int:
    """Return the maximum number of samples in a row of a stage.

    Args:
        config: the configuration of a run, with its head.
        stage: one of its stages.
    """
    group = config.model.head_outputs if head_type(config.model).grouped else 1
    if not stage.pack:
        return group
    spacing = config.batching.spacing
    fitting = (stage.length + spacing) // (_SHORTEST_SAMPLE + spacing)
    return max(fitting // group, 1) * group


def _described(head: Head | None, with_classes: bool) -> str:
    if head is None:
        return "no head"
    classes = f" ({', '.join(head.classes)})" if with_classes else ""
    return f"the head {head.name}: {head.kind}, {head.outputs} outputs{classes}"
