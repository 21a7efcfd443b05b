"""Compiled programs that are kept from one command to the next."""

import jax
from absl import logging

from birdie_jax.config_errors import ConfigError
from birdie_jax.storage.cache_folder import cache_folder


def cache_compiled_programs() -> None:
    """Use JAX's persistent compilation cache, so that the next command need not compile again.

    Without a folder for it, programs are not kept, and a warning says why.
    """
    try:
        folder = cache_folder() / "compiled"
    except ConfigError as error:
        logging.warning("compiled programs are not kept: %s", error)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
