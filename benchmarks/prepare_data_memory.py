"""Peak memory of `prepare_data` for a synthetic corpus and for a corpus four times as large.

    python benchmarks/prepare_data_memory.py --megabytes=50 --workers=2

For each size, the script prints the peak of the resident memory of the process and its workers together,
in MB. The peak should not grow with the corpus: shards hold at most `shard_tokens` tokens, and the number
of blocks in flight is bounded.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import zstandard
from absl import app, flags

_MEGABYTES = flags.DEFINE_integer("megabytes", 50, "Size of the smaller corpus as text.", lower_bound=1)
_WORKERS = flags.DEFINE_integer("workers", 2, "Tokenizing processes.", lower_bound=0)
_SHARD_TOKENS = flags.DEFINE_integer(
    "shard_tokens", 4_000_000, "Tokens in a training shard.", lower_bound=1
)


def write_corpus(path: Path, size: int) -> None:
    generator = random.Random(0)
    syllables = [a + b for a in "bcdfghklmnprstvz" for b in "aeiou"]
    words = ["".join(generator.choices(syllables, k=generator.randint(1, 4))) for _ in range(5000)]
    written = 0
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as compressed:
        while written < size:
            text = " ".join(generator.choices(words, k=generator.randint(50, 3000))) + "\n"
            compressed.write((json.dumps({"text": text, "meta": {}}) + "\n").encode())
            written += len(text)


def resident_bytes(process: int) -> int:
    """Return the resident memory of a process and its descendants, in bytes. Ended processes count as 0."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * 4096 + sum(resident_bytes(int(child)) for child in children)


def peak_of(corpus: Path, output: Path) -> tuple[int, float]:
    arguments = ["-m", "birdie_jax.prepare_data", f"--input={corpus}", f"--output={output}", "--noprogress"]
    settings = [
        f"--workers={_WORKERS.value}",
        f"--shard_tokens={_SHARD_TOKENS.value}",
        "--vocab_size=2000",
    ]
    began, peak = time.monotonic(), 0
    process = subprocess.Popen([sys.executable, *arguments, *settings], stdout=subprocess.DEVNULL)
    while process.poll() is None:
        peak = max(peak, resident_bytes(process.pid))
        time.sleep(0.01)
    if process.returncode:
        raise SystemExit(f"prepare_data failed with status {process.returncode}")
    return peak, time.monotonic() - began


def main(argv: list[str]) -> None:
    del argv
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in (_MEGABYTES.value, 4 * _MEGABYTES.value):
            corpus = Path(folder) / f"{megabytes}.jsonl.zst"
            write_corpus(corpus, megabytes * 1_000_000)
            peak, seconds = peak_of(corpus, Path(folder) / str(megabytes))
            print(f"{megabytes} MB of text: peak {peak / 1e6:.0f} MB resident, {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    app.run(main)
