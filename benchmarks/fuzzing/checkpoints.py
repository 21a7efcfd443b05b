"""Workdirs with damaged or changed checkpoints or other files, which several verbs read."""

import json
import random
import shutil
import zlib
from pathlib import Path
from typing import Any

from benchmarks.fuzzing.cases import Case, Wrong
from benchmarks.fuzzing.mutations import mutate_bytes, mutate_json
from benchmarks.fuzzing.valid_files import CONFIG, PREPARED, TASK_FILE, WORKDIR
from benchmarks.fuzzing.verbs import run_verb, stop_at_compilation


def make_checkpoint_case(draws: random.Random, folder: Path, valid: Path) -> Case:
    """Return a case: a checkpoint with a changed file."""
    workdir = folder / WORKDIR
    shutil.copytree(valid / WORKDIR, workdir)
    newest = max((workdir / "checkpoints").glob("[0-9]*"))
    files = sorted(path for path in newest.rglob("*") if path.is_file())
    meta = newest / "meta" / "metadata"
    path = draws.choice((meta, workdir / "config.json", workdir / "tokenizer.model", *files, *files))
    done = _change(draws, path, is_meta=path == meta)
    if draws.random() < 0.3:
        for other in sorted((workdir / "checkpoints").glob("[0-9]*"))[:-1]:
            shutil.rmtree(other)
    names = (WORKDIR, "config.")

    def run() -> str:
        import jax
        import numpy as np

        from birdie_jax.trained_model import model_of_workdir

        stop_at_compilation()
        trained = model_of_workdir(str(workdir))
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(trained.params)):
            raise Wrong("parameters that are not finite were read")
        if f"{trained.step:08d}" == newest.name and path.parent != meta.parent:
            saved = valid / meta.relative_to(folder)
            _compare(trained.params, json.loads(saved.read_text())["contents"]["arrays"])
        return f"the model of step {trained.step}"

    return Case(f"{path.relative_to(workdir)}: {done}", names, run)


def _compare(params: Any, described: dict[str, Any]) -> None:
    from birdie_jax.engine.checkpoint_format import named_checksums, named_leaves

    for name, checksum in named_checksums(named_leaves({"params": params})).items():
        if described[f"state/{name}"][2] != checksum:
            raise Wrong(f"{name} differs from what was saved, and was accepted")


def _change(draws: random.Random, path: Path, *, is_meta: bool) -> str:
    """Change a file, and return a description of the change."""
    original = path.read_bytes()
    if is_meta and draws.random() < 0.6:
        meta = json.loads(original)
        text = mutate_json(draws, meta["contents"], draws.randint(1, 2))
        try:
            contents = json.loads(text)
        except (ValueError, RecursionError):
            path.write_text(text, encoding="utf-8", errors="replace")
            return "no JSON"
        # The change also updates the file's own checksum.
        checksum = zlib.crc32(json.dumps(contents, sort_keys=True).encode())
        path.write_text(json.dumps({"contents": contents, "crc32": checksum}))
        return "contents changed, with their checksum"
    match draws.randrange(8):
        case 0:
            path.unlink()
            return "removed"
        case 1:
            path.unlink()
            path.mkdir()
            return "a folder in its place"
        case 2:
            path.write_bytes(b"")
            return "empty"
        case 3 | 4 if original.lstrip()[:1] == b"{" and path.suffix != ".jsonl":
            changed = mutate_json(draws, json.loads(original), draws.randint(1, 3))
            path.write_text(changed, encoding="utf-8", errors="replace")
            return "values changed"
    path.write_bytes(mutate_bytes(draws, original))
    return "bytes changed"


def make_workdir_case(draws: random.Random, folder: Path, valid: Path) -> Case:
    """Return a case: a workdir with a changed file. A verb reads the workdir or resumes the run."""
    workdir = folder / WORKDIR
    verb = draws.choice(("report", "compare", "train", "train", "evaluate", "generate", "export", "prune"))
    unread = shutil.ignore_patterns("checkpoints") if verb in ("report", "compare") else None
    shutil.copytree(valid / WORKDIR, workdir, ignore=unread)
    if verb == "train":
        # The run resumes from the checkpoint before the last.
        shutil.rmtree(max((workdir / "checkpoints").glob("[0-9]*")))
    files = sorted(path for path in workdir.rglob("*.json*") if "checkpoints" not in path.parts)
    path = draws.choice(files)
    if path.suffix == ".jsonl" and draws.random() < 0.7:
        lines = path.read_text().splitlines()
        number = draws.randrange(len(lines))
        lines[number] = mutate_json(draws, json.loads(lines[number]), draws.randint(1, 2))
        path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
        done = "a line changed"
    else:
        done = _change(draws, path, is_meta=False)
    arguments = {
        "report": [f"--workdir={workdir}"],
        "compare": [f"--compare={workdir},{valid / WORKDIR}", "--output=page.html"],
        "train": [
            *(f"--config={valid / CONFIG}:fixed", f"--workdir={workdir}", "--config.train.num_steps=8"),
            f"--config.data.prepared={valid / PREPARED}",
        ],
        "evaluate": [f"--workdir={workdir}", f"--task=jsonl:path={valid / TASK_FILE}"],
        "generate": [f"--workdir={workdir}", "--prompt=a"],
        "export": [f"--workdir={workdir}", "--output=new"],
        "prune": [f"--workdir={workdir}", "--output=new", "--context=16", "--continuation=4"],
    }[verb]
    what = f"{verb}: {path.relative_to(workdir)}: {done}"
    verb = "report" if verb == "compare" else verb
    return Case(what, (WORKDIR, path.name, "config."), lambda: run_verb(verb, arguments))


def make_shards_case(draws: random.Random, folder: Path, valid: Path) -> Case:
    """Return a case: prepared text with a changed file. The program reads all records."""
    prepared = folder / PREPARED
    shutil.copytree(valid / PREPARED, prepared)
    files = sorted(path for path in prepared.iterdir() if path.is_file())
    path = draws.choice((prepared / "manifest.json", *files))
    done = _change(draws, path, is_meta=False)

    def run() -> str:
        from birdie_jax.text import TokenShards, load_tokenizer

        tokenizer = load_tokenizer(prepared)
        read = 0
        for split in ("train", "validation"):
            for record in TokenShards(prepared, split):
                read += 1
                if len(record.tokens) and int(record.tokens.max()) >= tokenizer.vocab_size:
                    raise Wrong(f"record {read} holds the token {record.tokens.max()}")
        return f"{read} records"

    return Case(f"{path.name}: {done}", (PREPARED,), run)
