"""Several prepared texts that rows read from, each with its weight."""

import hashlib
import json
from typing import NamedTuple

from birdie_jax.text.token_shards import TokenShards


class Corpora(NamedTuple):
    """One split of one or several texts, made with one tokenizer.

    Attributes:
        names: the name of each text; a single text has an empty name.
        texts: the texts.
        weights: the share of each text in the positions of the rows, not normalised.
    """

    names: tuple[str, ...]
    texts: tuple[TokenShards, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, text: "TokenShards | Corpora") -> "Corpora":
        """Return `text` if it is a `Corpora`, else wrap the single text."""
        return text if isinstance(text, Corpora) else cls(("",), (text,), (1.0,))

    @property
    def sha256(self) -> str:
        """The hash of all records: that of a single text, or a hash of all names and hashes."""
        parts = [text.manifest.sha256 for text in self.texts]
        if self.names == ("",):
            return parts[0]
        named = sorted(zip(self.names, parts, strict=True))
        return hashlib.sha256(json.dumps(named).encode()).hexdigest()


RowText = TokenShards | Corpora
"""The source of rows: one text, or several."""
