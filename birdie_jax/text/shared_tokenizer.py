"""One tokenizer for several sources, trained on a sample of all by their weights, and cached."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from birdie_jax.storage import is_remote, make_folders
from birdie_jax.text.locations import Location
from birdie_jax.text.saving import os_errors_as_data_errors, save_file
from birdie_jax.text.sources import Source
from birdie_jax.text.tokenizer_training import sample_passages, train_tokenizer

_SAMPLE_BYTES = 4 << 20


def shared_tokenizer(
    root: Location, sources: Sequence[Source], weights: Sequence[float], vocab_size: int
) -> Location:
    """Return the model of a tokenizer for some sources, after training it if it is not there.

    The sample has of each source a share of 4 MiB by its weight, or all of it where it has less.

    Args:
        root: the folder in which tokenizers are cached.
        sources: the sources.
        weights: the weight of each.
        vocab_size: the number of pieces.

    Raises:
        DataError: a source cannot be read, or has too little text for so many pieces.
    """
    identity = {
        "sources": [[source.sha256, asdict(source.rules)] for source in sources],
        "weights": list(weights),
        "vocab_size": vocab_size,
    }
    digest = hashlib.blake2b(json.dumps(identity).encode(), digest_size=8).hexdigest()
    path = root / f"tokenizer-{digest}.model"
    if not path.exists():
        passages: list[str] = []
        for seed, (source, weight) in enumerate(zip(sources, weights, strict=True)):
            texts = (document.text for document in source.documents())
            passages += sample_passages(texts, max(1, int(_SAMPLE_BYTES * weight / sum(weights))), seed)
        size = sum(len(passage.encode()) for passage in passages)
        tokenizer = train_tokenizer(passages, vocab_size, max(size, 1))
        if not is_remote(root):
            with os_errors_as_data_errors(f"{root}: the folder of tokenizers cannot be made"):
                make_folders(Path(root))
        save_file(path, tokenizer.model_bytes)
    return path
