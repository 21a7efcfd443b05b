"""The two tiers of tests, and the fixtures that all tests share."""

import contextlib
import ctypes
import gc
import os
import secrets
import signal
import subprocess
from collections import Counter
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the tests' time is compilation, and most programs are unchanged since the last time.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.expanduser("~/.cache/birdie_jax/tests"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
# Two workers share the cores; PyTorch's threads spin while they wait and made a test six times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import fsspec
import hypothesis
import jax
import psutil
import pytest
from jaxtyping import install_import_hook

from tests.gcs_server import BUCKET, run_gcs_server
from tests.quick_jit import start_jax
from tests.s3_server import run_s3_server, s3_environment
from tests.unprivileged import make_unprivileged_folder

install_import_hook(["birdie_jax", "hlo_analysis", "pallas_kernels"], "beartype.beartype")
start_jax()
# Tracing in JAX creates many objects; garbage collection after every 700 takes a fifth of the tests' time.
gc.set_threshold(50_000, 20, 20)

_SLOW_FOLDERS = ("benchmarks", "docs", "launch", "pages", "studies")
_SLOW_FIXTURES = {"gcs_server", "proxied_server", "proxy", "s3_server", "store"}
_FAST_SECONDS, _ALL_SECONDS = 120, 600
_MAX_WORKER_BYTES = 1.2e9
_IS_FAST = pytest.StashKey[bool]()

# The fast tier tries a few examples, the full tier many. No test has a deadline.
hypothesis.settings.register_profile("fast", max_examples=8, deadline=None)
hypothesis.settings.register_profile("all", max_examples=50, deadline=None)


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run the slow tests too, which CI does")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    everything = config.getoption("--all")
    hypothesis.settings.load_profile("all" if everything else "fast")
    if config.getoption("timeout", None) is None:
        config.option.timeout = _ALL_SECONDS if everything else _FAST_SECONDS


def pytest_collection_modifyitems(config, items):
    for item in items:
        folder = Path(item.path).relative_to(Path(__file__).parent).parts[0]
        if folder in _SLOW_FOLDERS or _SLOW_FIXTURES & set(item.fixturenames):
            item.add_marker(pytest.mark.slow)
    fast = list(_fast_items(items))
    for item in fast:
        item.stash[_IS_FAST] = True
    if not config.getoption("--all"):
        config.hook.pytest_deselected(items=[item for item in items if _IS_FAST not in item.stash])
        items[:] = fast


def _fast_items(items):
    """Yield the tests of the fast tier, in order."""
    cases = Counter(item.function for item in items if hasattr(item, "function"))
    seen = Counter()
    for item in items:
        if item.get_closest_marker("slow"):
            continue
        sampled = item.get_closest_marker("sampled")
        if sampled:
            count, number = cases[item.function], seen[item.function]
            seen[item.function] += 1
            wanted = sampled.args[0] if sampled.args else 1
            # Keep evenly spaced cases, including the first.
            if number * wanted // count == (number - 1) * wanted // count:
                continue
        yield item


def pytest_collection_finish():
    gc.freeze()


@contextlib.contextmanager
def _refused_processes(item):
    """Make a test of the fast tier fail if it starts a process; such tests belong to the slow tier."""

    def refuse(*args, **_):
        pytest.fail(f"the fast tier starts no process, and this test starts {args[1]}: mark it slow")

    with pytest.MonkeyPatch.context() as patch:
        if _IS_FAST in item.stash:
            patch.setattr(subprocess.Popen, "__init__", refuse)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    with _refused_processes(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with _refused_processes(item):
        return (yield)


@pytest.fixture(autouse=True, scope="session")
def _one_device():
    """Hide the second device from all tests but those with the fixture `two_devices`."""
    devices = jax.devices
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda *platform: devices(*platform)[:1])
        yield devices


@pytest.fixture
def two_devices(_one_device, monkeypatch):
    """Make JAX find two devices."""
    monkeypatch.setattr(jax, "devices", _one_device)


@pytest.fixture(autouse=True, scope="module")
def _bounded_memory():
    """Drop compiled programs after a module with many of them; the cache on disk keeps them."""
    yield
    if psutil.Process().memory_info().rss > _MAX_WORKER_BYTES:
        jax.clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def _found(environment, protocol):
    """Point this process and its children to a server, also after another server."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        fsspec.filesystem(protocol).clear_instance_cache()
        yield
        fsspec.filesystem(protocol).clear_instance_cache()


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory):
    """A server of Cloud Storage's protocol, for the libraries of this process and its children."""
    with run_gcs_server(tmp_path_factory.mktemp("gcs")) as server, _found(server.environment, "gcs"):
        yield server


@pytest.fixture
def bucket_url(gcs_server):
    """A name in the server's bucket below which there is nothing yet."""
    return f"gs://{BUCKET}/{secrets.token_hex(8)}"


@pytest.fixture
def enabled_interrupts():
    """Enable Ctrl-C: a shell starts background commands with it ignored, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def unprivileged_folder():
    with make_unprivileged_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def torch_packages():
    """Return the folder with PyTorch and transformers."""
    packages = os.environ.get("BIRDIE_TORCH", "")
    if not packages:
        pytest.skip("PyTorch is not there, or does not run: bash tests/run.sh --all fetches it")
    return packages


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    """The host and port of a server of S3's protocol, for s3fs in this process and its children."""
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
