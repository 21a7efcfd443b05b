"""The hooks of pre-commit are the checks that CI runs before its tests, with the same arguments."""

import yaml

from tests.docs.pages import REPOSITORY


def hooks() -> list[dict]:
    config = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())
    return [hook for repository in config["repos"] for hook in repository["hooks"]]


def test_hooks_match_the_checks_of_ci():
    lines = (REPOSITORY / "tests" / "run.sh").read_text().splitlines()
    tools = [line.strip() for line in lines if line.strip().startswith(".venv/bin/")]
    checks = [line for line in tools if "-m pytest" not in line]
    assert [hook["entry"] for hook in hooks()] == checks


def test_hooks_check_the_whole_tree_with_the_versions_of_ci():
    for hook in hooks():
        assert hook["language"] == "system"
        assert hook["pass_filenames"] is False
