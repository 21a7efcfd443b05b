"""Fuzz the program: it must refuse each input in one line before any compilation, or handle it correctly.

    JAX_PLATFORMS=cpu python -m benchmarks.fuzz --results=fuzz [--kind=config] [--cases=10000] [--seed=0]
    JAX_PLATFORMS=cpu python -m benchmarks.fuzz --results=fuzz --case=document:17
    JAX_PLATFORMS=cpu python -m benchmarks.fuzz --results=fuzz --table

A case depends only on its kind and its seed. It changes valid input and passes it to the program in a
separate process, with limits on time and memory. The program must either refuse the input with one line
that names the field or the file, or accept it. If the program accepts the input, an independent reader
must return the same result, or a verb must reach the compilation of its work, where the case ends.
Anything else is a finding: a traceback, another result, several lines, a limit, the end of the process.

Each case is a line of RESULTS/results.jsonl. If you restart the command, it runs the missing cases.
--again repeats the findings; the last line of a case counts. The exit status is 1 if there is a finding.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path

from benchmarks.fuzzing.cases import FINDINGS, PASSED, Outcome, run_case
from benchmarks.fuzzing.valid_files import make_valid_files
from tests.forked_runs import prepare_forks
from tests.quick_jit import QUICK_FLAGS

# The kinds, the functions that make their cases, and the percentage of cases of each kind.
KINDS: Mapping[str, tuple[str, str, int]] = {
    "config": ("configs", "make_config_case", 21),
    "command": ("command_lines", "make_command_case", 19),
    "document": ("documents", "make_document_case", 18),
    "prompt": ("records", "make_prompt_case", 8),
    "task": ("records", "make_task_case", 9),
    "table": ("tables", "make_table_case", 3),
    "tokenizer": ("tokenizers", "make_tokenizer_case", 8),
    "weights": ("weights", "make_weights_case", 6),
    "checkpoint": ("checkpoints", "make_checkpoint_case", 3),
    "workdir": ("checkpoints", "make_workdir_case", 3),
    "shards": ("checkpoints", "make_shards_case", 2),
}
_TURNS = tuple(kind for kind, (_, _, share) in KINDS.items() for _ in range(share))


def kind_of(seed: int) -> str:
    """Return the kind of the case for a seed, with the kinds in turn."""
    return _TURNS[seed * 37 % len(_TURNS)]


def make_case(kind: str, *arguments):
    """Return a case of a kind, with a lazy import of the function that makes it."""
    module, name, _ = KINDS[kind]
    return getattr(import_module(f"benchmarks.fuzzing.{module}"), name)(*arguments)


def read_results(path: Path) -> dict[tuple[str, int], Outcome]:
    """Read a file of results, and return the last outcome of each case."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        outcome = Outcome(**json.loads(line))
        found[outcome.kind, outcome.seed] = outcome
    return found


def table(results: Mapping[tuple[str, int], Outcome]) -> Iterator[str]:
    """Yield the lines of a Markdown table of results, with a row for each kind."""
    columns = (*PASSED, *(name for name in FINDINGS if name != "generator"))
    yield "| kind | cases | " + " | ".join(columns) + " | hours | command |"
    yield "|" + "---|" * (len(columns) + 4)
    for kind in (*KINDS, "all"):
        own = [outcome for outcome in results.values() if kind in (outcome.kind, "all")]
        counts = Counter(outcome.outcome for outcome in own)
        hours = sum(outcome.seconds for outcome in own) / 3600
        cells = [f"{counts[name]:,}" for name in columns]
        command = "python -m benchmarks.fuzz --results=fuzz" + ("" if kind == "all" else f" --kind={kind}")
        yield f"| {kind} | {len(own):,} | {' | '.join(cells)} | {hours:.2f} | `{command}` |"


def _arguments() -> argparse.Namespace:
    # absl has the flags of the verbs that cases run in forks of this process, so use argparse.
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--results", type=Path, required=True, help="Folder of the results and of the valid files.")
    add("--kind", choices=KINDS, help="Run only the cases of this kind.")
    add("--cases", type=int, default=10_000, help="Cases in all, of all kinds.")
    add("--seed", type=int, default=0, help="Seed of the first case; the others follow.")
    add("--seconds", type=float, default=float("inf"), help="Seconds after which no case begins.")
    add("--case", help="KIND:SEED of a case to repeat and show; its files are kept.")
    add("--again", action="store_true", help="Repeat the findings.")
    add("--table", action="store_true", help="Print the results as a Markdown table.")
    return parser.parse_args()


def _cases_left(
    options: argparse.Namespace, done: Mapping[tuple[str, int], Outcome]
) -> list[tuple[str, int]]:
    if options.again:
        return [case for case, outcome in done.items() if outcome.outcome in FINDINGS]
    seeds = range(options.seed, options.seed + options.cases)
    cases = [(kind_of(seed), seed) for seed in seeds]
    return [case for case in cases if options.kind in (None, case[0]) and case not in done]


def _show(kind: str, seed: int, valid: Path) -> None:
    """Run a case, and print its outcome and the folder of its files."""
    keep = Path(tempfile.mkdtemp())
    outcome = run_case(kind, seed, partial(make_case, kind), valid, keep)
    print(f"{json.dumps(asdict(outcome), indent=1)}\nits files: {keep}")


def main() -> None:
    """Make the valid files, and run the remaining cases."""
    options = _arguments()
    results = options.results.resolve()
    path, valid = results / "results.jsonl", results / "valid"
    done = read_results(path)
    if options.table:
        print("\n".join(table(done)))
        return
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # The programs compiled for the valid files run once.
    os.environ.setdefault("XLA_FLAGS", QUICK_FLAGS)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for module, _, _ in KINDS.values():
        import_module(f"benchmarks.fuzzing.{module}")
    prepare_forks()
    make_valid_files(valid)
    if options.case:
        kind, _, seed = options.case.partition(":")
        _show(kind, int(seed), valid)
        return
    end, findings = time.monotonic() + options.seconds, 0
    for kind, seed in _cases_left(options, done):
        if time.monotonic() > end:
            break
        outcome = run_case(kind, seed, partial(make_case, kind), valid)
        with path.open("a") as lines:
            lines.write(json.dumps(asdict(outcome)) + "\n")
        if outcome.outcome in FINDINGS:
            findings += 1
            print(f"{kind}:{seed}: {outcome.outcome}: {outcome.message[-300:]}", flush=True)
            print(f"    {outcome.what[:300]}", flush=True)
    sys.exit(findings > 0)


if __name__ == "__main__":
    main()
