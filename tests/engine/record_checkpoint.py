"""Record a checkpoint of the current format: `python -m tests.engine.record_checkpoint`.

Never record a checkpoint again: each must restore forever. Record a new one when the format's version
increases.
"""

import shutil
import tempfile
from pathlib import Path

from birdie_jax.engine.checkpoint_format import FORMAT_VERSION
from tests.whole_runs import finish, train_command, write_corpus

RECORDED = Path(__file__).with_name("recorded")
STEP = 8


def main() -> None:
    target = RECORDED / f"version_{FORMAT_VERSION}"
    if target.exists():
        raise SystemExit(f"{target} is there; a recorded checkpoint is kept as it is")
    with tempfile.TemporaryDirectory() as scratch:
        corpus = write_corpus(Path(scratch))
        workdir = Path(scratch) / "run"
        options = ("--config.checkpoint.every_steps=4", "--config.checkpoint.keep=9")
        status, output = finish(train_command(workdir, corpus, *options))
        if status:
            raise SystemExit(output)
        folder = Path("checkpoints") / f"{STEP:08d}"
        shutil.copytree(workdir / folder, target / folder)
        shutil.copy(workdir / "config.json", target)


if __name__ == "__main__":
    main()
