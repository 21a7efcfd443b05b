"""The files of a workdir that say what its run is: config.json, tokenizer.model, arms.json and such."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from birdie_jax.config import Config, ConfigError, to_dict

# What changes neither the batches nor the arithmetic (a mesh: no more than its rounding), and so may differ
# when a run goes on.
_FREE_FIELDS = frozenset(
    {
        "batching.prefetch",
        "batching.workers",
        "checkpoint.every_steps",
        "checkpoint.keep",
        "data.cache_dir",
        "data.prepared",
        "mesh.data",
        "mesh.fsdp",
        "mesh.sequence",
        "mesh.tensor",
        "train.hung_seconds",
        "train.log_every_steps",
        "train.lost_seconds",
    }
)


def claim_workdir(workdir: Path, config: Config) -> str:
    """Make `workdir` if need be, and check that what is in it belongs to a run of `config`.

    Returns:
        The file in it that says what the run is.

    Raises:
        ConfigError: the workdir holds a run of another configuration (names every field that differs), or
            its config.json cannot be read, or the folder cannot be made.
    """
    path = workdir / "config.json"
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be used: {error}") from error
    wanted = json.loads(json.dumps(to_dict(config)))
    if found is not None:
        changed = [
            f"  config.{name}: the run has {before!r}, asked for is {now!r}"
            for name, before, now in differences(found, wanted)
            if name not in _FREE_FIELDS
        ]
        if changed:
            raise ConfigError(
                f"{workdir}: holds a run of another configuration; use another workdir, or its values:\n"
                + "\n".join(changed)
            )
    write_json(path, wanted)
    return str(path)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (field, value in one, value in the other) of each field in which two configurations differ."""
    before, now = _flat(one), _flat(other)
    return [
        (name, before.get(name), now.get(name))
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` as a whole or not at all."""
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def _flat(section: Mapping[str, Any] | Sequence[Any], prefix: str = "") -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in dict(section).items():
        if isinstance(value, dict) and value:
            fields.update(_flat(value, f"{prefix}{name}."))
        else:
            fields[prefix + name] = value
    return fields
