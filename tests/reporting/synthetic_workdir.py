"""Synthetic workdirs, with losses that fall like those of real runs."""

import dataclasses
import json
from pathlib import Path

import numpy as np

from birdie_jax.config import Config, to_dict
from birdie_jax.objectives import make_mixture

TEXT = (
    "def split(text: str) -> list:\n    if a < b and c > d:\n        return text.split('&')  # <b>no</b>\n"
)


def paper_arms() -> list[dict]:
    """The 104 arms in 7 classes of the paper."""
    return [
        _arm(arm.group, arm.objective.name, arm.name, **dataclasses.asdict(arm.objective))
        for arm in make_mixture("birdie", 2048).arms
    ]


def tiny_arms() -> list[dict]:
    """Eight arms; most are the only arm of their class."""
    return [
        _arm("infilling", "span_corruption", rate=0.15, mean_span=3),
        _arm("autoencoding", "full_span_corruption", rate=0.15, mean_span=3),
        _arm("autoencoding", "full_span_corruption_deshuffling", rate=0.15, mean_span=3),
        _arm("copying", "copying", max_length=128),
        _arm("deshuffling", "deshuffling", rate=0.5),
        _arm("selective_copying", "selective_copying", spans=2),
        _arm("prefix_lm", "prefix_lm"),
        _arm("causal_lm", "causal_lm"),
    ]


def write_workdir(
    workdir: Path,
    arms: list[dict],
    *,
    steps: int,
    log_every: int,
    decide_every: int,
    planned: int | None = None,
    policy: str = "birdie",
    summary: dict | None = None,
) -> Path:
    """Write a run of `steps` steps into `workdir` and return it."""
    workdir.mkdir(parents=True, exist_ok=True)
    config = to_dict(Config())
    config["train"] |= {"num_steps": planned or steps, "log_every_steps": log_every}
    config["bandit"] |= {"policy": policy, "every_steps": decide_every}
    (workdir / "config.json").write_text(json.dumps(config))
    for arm in arms:
        arm["weight"] = 1 / sum(other["group"] == arm["group"] for other in arms)
    (workdir / "arms.json").write_text(json.dumps(arms))
    if summary is not None:
        (workdir / "summary.json").write_text(json.dumps(summary))
    lines = _records(arms, steps, log_every, decide_every, policy)
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return workdir


def _records(arms, steps, log_every, decide_every, policy):
    rng = np.random.default_rng(0)
    floor, speed = rng.uniform(0.1, 3, len(arms)), rng.uniform(0.3, 3, len(arms))
    weights = np.array([arm["weight"] for arm in arms])
    mixture, before = weights / weights.sum(), None
    for step in range(steps + 1):
        decides, logs = step % decide_every == 0, step and (step % log_every == 0 or step == steps)
        if not (decides or logs):
            continue
        loss = floor + (10.4 - floor) * (1 + speed * step / 60) ** -0.75
        loss *= 1 + 0.01 * rng.standard_normal(len(arms))
        record, of_arms, after = {"step": step}, {}, mixture
        if decides:
            of_arms |= {"validation_loss": loss, "validation_accuracy": np.exp(-loss)}
            if before is not None and policy != "fixed":
                of_arms["reward"] = np.clip(before - loss, -1, 1)
                after = 0.4 * mixture + 0.6 * rng.dirichlet(weights)
            before = loss
        if logs:
            tokens = rng.poisson(mixture * 60) * 200
            known = np.where(tokens > 0, loss, np.nan)
            mean = np.nansum(known * tokens) / tokens.sum()
            record |= {
                "loss": mean,
                "accuracy": np.exp(-mean),
                "tokens_per_second": 41_000 + 900 * rng.standard_normal(),
                "learning_rate": 1e-3 * (0.5 + 0.5 * np.cos(np.pi * step / steps)),
                "grad_norm": 4 * (1 + step / 50) ** -0.4,
                "padding_share": 0.06,
                "host_wait_seconds": np.exp(-6 + rng.standard_normal()),
                "tokens_seen": step * 16_384,
                "elapsed_seconds": step * 0.4,
            }
            of_arms |= {"probability": mixture, "tokens": tokens, "loss": known, "accuracy": np.exp(-known)}
            of_arms |= {"examples": known * 0 + tokens // 200, "positions": known * 0 + tokens * 2}
        for quantity, values in of_arms.items():
            named = zip((arm["name"] for arm in arms), values.tolist(), strict=True)
            record |= {f"arm/{name}/{quantity}": value for name, value in named if not np.isnan(value)}
        mixture = after
        yield record


def _arm(group: str, objective: str, name: str = "", **parameters) -> dict:
    name = name or "_".join([objective, *(f"{key}{value}" for key, value in parameters.items())])
    body, target = TEXT * 6, f"[MASK_0]{TEXT[90:]}[MASK_31] and the rest of it[EOS]"
    return {
        "name": name,
        "group": group,
        "objective": objective,
        "parameters": parameters,
        "examples": [
            {"context": f"[{objective.upper()}]{body}[MASK_31]", "target": target},
            {"context": "", "target": body},
        ],
    }
