"""Folders of safetensors, in our format and in Hugging Face's, and files of saved states."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

from benchmarks.fuzzing.cases import Case, Wrong
from benchmarks.fuzzing.mutations import mutate_bytes, mutate_json
from benchmarks.fuzzing.valid_files import EXPORTED, HUGGINGFACE, HUGGINGFACE_KINDS, STATE

_HEADER_LENGTHS = (0, 1, 7, 8, 1 << 20, 100_000_000, 100_000_001, 2**31, 2**62, 2**63, 2**64 - 1)
_OFFSETS = (-1, 0, 1, 4, 2**31, 2**62, 2**63, 2**64, 1.5, "0", None)


def make_weights_case(draws: random.Random, folder: Path, valid: Path) -> Case:
    """Return a case: a folder of a model, or a saved state, with a changed file."""
    which = draws.choice((EXPORTED, EXPORTED, HUGGINGFACE, HUGGINGFACE, STATE))
    if which == STATE:
        path = folder / STATE
        shutil.copy(valid / STATE, path)
        return _of_file(draws, path, which, folder)
    source = which if which == EXPORTED else f"{HUGGINGFACE}_{draws.choice(HUGGINGFACE_KINDS)}"
    shutil.copytree(valid / source, folder / which)
    files = ["model.safetensors"] * 4 + ["config.json"] * 2 + [draws.choice(_others(which))]
    return _of_file(draws, folder / which / draws.choice(files), which, folder)


def _others(which: str) -> tuple[str, ...]:
    return ("tokenizer.model", "README.md") if which == EXPORTED else ("tokenizer.json",)


def _of_file(draws: random.Random, path: Path, which: str, folder: Path) -> Case:
    original = path.read_bytes()
    if path.suffix == ".safetensors" and draws.random() < 0.7:
        data, done = _change_header(draws, original)
    elif path.suffix == ".json" and draws.random() < 0.8:
        data, done = mutate_json(draws, json.loads(original), draws.randint(1, 3)), "values changed"
        data = data.encode("utf-8", "replace")
    else:
        data, done = mutate_bytes(draws, original), "bytes changed"
    path.write_bytes(data)
    if draws.random() < 0.05:
        path.unlink()
        if draws.random() < 0.5:
            path.mkdir()
        done = "missing, or a folder"

    def run() -> str:
        if which == STATE:
            return _read_state(path)
        return _read_folder(folder / which)

    names = (path.name, "config.", which) if path.suffix == ".json" else (path.name, which)
    return Case(f"{which}: {path.name}: {done}", names, run)


def _change_header(draws: random.Random, original: bytes) -> tuple[bytes, str]:
    """Return a safetensors file with a changed length or changed contents of the header."""
    length = int.from_bytes(original[:8], "little")
    header: dict[str, Any] = json.loads(original[8 : 8 + length])
    body = original[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    entry = header[draws.choice(names)]
    match draws.randrange(9):
        case 0:
            return draws.choice(_HEADER_LENGTHS).to_bytes(8, "little") + original[
                8:
            ], "another header length"
        case 1:
            place = draws.randrange(2)
            offset = draws.choice(_OFFSETS)
            entry["data_offsets"][place] = entry["data_offsets"][place] + 4 if offset == 4 else offset
            done = "other offsets"
        case 2:
            entry["data_offsets"] = header[draws.choice(names)]["data_offsets"]
            done = "overlapping offsets"
        case 3:
            entry["dtype"] = draws.choice(
                ("F64", "F16", "BF16", "I32", "BOOL", "U8", "F8_E5M2", "f32", "X", 1)
            )
            done = "another type"
        case 4:
            entry["shape"] = draws.choice(
                ([], [0], [*entry["shape"], 1], entry["shape"][::-1], [2**40, 2**40], [-1])
            )
            done = "another shape"
        case 5:
            header[draws.choice(("x", "", "a\nb", "params/x", "__metadata__"))] = header.pop(
                draws.choice(names)
            )
            done = "another name"
        case 6:
            metadata = header.setdefault("__metadata__", {})
            key = draws.choice([*metadata, "x"])
            metadata[key] = draws.choice(
                (1, None, "", "{}", "[]", "[[[], 1]]", "[" * 100_000, '{"a": 1}', "\ud800")
            )
            done = "other metadata"
        case 7:
            return original[: draws.randint(0, len(original))], "cut"
        case _:
            changed = mutate_json(draws, header, draws.randint(1, 3)).encode("utf-8", "replace")
            return len(changed).to_bytes(8, "little") + changed + body, "values of the header changed"
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body, done


def _read_folder(folder: Path) -> str:
    import numpy as np

    from birdie_jax.interop import read_huggingface, read_model

    read = (read_huggingface if folder.name == HUGGINGFACE else read_model)(str(folder))
    if folder.name == EXPORTED and not all(np.isfinite(leaf).all() for leaf in _leaves(read.params)):
        raise Wrong("a damaged tensor was read: its checksum is another")
    return f"{len(_leaves(read.params))} tensors of step {read.step}"


def _leaves(tree: Any) -> list[Any]:
    return [leaf for part in tree.values() for leaf in _leaves(part)] if isinstance(tree, dict) else [tree]


def _read_state(path: Path) -> str:
    from birdie_jax.interop import read_state
    from birdie_jax.storage import make_path

    read = read_state(make_path(path))
    return f"a state after {read.description.tokens} tokens, whose checksum is right"
