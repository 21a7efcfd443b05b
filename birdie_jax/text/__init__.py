"""Turns documents into token arrays: sources, tokenizers, token shards. Host code: NumPy, no JAX."""

from birdie_jax.text.documents import Document
from birdie_jax.text.locations import locate
from birdie_jax.text.manifest import Manifest, load_manifest
from birdie_jax.text.plain_text import read_text
from birdie_jax.text.preparation import prepare
from birdie_jax.text.sources import Source, open_source
from birdie_jax.text.token_record import TokenRecord
from birdie_jax.text.token_shards import TokenShards, load_tokenizer
from birdie_jax.text.tokenizer import Tokenizer
from birdie_jax.text.tokenizer_training import train_tokenizer

__all__ = [
    "Document",
    "Manifest",
    "Source",
    "TokenRecord",
    "TokenShards",
    "Tokenizer",
    "load_manifest",
    "load_tokenizer",
    "locate",
    "open_source",
    "prepare",
    "read_text",
    "train_tokenizer",
]
