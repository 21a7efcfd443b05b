"""One tokenizer for several sources, trained on a weighted sample of them and cached."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

from birdie_jax.text.locations import Location
from birdie_jax.text.preparation import lock_folder
from birdie_jax.text.saving import save_file
from birdie_jax.text.sources import Source
from birdie_jax.text.tokenizer import Tokenizer
from birdie_jax.text.tokenizer_training import sample_passages, train_tokenizer

_SAMPLE_BYTES = 4 << 20


def shared_tokenizer(
    root: Location, sources: Sequence[Source], weights: Sequence[float], vocab_size: int
) -> Location:
    """Return the path of a tokenizer model for some sources; train it if it is not cached.

    Each source contributes its weight's share of 4 MiB to the sample, or all its text if it has less.

    Args:
        root: the folder of cached tokenizers.
        sources: the sources.
        weights: the weight of each.
        vocab_size: the number of pieces.

    Raises:
        DataError: a source cannot be read, or the sources have too little text for `vocab_size` pieces.
    """
    shares = [weight / sum(weights) for weight in weights]
    identity = {
        "sources": [[source.sha256, asdict(source.rules)] for source in sources],
        "shares": [round(share, 12) for share in shares],
        "vocab_size": vocab_size,
    }
    digest = hashlib.blake2b(json.dumps(identity).encode(), digest_size=8).hexdigest()
    path = root / f"tokenizer-{digest}.model"
    # Runs that start together would write the same file.
    with lock_folder(root):
        if not path.exists():
            save_file(path, _train(sources, shares, vocab_size).model_bytes)
    return path


def _train(sources: Sequence[Source], shares: Sequence[float], vocab_size: int) -> Tokenizer:
    passages: list[str] = []
    for seed, (source, share) in enumerate(zip(sources, shares, strict=True)):
        texts = (document.text for document in source.documents())
        passages += sample_passages(texts, max(1, int(_SAMPLE_BYTES * share)), seed)
    size = sum(len(passage.encode()) for passage in passages)
    return train_tokenizer(passages, vocab_size, max(size, 1))
