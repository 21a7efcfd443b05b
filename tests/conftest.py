"""Every test runs with the jaxtyping annotations of the packages checked by beartype."""

import contextlib
import gc
import os
import secrets

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the tests' time is compilation, and most programs are the same as last time.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.expanduser("~/.cache/birdie_jax/tests"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")

import fsspec
import pytest
from jaxtyping import install_import_hook

from tests.gcs_server import BUCKET, run_gcs_server
from tests.quick_jit import compile_quickly
from tests.s3_server import run_s3_server, s3_environment

install_import_hook(["birdie_jax", "hlo_analysis", "pallas_kernels"], "beartype.beartype")
compile_quickly()
# JAX makes many objects while it traces; to look for garbage after every 700 is a fifth of the tests' time.
gc.set_threshold(50_000, 20, 20)


def pytest_collection_finish():
    gc.freeze()


@contextlib.contextmanager
def _found(environment, protocol):
    """Have a server be found by this process, also where another was found before, and by its children."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        fsspec.filesystem(protocol).clear_instance_cache()
        yield
        fsspec.filesystem(protocol).clear_instance_cache()


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory):
    """A server of Cloud Storage's protocol, which the libraries of this process and its children find."""
    with run_gcs_server(tmp_path_factory.mktemp("gcs")) as server, _found(server.environment, "gcs"):
        yield server


@pytest.fixture
def bucket_url(gcs_server):
    """A name in the server's bucket below which there is nothing yet."""
    return f"gs://{BUCKET}/{secrets.token_hex(8)}"


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    """Host and port of a server of S3's protocol, which s3fs finds in this process and its children."""
    packages = os.environ.get("BIRDIE_SERVERS", "")
    if not packages:
        pytest.skip("BIRDIE_SERVERS is not set; tests/run.sh sets it")
    folder = tmp_path_factory.mktemp("s3")
    with run_s3_server(packages, folder) as host, _found(s3_environment(host), "s3"):
        yield host


@pytest.fixture
def s3_url(s3_server):
    """A name in the server's bucket below which there is nothing yet."""
    return f"s3://{BUCKET}/{secrets.token_hex(8)}"
