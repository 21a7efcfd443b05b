"""Three corpora by weight: parts of the Python standard library, with one shared tokenizer.

    python -m birdie_jax.train --config=configs/tiny_corpora.py --workdir=runs/corpora

The model and the objectives match configs/tiny.py. `metrics.jsonl` logs positions, loss, validation
loss and epochs for each corpus; see docs/corpora.md. The run takes 16 minutes of CPU time. The variant
`more` has a fourth corpus, for a branch of the run.
"""

import runpy
import sysconfig
from pathlib import Path

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration, with a fourth corpus if the variant is "more".

    Raises:
        ValueError: the variant is unknown.
    """
    if variant not in ("", "more"):
        raise ValueError(f"variant: found {variant!r}; allowed: none, or 'more'")
    library = sysconfig.get_path("stdlib")
    config = runpy.run_path(str(Path(__file__).with_name("tiny.py")))["get_config"]()
    config.data.corpora = {
        "modules": {"source": f"{library}/*.py", "weight": 0.5, "max_epochs": 40.0},
        "packages": {"source": f"{library}/[a-d]*/*.py", "weight": 0.3, "max_epochs": 40.0},
        "encodings": {"source": f"{library}/encodings", "weight": 0.2, "max_epochs": 40.0},
    }
    if variant == "more":
        config.data.corpora["more_packages"] = {"source": f"{library}/[i-m]*/*.py", "weight": 0.2}
    # Both splits need at least one document of each corpus.
    config.data.validation_fraction = 0.1
    config.data.vocab_size = 2048
    return config
