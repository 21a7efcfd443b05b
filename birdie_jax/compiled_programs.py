"""The cache of compiled programs that commands share."""

import os

import jax
from absl import logging

from birdie_jax.errors import ConfigError
from birdie_jax.storage import is_remote, make_path
from birdie_jax.storage.cache_folder import cache_folder

_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
_MIN_SECONDS = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


def cache_compiled_programs() -> None:
    """Use JAX's persistent compilation cache, so the next command does not compile again.

    The cache is in JAX_COMPILATION_CACHE_DIR, which may be a shared bucket, or otherwise in this machine's
    cache folder. Without a folder, programs are not cached, and a warning explains why.

    Raises:
        ConfigError: JAX_COMPILATION_CACHE_DIR is a URL that cannot be used.
    """
    if given := os.environ.get(_VARIABLE):
        try:
            folder = make_path(given)
        except ConfigError as error:
            raise ConfigError(f"{_VARIABLE}: {error}") from error
        if is_remote(folder):
            # XLA writes these caches itself, and only to disks.
            jax.config.update("jax_persistent_cache_enable_xla_caches", "")
    else:
        try:
            folder = cache_folder() / "compiled"
        except ConfigError as error:
            logging.warning("compiled programs are not cached: %s", error)
            return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if _MIN_SECONDS not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
