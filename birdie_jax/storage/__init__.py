"""Files that are whole or absent, in a folder or an object store, and the types of what they hold."""

from birdie_jax.storage.bounds import Bounds, Line, Rule
from birdie_jax.storage.files import (
    PARTIAL_SUFFIX,
    create_whole,
    exists,
    list_files,
    list_names,
    publish,
    read_bytes,
    remove,
    sync,
    write_json,
    write_whole,
)
from birdie_jax.storage.messages import one_line, shown
from birdie_jax.storage.object_store import StoreError, is_remote, make_path
from birdie_jax.storage.typed import (
    FILE_KEY,
    describe_type,
    file_key,
    inner_path,
    is_finite,
    parse_typed,
    to_plain,
)

__all__ = [
    "FILE_KEY",
    "PARTIAL_SUFFIX",
    "Bounds",
    "Line",
    "Rule",
    "StoreError",
    "create_whole",
    "describe_type",
    "exists",
    "file_key",
    "inner_path",
    "is_finite",
    "is_remote",
    "list_files",
    "list_names",
    "make_path",
    "one_line",
    "parse_typed",
    "publish",
    "read_bytes",
    "remove",
    "shown",
    "sync",
    "to_plain",
    "write_json",
    "write_whole",
]
