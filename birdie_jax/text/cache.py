"""The cache of prepared sources, for runs without a prepared folder: one folder per preparation."""

import hashlib
import json
from pathlib import Path

from birdie_jax.text.locations import Location
from birdie_jax.text.sources import open_source
from birdie_jax.text.tokenizer import Tokenizer


def cached_folder(
    root: Location, source: str, *, tokenizer_model: str, text_field: str, **settings: object
) -> Location:
    """Return the folder below `root` for this source and these settings.

    Runs with the same source and settings share the folder. Another path, a changed source or another
    tokenizer gets its own folder. The key is the path, size and times of each file; the contents of the
    files, which may be many gigabytes, are not read.

    Raises:
        DataError: the source or the tokenizer cannot be used.
    """
    identity = {
        # The manifest contains the source's name, and a preparation resumes only with the same name.
        "name": source,
        "source": open_source(source, text_field).sha256,
        "tokenizer": Tokenizer(tokenizer_model).sha256 if tokenizer_model else "",
        "text_field": text_field,
        **settings,
    }
    digest = hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=8).hexdigest()
    label = "".join(c if c.isalnum() else "_" for c in Path(source).name)[:40]
    return root / f"{label}-{digest}"
