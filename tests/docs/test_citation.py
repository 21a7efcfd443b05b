"""CITATION.cff has the fields that Citation File Format 1.2.0 requires, for this version."""

import yaml

from birdie_jax import __version__
from tests.docs.pages import REPOSITORY


def test_citation_has_the_required_fields():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= {*citation}
    assert (citation["cff-version"], citation["version"]) == ("1.2.0", __version__)
    for paper in citation["references"]:
        assert {"type", "title", "authors", "year", "url"} <= {*paper}
        assert all({*author} == {"given-names", "family-names"} for author in paper["authors"])
