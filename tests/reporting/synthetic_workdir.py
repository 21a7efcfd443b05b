"""Workdirs of runs that never happened, with curves like those of real ones."""

import itertools
import json
from pathlib import Path

import numpy as np

from birdie_jax.config import Config, to_dict

# Floors and speeds of the classes' losses: copying becomes nearly free, causal_lm stays hard.
CURVES = {
    "infilling": (1.9, 1.0),
    "autoencoding": (0.7, 1.4),
    "copying": (0.02, 3.0),
    "deshuffling": (1.1, 0.8),
    "selective_copying": (0.3, 0.35),
    "prefix_lm": (2.9, 1.0),
    "causal_lm": (3.0, 1.0),
}
TEXT = (
    "def split(text: str) -> list:\n    if a < b and c > d:\n        return text.split('&')  # <b>no</b>\n"
)


def paper_arms() -> list[dict]:
    """The 104 arms in 7 classes of the paper era."""
    arms = []
    for rate, width, length in itertools.product((0.05, 0.15, 0.5), (3, 8, 32), (256, 512, 1024, 2048)):
        if width != 3 or length == 256:
            arms.append(_arm("infilling", "span_corruption", rate=rate, mean_span=width, max_length=length))
    arms.pop()  # 27 combinations by the table, 26 arms by its count
    for rate, width, length, shuffled in itertools.product(
        (0.05, 0.15, 0.5), (3, 8, 32), (384, 768, 1536), (0, 1)
    ):
        objective = "full_span_corruption" + "_deshuffling" * shuffled
        arms.append(_arm("autoencoding", objective, rate=rate, mean_span=width, max_length=length))
    for low, high in ((128, 256), (512, 1024)):
        arms.append(_arm("copying", "copying", min_length=low, max_length=high))
    for rate, length in itertools.product((0.5, 1.0), (384, 768)):
        arms.append(_arm("deshuffling", "deshuffling", rate=rate, max_length=length))
    for spans, before, length in itertools.product((1, 2, 3, 4), (True, False), (768, 1536)):
        arms.append(
            _arm(
                "selective_copying", "selective_copying", spans=spans, query_first=before, max_length=length
            )
        )
    arms += [
        _arm("prefix_lm", "prefix_lm", max_length=2048),
        _arm("causal_lm", "causal_lm", max_length=2048),
    ]
    return arms


def tiny_arms() -> list[dict]:
    """Eight arms, most of them alone in their class."""
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
    seed: int = 0,
) -> Path:
    """Write a run of `steps` steps into `workdir` and return it."""
    rng = np.random.default_rng(seed)
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
    with open(workdir / "metrics.jsonl", "w") as file:
        for record in _records(
            rng, arms, steps=steps, log_every=log_every, decide_every=decide_every, policy=policy
        ):
            file.write(json.dumps(record) + "\n")
    return workdir


def _records(rng, arms, *, steps, log_every, decide_every, policy):
    names = [arm["name"] for arm in arms]
    floor, speed = np.array([CURVES[arm["group"]] for arm in arms]).T
    floor = floor * rng.uniform(0.8, 1.25, len(arms))
    weights = np.array([arm["weight"] for arm in arms])
    mixture = weights / weights.sum()
    practice, before = np.zeros(len(arms)), None
    for step in range(steps + 1):
        practice = practice + mixture * len(arms)
        if step % log_every and step % decide_every and step != steps:
            continue
        loss = floor + (10.4 - floor) * (1 + speed * (0.4 * practice + 0.6 * step) / 60) ** -0.75
        record = {"step": step}
        if step % decide_every == 0:
            measured = loss * (1 + 0.01 * rng.standard_normal(len(arms)))
            for arm, name in enumerate(names):
                record[f"arm/{name}/validation_loss"] = round(measured[arm], 5)
                record[f"arm/{name}/validation_accuracy"] = round(np.exp(-measured[arm]), 5)
            if before is not None and policy != "fixed":
                change = (measured - before) / before
                reward = np.clip(-2000 * np.sqrt(measured * before) * change**3, -1, 1)
                for arm, name in enumerate(names):
                    record[f"arm/{name}/reward"] = round(reward[arm], 6)
                sharp = rng.uniform(0, 1, len(arms)) ** 4 * weights * (0.15 + np.clip(reward, 0, None))
                new = 0.4 * mixture + 0.6 * sharp / sharp.sum()
            before = measured
        if step and (step % log_every == 0 or step == steps):
            tokens = rng.poisson(mixture * 60) * 200
            noisy = loss * (1 + 0.04 * rng.standard_normal(len(arms)))
            mean = float((noisy * tokens).sum() / tokens.sum())
            record |= {
                "loss": mean,
                "accuracy": float(np.exp(-mean) + 0.02 * rng.standard_normal() ** 2),
                "tokens_per_second": 41_000 + 900 * rng.standard_normal() - 16_000 * (rng.uniform() < 0.01),
                "learning_rate": 1e-3
                * min(1, step / (0.1 * steps))
                * (0.5 + 0.5 * np.cos(np.pi * step / steps)),
                "grad_norm": float(4 * (1 + step / 50) ** -0.4 * np.exp(0.3 * rng.standard_normal())),
                "padding_share": 0.06 + 0.01 * rng.standard_normal(),
                "host_wait_seconds": float(np.exp(-6 + rng.standard_normal())),
                "tokens_seen": step * 16_384,
                "elapsed_seconds": step * 0.4,
            }
            for arm, name in enumerate(names):
                record[f"arm/{name}/probability"] = float(mixture[arm])
                record[f"arm/{name}/tokens"] = int(tokens[arm])
                if tokens[arm]:
                    record[f"arm/{name}/examples"] = int(tokens[arm] // 200)
                    record[f"arm/{name}/positions"] = int(tokens[arm] * 2)
                    record[f"arm/{name}/loss"] = round(noisy[arm], 5)
                    record[f"arm/{name}/accuracy"] = round(np.exp(-noisy[arm]), 5)
        if step % decide_every == 0 and any(key.endswith("/reward") for key in record):
            mixture = new
        yield record


def _arm(group: str, objective: str, **parameters) -> dict:
    name = "_".join([objective, *(f"{key}{value}" for key, value in parameters.items())])
    marker = {"copying": "[COPY]", "selective_copying": "[SELECTIVE_COPY]"}.get(
        objective, f"[{objective.upper()}]"
    )
    body = TEXT * (2 if group == "copying" else 25 if "2048" in name else 6)
    context = f"{marker}{body[:90]}[MASK_0]{body[120:]}[MASK_31]"
    target = f"[MASK_0]{body[90:120]}[MASK_31] and the rest of it[EOS]"
    if objective == "causal_lm":
        context, target = "", body
    examples = [{"context": context, "target": target}, {"context": context[::-1], "target": target}]
    return {
        "name": name,
        "group": group,
        "objective": objective,
        "parameters": parameters,
        "examples": examples,
    }
