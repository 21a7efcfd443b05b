"""Every test runs with the jaxtyping annotations of the packages checked by beartype."""

import os
import secrets

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the tests' time is compilation, and most programs are the same as last time.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.expanduser("~/.cache/birdie_jax/tests"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")

import fsspec
import pytest
from jaxtyping import install_import_hook

from tests.gcs_server import BUCKET, run_gcs_server

install_import_hook(["birdie_jax", "hlo_analysis", "pallas_kernels"], "beartype.beartype")


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory):
    """A server of Cloud Storage's protocol, which the libraries of this process and its children find."""
    with run_gcs_server(tmp_path_factory.mktemp("gcs")) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        fsspec.filesystem("gcs").clear_instance_cache()
        yield server
        fsspec.filesystem("gcs").clear_instance_cache()


@pytest.fixture
def bucket_url(gcs_server):
    """A name in the server's bucket below which there is nothing yet."""
    return f"gs://{BUCKET}/{secrets.token_hex(8)}"
