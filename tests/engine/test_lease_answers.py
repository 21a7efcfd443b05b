"""A lease in a bucket is its trainer's own also where the answer that said so was lost."""

import pytest

from birdie_jax.engine.lease import Lease
from birdie_jax.errors import ConfigError
from birdie_jax.storage import make_path
from birdie_jax.storage.workdir import Workdir
from tests.failing_proxy import run_failing_proxy
from tests.gcs_server import BUCKET, gcs_environment, run_gcs_server

pytestmark = pytest.mark.slow


@pytest.fixture
def proxy(tmp_path, monkeypatch):
    with run_failing_proxy() as proxy, run_gcs_server(tmp_path, public_host=proxy.host) as server:
        proxy.upstream = server.host
        for name, value in gcs_environment(f"http://{proxy.host}").items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.mark.parametrize("released_before", [False, True])
def test_trainer_does_not_refuse_itself(proxy, released_before):
    """The request is repeated, and refused by what it has written itself."""
    workdir = Workdir(make_path(f"gs://{BUCKET}/run"))
    if released_before:
        with Lease(workdir):
            pass
    proxy.reset_answer(method="POST", times=1)
    with Lease(workdir) as lease:
        lease.check()
        with pytest.raises(ConfigError, match="is in use"), Lease(workdir):
            pass
