"""Every test runs with the jaxtyping annotations of the packages checked by beartype."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from jaxtyping import install_import_hook

install_import_hook(["birdie_jax", "pallas_kernels"], "beartype.beartype")
