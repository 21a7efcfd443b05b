"""Compiled programs that are kept from one command to the next."""

import os

import jax
from absl import logging

from birdie_jax.errors import ConfigError
from birdie_jax.storage import is_remote, make_path
from birdie_jax.storage.cache_folder import cache_folder

_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
_MIN_SECONDS = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


def cache_compiled_programs() -> None:
    """Use JAX's persistent compilation cache, so that the next command need not compile again.

    It is in the folder that JAX_COMPILATION_CACHE_DIR names, which may be a bucket's that machines share,
    or else in this machine's cache folder. Without a folder for it, programs are not kept, and a warning
    says why.

    Raises:
        ConfigError: JAX_COMPILATION_CACHE_DIR is a URL that cannot be used.
    """
    if given := os.environ.get(_VARIABLE):
        try:
            folder = make_path(given)
        except ConfigError as error:
            raise ConfigError(f"{_VARIABLE}: {error}") from error
        if is_remote(folder):
            # They are written by XLA itself, which knows disks alone.
            jax.config.update("jax_persistent_cache_enable_xla_caches", "")
    else:
        try:
            folder = cache_folder() / "compiled"
        except ConfigError as error:
            logging.warning("compiled programs are not kept: %s", error)
            return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if _MIN_SECONDS not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
