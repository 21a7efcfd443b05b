"""Private parts of other libraries are used in one file, and have the effect that they are used for."""

from pathlib import Path

import pytest
from orbax.checkpoint.serialization.tensorstore_utils import get_ts_context

import birdie_jax
from birdie_jax.engine import private_api


@pytest.mark.parametrize("use_ocdbt", [False, True])
def test_orbax_repeats_a_request_as_often_as_it_is_limited_to(use_ocdbt):
    private_api.limit_request_retries()
    found = get_ts_context(use_ocdbt=use_ocdbt)["gcs_request_retries"].to_json()
    assert (found["max_retries"], found["max_delay"]) == (8, "16s")


def test_a_process_does_not_wait_for_the_threads_of_a_save():
    private_api.end_despite_failed_saves()
    thread = private_api.future._SignalingThread(target=print, send_signals=[], receive_signals=[])
    assert thread.daemon


def test_private_modules_are_imported_in_one_file():
    package = Path(birdie_jax.__file__).parent
    importing = [path.name for path in package.rglob("*.py") if "._src" in path.read_text()]
    assert importing == ["private_api.py"]
