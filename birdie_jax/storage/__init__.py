"""Files that are whole or absent, in a folder or an object store, and the types of what they hold."""

from birdie_jax.storage.files import (
    PARTIAL_SUFFIX,
    create_whole,
    is_remote,
    publish,
    sync,
    write_json,
    write_whole,
)
from birdie_jax.storage.typed import FILE_KEY, describe_type, file_key, parse_typed, to_plain

__all__ = [
    "FILE_KEY",
    "PARTIAL_SUFFIX",
    "create_whole",
    "describe_type",
    "file_key",
    "is_remote",
    "parse_typed",
    "publish",
    "sync",
    "to_plain",
    "write_json",
    "write_whole",
]
