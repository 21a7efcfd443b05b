"""Files that are whole or absent, in a folder or an object store."""

from birdie_jax.storage.files import (
    PARTIAL_SUFFIX,
    create_whole,
    is_remote,
    publish,
    sync,
    write_json,
    write_whole,
)

__all__ = ["PARTIAL_SUFFIX", "create_whole", "is_remote", "publish", "sync", "write_json", "write_whole"]
