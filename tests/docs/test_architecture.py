"""The page on architecture shows the layers of the import contracts, and all ten rules."""

import configparser
import re

from tests.docs.pages import REPOSITORY, fenced_blocks

PAGE = (REPOSITORY / "docs" / "architecture.md").read_text()


def test_layers_match_the_contract():
    contracts = configparser.ConfigParser()
    contracts.read(REPOSITORY / "setup.cfg")
    kept = contracts["importlinter:contract:layers"]["layers"].split("\n")
    (shown,) = (block for language, block in fenced_blocks(PAGE) if language == "layers")
    assert shown.strip().split("\n") == [line.strip() for line in kept if line.strip()]


def test_every_rule_names_its_code_and_its_test():
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, 11))
    for number, _, kept_by, test in rows:
        assert "`" in kept_by or number == "10"
        assert re.search(r"`tests/[\w/]+\.py", test)
