"""Record the results of every model's run, to compare two versions of the code bit for bit.

    python benchmarks/recorded_runs.py --checkout=../before --output=before.json
    python benchmarks/recorded_runs.py --checkout=. --output=after.json --compare=before.json

A record has the metrics of `configs/tiny.py` for each language model and of `configs/bigs_tiny.py` for
each encoder, with 24 steps and a decision every 8 steps. It also has the checksum of every array that the
run exports. Each model trains in one process, in two processes with two devices each, and in one process
that is killed and resumed.

Compare only records of the same machine, because another processor can add in another order. If a version
lacks a model, name the others with --models. A model takes about three minutes on two cores.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from safetensors.numpy import load_file

from birdie_jax.storage.metric_lines import is_clocked

MODELS = {
    **dict.fromkeys(("gated_ssm", "gated_ssm_mlp", "gated_ssm_plus", "hawk", "hawk_mlp"), "tiny"),
    **dict.fromkeys(("birdie_ssm", "transformer", "griffin", "mamba"), "tiny"),
    **dict.fromkeys(("mamba2", "gated_deltanet"), "tiny"),
    **dict.fromkeys(("bigs", "stack_attention", "stack_ssm", "gated_attention"), "bigs_tiny"),
}
SETTINGS = (
    "data.vocab_size=300",
    "train.num_steps=24",
    "train.log_every_steps=2",
    "bandit.every_steps=8",
    "bandit.critic_updates=20",
    "checkpoint.every_steps=8",
)
# One arm for each objective, with a bandit that chooses among the arms.
MORE_SETTINGS = {"tiny": ("objectives.mixture=tiny", "bandit.policy=birdie"), "bigs_tiny": ()}
KILLED_FROM_STEP = 12


def write_corpus(folder: Path) -> Path:
    words_of = random.Random(0)
    words = ["".join(words_of.choices("abcdefghij", k=5)) for _ in range(200)]
    path = folder / "corpus.jsonl"
    with path.open("w") as file:
        for _ in range(60):
            file.write(json.dumps({"text": " ".join(words_of.choices(words, k=800))}) + "\n")
    return path


def command(model: str, workdir: Path, corpus: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "birdie_jax.train", f"--config=configs/{MODELS[model]}.py:{model}"),
        *(f"--workdir={workdir}", f"--config.data.source={corpus}"),
        f"--config.data.cache_dir={corpus.parent / 'prepared'}",
        *(f"--config.{setting}" for setting in (*SETTINGS, *MORE_SETTINGS[MODELS[model]])),
    ]


def environment() -> dict[str, str]:
    return {**os.environ, "JAX_PLATFORMS": "cpu"}


def finish(arguments: list[str], checkout: Path) -> None:
    done = subprocess.run(
        arguments, cwd=checkout, env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")


def kill_and_resume(arguments: list[str], checkout: Path, workdir: Path) -> None:
    process = subprocess.Popen(
        arguments, cwd=checkout, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and last_step(workdir) < KILLED_FROM_STEP:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finish(arguments, checkout)


def last_step(workdir: Path) -> int:
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return max((json.loads(line)["step"] for line in lines if line.endswith("}")), default=0)


def record(checkout: Path, workdir: Path) -> dict:
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    metrics = [{k: v for k, v in json.loads(line).items() if not is_clocked(k)} for line in lines]
    exported = workdir / "exported"
    finish(
        [sys.executable, "-m", "birdie_jax.export", f"--workdir={workdir}", f"--output={exported}"],
        checkout,
    )
    arrays = load_file(exported / "model.safetensors")
    checksums = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in arrays.items()}
    return {"metrics": metrics, "parameters": checksums}


def differences(before: dict, after: dict) -> list[str]:
    """Return the differences of two records in words; empty if they are equal bit for bit."""
    found = []
    for run in sorted(before.keys() | after.keys()):
        for part in ("metrics", "parameters"):
            if before.get(run, {}).get(part) != after.get(run, {}).get(part):
                found.append(f"{run}: {part}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    records = json.loads(options.output.read_text()) if options.output.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        corpus = write_corpus(Path(scratch))
        for model in options.models:
            for way in ("one process", "two processes", "killed and resumed"):
                run = f"{model}, {way}"
                if run in records:
                    continue
                began = time.monotonic()
                workdir = Path(scratch) / run.replace(", ", "-").replace(" ", "_")
                arguments = command(model, workdir, corpus)
                if way == "two processes":
                    launcher = [sys.executable, "-m", "launch.local", "--processes=2", "--fake_devices=4"]
                    arguments = [*launcher, "--", *arguments]
                if way == "killed and resumed":
                    kill_and_resume(arguments, checkout, workdir)
                else:
                    finish(arguments, checkout)
                records[run] = record(checkout, workdir)
                options.output.write_text(json.dumps(records, indent=1))
                print(f"{run}: {time.monotonic() - began:.0f} s", flush=True)
    if options.compare:
        before = json.loads(options.compare.read_text())
        found = differences(before, records)
        print("\n".join(found) or f"{len(records)} runs are the same bit for bit")
        sys.exit(bool(found))


if __name__ == "__main__":
    main()
