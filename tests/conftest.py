"""Every test runs with the jaxtyping annotations of the packages checked by beartype."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the tests' time is compilation, and most programs are the same as last time.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.expanduser("~/.cache/birdie_jax/tests"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")

from jaxtyping import install_import_hook

install_import_hook(["birdie_jax", "hlo_analysis", "pallas_kernels"], "beartype.beartype")
