"""The documentation builds as a site without a broken link, and requests nothing from other hosts."""

import os
import re
import subprocess
import sys

import pytest

from tests.docs.pages import REPOSITORY


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    packages = os.environ.get("BIRDIE_DOCS", "")
    if not packages:
        pytest.skip("BIRDIE_DOCS is not set; tests/run.sh --all sets it")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={folder}"],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": packages, "NO_MKDOCS_2_WARNING": "1", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_no_page_requests_anything_from_another_host(site):
    requested = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')
    pages = list(site.rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        found = [tag for tag in requested.findall(page.read_text()) if 'rel="canonical"' not in tag]
        assert not found, page


@pytest.mark.slow
def test_the_reference_has_every_field_command_and_public_name(site):
    configuration = (site / "reference/configuration/index.html").read_text()
    assert all(name in configuration for name in ("optimizer.", "<code>num_steps</code>", "model.mamba2"))
    commands = (site / "reference/command_line/index.html").read_text()
    assert "--config" in commands and "--processes" in commands and "Traceback" not in commands
    python = (site / "reference/python/index.html").read_text()
    assert all(f"birdie_jax.{name}" in python for name in ("engine.train", "objectives.make_objective"))
    assert "h_t = f_t * h_{t-1} + i_t * z_t" in (site / "reference/models/index.html").read_text()


@pytest.mark.slow
def test_search_finds_words_of_pages_and_of_the_reference(site):
    index = (site / "search/search_index.json").read_text()
    assert all(word in index for word in ("Branch a run", "gated_delta_rule", "What you get"))
