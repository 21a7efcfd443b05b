"""The fault campaign: tiny runs with kills, stops, and failing files, bits and clocks.

    python -m benchmarks.faults --results=faults.jsonl [--kind=kill,file] [--cases=100] [--seed=0]
    python -m benchmarks.faults --results=faults.jsonl --table
    python -m benchmarks.faults --bugs

A case disturbs one or two starts of a program, then starts the program until it ends. The case compares
the results with those of an undisturbed run: every array of every checkpoint, the metrics except clocks,
and the other files. Between the starts, it checks that every checkpoint and finished shard still exists.
A start that stops must print one line that names the cause.

A case depends only on its kind, its number and the seed. Its result is one line of --results. If you
restart the command, it continues after the recorded cases. The exit status is 1 if a case shows a fault.

Programs run in forks of a process that has imported them. A layer over the C library
(benchmarks/fault_kinds/layer.c, compiled by `cc`) counts their file operations. --bugs puts three bugs
into the programs, one after another. Its exit status is 1 unless a case detects each bug.
"""

import argparse
import collections
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.fault_kinds.layer import start_under_layer
from benchmarks.fault_kinds.names import KINDS
from tests.quick_jit import QUICK_FLAGS

_BUG_CASES = 60
_BUG_KINDS = {"metrics": "kill-saving", "data": "kill-saving", "saves": "file"}
_FAULTS = ("different", "lost", "tracebacks", "odd")


def _read_results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _open_cases(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Yield the cases without a result, with the kinds in turn."""
    cases = _read_results(options.results)
    done = {(case["kind"], case["number"]) for case in cases if case["seed"] == options.seed}
    for number in range(options.cases):
        for kind in options.kind:
            if (kind, number) not in done:
                yield kind, number


def _in_words(kind: str, number: int, case: dict[str, Any]) -> str:
    faults = [f"{name}: {case[name][:3]}" for name in _FAULTS if case[name]]
    statuses = ", ".join(str(start["status"]) for start in case["starts"])
    verdict = "; ".join(faults) if faults else case.get("verdict", "equal")
    return f"{kind} {number} ({case['program']}, {case['seconds']:.1f} s): statuses {statuses}: {verdict}"


def table(cases: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table with a row for each kind."""
    rows = [
        "| what | cases | disturbed starts | stopped with one line | other ends | bits different | "
        "checkpoints lost | tracebacks | unclear ends | hours | command |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, what in KINDS.items():
        own = [case for case in cases if case["kind"] == kind]
        if not own:
            continue
        verdicts = collections.Counter(case["verdict"] for case in own if "verdict" in case)
        counts = [
            sum(bool(case[name]) for case in own) for name in ("different", "lost", "tracebacks", "odd")
        ]
        cells = [
            what,
            f"{len(own):,}",
            f"{sum(_disturbed_starts(case) for case in own):,}",
            f"{sum(len(case['lines']) for case in own):,}",
            ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())),
            *map(str, counts),
            f"{sum(case['seconds'] for case in own) / 3600:.2f}",
            f"`python -m benchmarks.faults --kind={kind} --cases={len(own)} --results=faults.jsonl`",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def flip_table(cases: list[dict[str, Any]]) -> str:
    """Return the verdicts on flipped bits as a Markdown table with a row for each kind of file."""
    verdicts = ("refused", "set aside", "ended", "not noticed")
    rows = [f"| where | file | {' | '.join(verdicts)} |", f"|---|---|{'---|' * len(verdicts)}"]
    flipped = [case for case in cases if "file" in case]
    for kind, file in sorted({(case["kind"], case["file"]) for case in flipped}):
        own = [case["verdict"] for case in flipped if (case["kind"], case["file"]) == (kind, file)]
        counts = " | ".join(str(own.count(verdict)) for verdict in verdicts)
        rows.append(f"| {KINDS[kind]} | `{file}` | {counts} |")
    return "\n".join(rows)


def _disturbed_starts(case: dict[str, Any]) -> int:
    """Return the number of starts of a case that were killed, stopped or met a fault."""
    if "verdict" in case:
        return 1
    return sum("disturbed" in start or start["status"] not in (0, 1, 2) for start in case["starts"])


def _run(folder: Path, options: argparse.Namespace) -> int:
    """Play the cases without a result, and return the exit status."""
    from benchmarks.fault_kinds.campaign import Campaign

    campaign = Campaign(folder, options.seed)
    began, faulty = time.monotonic(), 0
    for kind, number in _open_cases(options):
        if time.monotonic() - began > 60 * options.minutes:
            break
        case = campaign.play(kind, number)
        faulty += any(case[name] for name in _FAULTS)
        with options.results.open("a") as results:
            results.write(json.dumps({"kind": kind, "number": number, "seed": options.seed} | case) + "\n")
        print(_in_words(kind, number, case), flush=True)
    return int(faulty > 0)


def _find_bugs(folder: Path, options: argparse.Namespace) -> int:
    """Play cases with each bug until a case detects it, and return the exit status."""
    from benchmarks.fault_kinds.bugs import BUGS
    from benchmarks.fault_kinds.campaign import Campaign

    campaign, missed = Campaign(folder, options.seed), 0
    for name, bug in BUGS.items():
        campaign.bug, kind = bug, _BUG_KINDS[name]
        for number in range(_BUG_CASES):
            case = campaign.play(kind, number, "regression")
            if any(case[fault] for fault in ("different", "lost")):
                print(f"the bug {name!r} is found by {_in_words(kind, number, case)}", flush=True)
                break
        else:
            print(f"the bug {name!r} is not found in {_BUG_CASES} cases of {kind}", flush=True)
            missed += 1
    return int(missed > 0)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The fault campaign.")
    parser.add_argument("--results", type=Path, help="where a line for each case is added")
    parser.add_argument("--kind", default=",".join(KINDS), help="kinds of cases, joined by commas")
    parser.add_argument("--cases", type=int, default=100, help="the number of cases of each kind")
    parser.add_argument("--seed", type=int, default=0, help="the seed of all draws")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no case after them")
    parser.add_argument("--table", action="store_true", help="print the table of the results, and end")
    parser.add_argument("--bugs", action="store_true", help="put bugs into the programs, and end")
    options = parser.parse_args()
    options.kind = options.kind.split(",")
    if unknown := [kind for kind in options.kind if kind not in KINDS]:
        parser.error(f"--kind: found {unknown[0]}; allowed: {', '.join(KINDS)}")
    if not (options.bugs or options.results):
        parser.error("--results is not given")
    return options


def main() -> None:
    """Run the command that the flags choose."""
    options = _parse_options()
    if options.table:
        cases = _read_results(options.results)
        print(f"{table(cases)}\n\n{flip_table(cases)}")
        return
    kept = Path(tempfile.gettempdir()) / f"birdie-faults-{os.getuid()}"
    kept.mkdir(exist_ok=True)
    start_under_layer(
        {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": QUICK_FLAGS,
            "JAX_COMPILATION_CACHE_DIR": str(kept / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        },
        kept,
    )
    # JAX reads its environment variables at import.
    from tests.forked_runs import prepare_forks
    from tests.without_reports import prepare

    prepare_forks()
    prepare()
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        status = (_find_bugs if options.bugs else _run)(folder, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
