"""The pre-training of a run: its configuration, its command and its record."""

import json
import runpy
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_collections

from birdie_jax.errors import ConfigError
from birdie_jax.metric_names import EARNED_REWARD, PREDICTED_REWARD, arm_metric
from birdie_jax.models import model_names
from studies.retrieval.plans import PROCEDURES, Run, Variant
from studies.retrieval.scales import SCALES
from studies.verbs import REPOSITORY, Command
from studies.workdirs import read_metric_lines, training_record

CONFIG_FILE = "studies/retrieval/config.py"
# A fixed mixture has decisions only for the validation losses. A schedule can change at each twentieth of
# the run.
_DECISIONS_WITHOUT_A_BANDIT = {"fixed": 4, "staged": 20}
_CURVE_POINTS = 100
_NO_RATE = 1e-30
_DIGITS = 5
_REWARDS = (PREDICTED_REWARD, EARNED_REWARD)


def pretraining_config(run: Run) -> ml_collections.ConfigDict:
    """Return the configuration of a run's pre-training.

    Raises:
        ConfigError: the model or the procedure is unknown.
    """
    if run.procedure not in PROCEDURES:
        raise ConfigError(f"procedure {run.procedure!r} is unknown; allowed: {', '.join(PROCEDURES)}")
    scale, procedure = SCALES[run.scale], PROCEDURES[run.procedure]
    variant = scale.variants.get(run.model, Variant(run.model, {}))
    if variant.model not in model_names():
        allowed = ", ".join((*scale.variants, *model_names()))
        raise ConfigError(f"model {run.model!r} is unknown; allowed: {allowed}")
    preset = REPOSITORY / "configs" / scale.preset
    config = runpy.run_path(str(preset))["get_config"](variant.model)
    config.update(scale.changes)
    config.model.update(variant.changes)
    config.seed = run.seed
    config.data.vocab_size = scale.pieces
    config.data.validation_fraction = scale.validation_fraction
    config.objectives.mixture = procedure.mixture or scale.mixture
    config.model.bidirectional = procedure.bidirectional
    policy = procedure.policy or ("staged" if scale.stages else "fixed")
    config.bandit.policy = policy
    config.bandit.reward = procedure.reward
    if policy == "staged":
        config.bandit.stages = scale.stages
    for name, value in procedure.settings.items():
        section, _, of_section = name.partition(".")
        config[section][of_section] = value
    if scale.pretraining_tokens:
        positions = scale.pretraining_tokens
        if procedure.budget == "language targets":
            positions = scale.language_positions
        if procedure.budget == "cost of steering":
            positions = scale.steering_positions
        config.train.num_steps = -(-positions // (config.batching.rows * config.batching.length))
    if procedure.budget == "none":
        # A run requires a step. At this rate it changes no parameter.
        config.train.num_steps = 1
        config.optimizer.learning_rate = config.optimizer.final_learning_rate = _NO_RATE
    if policy in _DECISIONS_WITHOUT_A_BANDIT:
        decisions = _DECISIONS_WITHOUT_A_BANDIT[policy]
        config.bandit.every_steps = max(1, config.train.num_steps // decisions)
    elif scale.decisions:
        config.bandit.every_steps = max(1, config.train.num_steps // scale.decisions)
    return config


def pretraining_command(run: Run, text: Path | str, workdir: Path | str) -> Command:
    """Return the command that pre-trains a run on prepared text."""
    variant = f"{run.scale},{run.model},{run.procedure},{run.seed}"
    return Command(
        "train",
        (
            f"--config={CONFIG_FILE}:{variant}",
            f"--config.data.prepared={text}",
            f"--workdir={workdir}",
        ),
    )


def pretraining_record(workdir: Path) -> dict[str, Any]:
    """Return the record of a finished pre-training, as plain JSON.

    It has the losses of at most 199 steps and the last validation loss of every arm. For each decision, it
    has the probability of each class of arms, the validation loss and the reward of each arm, and the
    predicted and earned reward of the mixture if the policy predicts one.
    """
    arms = json.loads((workdir / "arms.json").read_text())
    groups = {arm["name"]: arm["group"] for arm in arms}
    decisions, validation = [], {}
    for line in read_metric_lines(workdir):
        losses, rewards = (
            {arm: line[name] for arm in groups if (name := arm_metric(arm, metric)) in line}
            for metric in ("validation_loss", "reward")
        )
        validation |= losses
        of_group: dict[str, float] = defaultdict(float)
        for arm, group in groups.items():
            if (name := arm_metric(arm, "probability")) in line:
                of_group[group] += line[name]
        if of_group:
            decisions.append(
                {
                    "step": line["step"],
                    "probabilities": dict(of_group),
                    "validation_losses": _rounded(losses),
                    "rewards": _rounded(rewards),
                    **_rounded({name: line[name] for name in _REWARDS if name in line}),
                }
            )
    record = training_record(workdir, lambda _: False)
    config, curve = record["config"], record["losses"]
    return {
        "config": config,
        "positions": config["train"]["num_steps"]
        * config["batching"]["rows"]
        * config["batching"]["length"],
        "summary": record["summary"],
        "losses": curve[:: max(1, len(curve) // _CURVE_POINTS)],
        "validation_losses": validation,
        "mixture": decisions,
    }


def rewards_of(result: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Return the predicted and the earned reward of each mixture; without a critic, none is predicted."""
    # A mixture is predicted when it is chosen, and has earned its reward at the next decision.
    decisions = result["pretraining"].get("mixture", [])
    predicted, earned = (
        [decision[name] for decision in decisions if name in decision] for name in _REWARDS
    )
    return predicted, earned


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, _DIGITS) for name, value in values.items()}
