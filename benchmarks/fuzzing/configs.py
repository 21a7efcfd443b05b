"""Configurations: combinations of values that are valid for their own fields, and invalid values."""

import dataclasses
import math
import random
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from benchmarks.fuzzing.cases import Case
from benchmarks.fuzzing.mutations import HOSTILE_VALUES
from benchmarks.fuzzing.valid_files import CORPUS, EXPORTED, MICRO, MODEL, PREPARED, TASK_FILE, WORKDIR
from benchmarks.fuzzing.verbs import run_verb
from birdie_jax.bandit import POLICIES
from birdie_jax.models import model_names
from birdie_jax.objectives import OBJECTIVES
from birdie_jax.storage import Bounds
from birdie_jax.tasks import TASKS
from tests.config_fields import FIELDS, SECTIONS

_SMALL = (0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 32, 64, 100, 128, 256)
_SHARES = (0.0, 1e-6, 0.1, 0.25, 0.5, 0.9, 1.0, 1.5)
_WORDS = (
    "float32",
    "bfloat16",
    "xla",
    "pallas_tpu",
    "auto",
    "none",
    "full",
    "linear",
    "cosine",
    "tiny",
    "birdie",
)
_STAGE_FIELDS = {"length": int, "rows": int, "epochs": float, "steps": int, "skip_long": bool, "pack": bool}
_FILE = """
import runpy

import ml_collections

nan, inf = float("nan"), float("inf")
CHANGES = {changes}
REMOVED = {removed}


def get_config():
    config = runpy.run_path({base!r})["get_config"]({policy!r}).to_dict()
    for path, value in CHANGES:
        *sections, leaf = path.split(".")
        section = config
        for name in sections:
            if not isinstance(section.get(name), dict):
                section[name] = {{}}
            section = section[name]
        section[leaf] = value
    for path in REMOVED:
        *sections, leaf = path.split(".")
        section = config
        for name in sections:
            section = section.get(name, {{}}) if isinstance(section, dict) else {{}}
        if isinstance(section, dict):
            section.pop(leaf, None)
    return ml_collections.ConfigDict(config)
"""


def make_config_case(draws: random.Random, folder: Path, valid: Path) -> Case:
    """Return a case: a configuration with one to four changed fields, up to the step's compilation."""
    base = _base(draws, valid)
    changes = [_change(draws, valid) for _ in range(draws.choice((1, 1, 2, 3, 4)))]
    removed = [draws.choice([*FIELDS, *SECTIONS])] if draws.random() < 0.03 else []
    file = folder / "changed.py"
    policy = draws.choice((*POLICIES, "", ""))
    written = f"[{', '.join(f'({path!r}, {_written(value)})' for path, value in (*base, *changes))}]"
    text = _FILE.format(changes=written, removed=removed, base=str(MICRO), policy=policy)
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    # A valid field can conflict with another, so the refusal may name any of these fields.
    paths = [path for path, _ in (*base, *changes)] + removed
    names = ["bandit", *(part for path in paths for part in path.split("."))]
    verb = draws.choice(("train",) * 7 + ("check", "plan", "plan"))
    values = ", ".join(f"{path}={_written(value):.60}" for path, value in changes)
    what = f"{verb}, {policy or 'birdie'}: {values}"
    command = [f"--config={file}", f"--workdir={folder / 'run'}"]
    if verb == "check":
        command.append("--check")
    if verb == "plan":
        command = [f"--config={file}", f"--topology={draws.choice(('cpu:1', 'cpu:1', 'cpu:2'))}"]
    verb = "train" if verb == "check" else verb
    return Case(f"{what} {removed or ''}", names, lambda: run_verb(verb, command))


def _written(value: Any) -> str:
    """Return a value as Python source, with very large integers in hexadecimal."""
    if isinstance(value, int) and abs(value) > 10**300:
        return hex(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_written(inner)}' for key, inner in value.items())}}}"
    return f"[{', '.join(map(_written, value))}]" if isinstance(value, list) else repr(value)


def _base(draws: random.Random, valid: Path) -> list[tuple[str, Any]]:
    """Return the fields of a valid run: pre-training or fine-tuning."""
    base: list[tuple[str, Any]] = [("data.prepared", str(valid / PREPARED))]
    if draws.random() < 0.5:
        base.append(("model.name", draws.choice(model_names())))
    if draws.random() < 0.2:
        stage = {"task": "jsonl", "path": str(valid / TASK_FILE), "length": 64, "rows": 2, "steps": 3}
        base += [
            ("finetune.stages", {"1_questions": stage}),
            ("train.num_steps", 0),
            ("train.loss_chunk", 32),
        ]
        base.append(("init.from", str(valid / WORKDIR)))
    return base


