"""The cache of prepared sources, for runs that name no prepared folder: one folder for each preparation."""

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

    Runs with the same request share it. A source elsewhere, one whose files were written to, or another
    tokenizer gets a folder of its own. The key is the place of each file, its size and its times: the many
    gigabytes that a source may have are not read.

    Raises:
        DataError: the source or the tokenizer cannot be used.
    """
    identity = {
        # A folder keeps the name that it was requested with, and resumes only under that name.
        "name": source,
        "source": open_source(source, text_field).sha256,
        "tokenizer": Tokenizer(tokenizer_model).sha256 if tokenizer_model else "",
        "text_field": text_field,
        **settings,
    }
    digest = hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=8).hexdigest()
    label = "".join(c if c.isalnum() else "_" for c in Path(source).name)[:40]
    return root / f"{label}-{digest}"
