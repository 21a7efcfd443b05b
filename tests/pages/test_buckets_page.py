"""The pages on buckets: cadences and limits match the code, and launch pages begin with a bucket."""

import re

import pytest

from birdie_jax.engine import lease_file, metrics_file
from birdie_jax.storage import object_store
from tests.pages.page_commands import REPOSITORY, commands_of_page

PAGE = " ".join((REPOSITORY / "docs/buckets.md").read_text().split())


def test_cadences_match_the_code():
    of_bucket, of_disk = lease_file.ObjectLeaseFile, lease_file.LocalLeaseFile
    parts, events = metrics_file._UPLOAD_SECONDS, metrics_file._UPLOADS_FOR_EVENTS
    assert (
        f"every {of_disk.renewal_seconds:.0f} seconds; after {of_disk.expiry_seconds:.0f} seconds without"
        in PAGE
    )
    assert (
        f"every {of_bucket.renewal_seconds:.0f} seconds, and after {of_bucket.expiry_seconds:.0f}," in PAGE
    )
    assert f"a part every {parts:.0f} seconds and one before each checkpoint" in PAGE
    assert parts * events == 120 and "replaced there every two minutes" in PAGE
    writes = 60 / of_bucket.renewal_seconds + 60 / parts + 60 / (parts * events)
    assert 8 < writes < 9 and "about nine small objects a minute, six for its lease, two of metrics" in PAGE


def test_limits_match_the_code():
    assert f"each try ends after {object_store.REQUEST_SECONDS} seconds" in PAGE
    assert "all of them after some two minutes" in PAGE
    assert 110 < 6 * object_store.REQUEST_SECONDS + 36 < 150


@pytest.mark.parametrize("page", ["launch_tpu_pod", "launch_gke"])
def test_launch_pages_begin_with_a_bucket(page):
    name = f"docs/{page}.md"
    commands = commands_of_page(name, (REPOSITORY / name).read_text())
    runs = [one.arguments for one in commands if "birdie_jax.train" in one.arguments]
    workdirs = [word for run in runs for word in run if word.startswith("--workdir=")]
    assert [workdir.startswith("--workdir=gs://BUCKET/") for workdir in workdirs] == [True, False]
    assert any(word.startswith("--service_account=") for word in runs[0])
    assert not any(word.startswith(("--nfs", "--claim")) for word in runs[0])


@pytest.mark.parametrize("page", ["buckets", "launch_tpu_pod", "launch_gke"])
def test_buckets_are_created_without_soft_delete_and_with_both_roles(page):
    text = (REPOSITORY / f"docs/{page}.md").read_text()
    made = re.search(r"gcloud storage buckets create gs://BUCKET (.*)", text)
    assert made and made.group(1).split() == [
        *("--location=us-east5", "--uniform-bucket-level-access", "--soft-delete-duration=0")
    ]
    roles = re.findall(r"buckets add-iam-policy-binding gs://BUCKET --role=(\S+) ", text)
    assert roles == ["roles/storage.objectAdmin", "roles/storage.legacyBucketReader"]