def _change(draws: random.Random, valid: Path) -> tuple[str, Any]:
    """Return the path of a field, and a new value for it."""
    match draws.randrange(12):
        case 0:
            return "objectives.arms", {f"arm_{n}": _arm(draws) for n in range(draws.randint(1, 3))}
        case 1:
            return "eval.tasks", {draws.choice(("mine", "a b", "x" * 300)): _task(draws, valid)}
        case 2:
            stage = _task(draws, valid) | {
                name: plausible(draws, kind)
                for name, kind in _STAGE_FIELDS.items()
                if name in ("length", "rows") or draws.random() < 0.3
            }
            return "finetune.stages", {draws.choice(("1_book", "", "a/b", "a\nb")): stage}
        case 3:
            section = draws.choice((*SECTIONS, *SECTIONS, *FIELDS))
            return f"{section}.{draws.choice(('unknown', 'name', 'x' * 500))}", draws.choice(HOSTILE_VALUES)
        case 4:
            return draws.choice((*FIELDS, *SECTIONS)), draws.choice(HOSTILE_VALUES)
    path = draws.choice(tuple(FIELDS))
    paths = {
        **{"data.source": CORPUS, "data.tokenizer": MODEL, "data.prepared": PREPARED},
        **{"init.from": WORKDIR, "data.cache_dir": EXPORTED},
    }
    if path in paths:
        places = [str(valid / name) for name in (*paths.values(), "missing")]
        return path, draws.choice([*places, "", "/dev/zero", "/", "x" * 300, "a\tb", f"{places[4]}@4"])
    return path, plausible(draws, FIELDS[path])


def _arm(draws: random.Random) -> dict[str, Any]:
    objective = draws.choice(tuple(OBJECTIVES))
    kinds = typing.get_type_hints(OBJECTIVES[objective])
    fields = [field.name for field in dataclasses.fields(OBJECTIVES[objective])]
    arm = {name: plausible(draws, kinds[name]) for name in fields if draws.random() < 0.3}
    return (
        arm
        | {"objective": objective}
        | ({"weight": plausible(draws, float)} if draws.random() < 0.3 else {})
    )


def _task(draws: random.Random, valid: Path) -> dict[str, Any]:
    name = draws.choice(tuple(TASKS))
    kinds = typing.get_type_hints(TASKS[name], include_extras=True)
    task: dict[str, Any] = {"task": name}
    for field in dataclasses.fields(TASKS[name]):
        if field.name == "path":
            task["path"] = str(valid / draws.choice((TASK_FILE, TASK_FILE, CORPUS, "missing")))
        elif field.default is dataclasses.MISSING or draws.random() < 0.2:
            task[field.name] = plausible(draws, kinds[field.name])
    return task


def plausible(draws: random.Random, kind: Any) -> Any:
    """Return a value of a type: mostly within its bounds, often at a bound, sometimes of another type."""
    if draws.random() < 0.04:
        return draws.choice(HOSTILE_VALUES)
    rules: list[Any] = []
    if typing.get_origin(kind) is Annotated:
        kind, *rules = typing.get_args(kind)
    options = [option for option in typing.get_args(kind) if option is not type(None)]
    origin = typing.get_origin(kind)
    if origin is tuple or origin is list:
        return [plausible(draws, options[0]) for _ in range(draws.randint(0, 3))]
    if origin is typing.Literal:
        return draws.choice(options)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return {draws.choice(("a", "b", "")): draws.choice(HOSTILE_VALUES)}
    if options:
        return plausible(draws, draws.choice(options))
    if kind is bool:
        return draws.random() < 0.5
    if kind is str:
        return draws.choice((*_WORDS, *model_names(), *POLICIES, *OBJECTIVES, ""))
    return _number(draws, kind, rules)


def _number(draws: random.Random, kind: Any, rules: list[Any]) -> Any:
    ends: list[Any] = []
    for rule in rules:
        if isinstance(rule, Bounds):
            ends += [end for end in dataclasses.astuple(rule) if isinstance(end, int | float)]
    if kind is int:
        ends = [end + step for end in ends for step in (-1, 0, 1)]
        return draws.choice(ends) if ends and draws.random() < 0.15 else draws.choice(_SMALL)
    if kind is float:
        steps = (lambda end: end, lambda end: math.nextafter(end, math.inf), lambda end: end / 2)
        ends = [step(end) for end in ends for step in steps]
        return draws.choice(ends) if ends and draws.random() < 0.3 else draws.choice((*_SHARES, *_SMALL))
    return draws.choice(HOSTILE_VALUES)
