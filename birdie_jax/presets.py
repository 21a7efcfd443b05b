"""Code that the files in configs/ share. They are loaded by path and cannot import each other."""

import runpy
from collections.abc import Sequence
from pathlib import Path

import ml_collections

from birdie_jax.errors import ConfigError, nearest_first
from birdie_jax.models.registry import language_model_names

SIZES = {"1_4b": "birdie_1_4b.py", "400m": "birdie_400m.py", "110m": "birdie_110m.py", "tiny": "tiny.py"}
# The suffix of a variant with the paper's batch.
PAPER = ",paper"


def choose_variant(variant: str, allowed: Sequence[str], suffix: str = "") -> str:
    """Return `variant`, or the first of `allowed` if it is empty.

    Args:
        variant: the variant.
        allowed: the variants.
        suffix: the suffix that each variant accepts, for the message.

    Raises:
        ConfigError: `variant` is not allowed.
    """
    if variant and variant not in allowed:
        names = nearest_first(variant, allowed)
        more = f"; each also with {suffix}" if suffix else ""
        raise ConfigError(f"config variant {variant!r} is unknown; allowed: {names}{more}")
    return variant or allowed[0]


def split_paper(variant: str) -> tuple[str, bool]:
    """Return a variant without `paper`, and whether it had `paper`: ("hawk", True) for "hawk,paper".

    The paper trained on 20 GPUs, which divide its 520 rows. The variant `paper` of a preset has that batch.
    """
    parts = variant.split(",")
    rest = [part for part in parts if part != "paper"]
    return ",".join(rest), len(rest) < len(parts)


def set_batch(config: ml_collections.ConfigDict, paper: bool) -> None:
    """Set the rows of a batch of 1M tokens, and the number of parts of a step.

    Args:
        config: the configuration to change.
        paper: whether to use the paper's batch, 520 rows in 2 parts, for 20, 10, 5 or 4 devices. Otherwise
            the batch has 512 rows, for any power of two of devices, and the program chooses the parts.
    """
    batching = {"length": 2048, "rows": 520 if paper else 512}
    config.update({"batching": batching, "train": {"accumulation_steps": 2 if paper else 0}})


def set_encoder_fine_tuning(
    config: ml_collections.ConfigDict, model: str, learning_rate: float, steps: int
) -> None:
    """Set the fields for fine-tuning an encoder on examples with labels.

    Warm-up, schedule and weight decay come from the grid of "Pretraining Without Attention" (table 7).
    Betas, epsilon, dropout and the lack of clipping come from its published code.

    Args:
        config: the configuration to change; its stages end the run.
        model: the name of the model; attention has its own dropout.
        learning_rate: the peak learning rate, after the first tenth of the steps.
        steps: the optimizer steps of the stages for the sizes of the published data sets.
    """
    dropout = {"dropout": 0.1 if model == "stack_attention" else 0.0, "encoder": {"embedding_dropout": 0.1}}
    optimizer = {
        "learning_rate": learning_rate,
        "final_learning_rate": 0.0,
        "warmup_steps": steps // 10,
        "schedule": "linear",
        "beta2": 0.999,
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        "clip_norm": 0.0,
    }
    # 0 means all steps of the stages.
    run = {"train": {"num_steps": 0}, "checkpoint": {"every_steps": 500}}
    config.update({"model": dropout, "optimizer": optimizer, **run})


def choose_model(variant: str, suffix: str = "") -> str:
    """Return the language model that `variant` names, or gated_ssm_plus if it is empty."""
    return choose_variant(variant, language_model_names(), suffix)


def gated_ssm_of_size(config_file: str, variant: str) -> ml_collections.ConfigDict:
    """Return the Gated SSM configuration of a size from the presets next to `config_file`.

    Args:
        config_file: the path of a file in configs/, its `__file__`.
        variant: 1_4b, 400m, 110m or tiny; empty = 1_4b; ",paper" (not tiny) selects the paper's batch.

    Raises:
        ConfigError: the size is unknown.
    """
    size, paper = split_paper(variant)
    preset = Path(config_file).with_name(SIZES[choose_variant(size, tuple(SIZES), f"{PAPER} (not tiny)")])
    return runpy.run_path(str(preset))["get_config"]("gated_ssm,paper" if paper else "gated_ssm")
