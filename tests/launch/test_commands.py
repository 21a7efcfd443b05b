"""Command lines: what is printed and what a remote shell is sent is read back as the same arguments."""

import argparse
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch import commands
from tests.launch.hostile import HOSTILE
from tests.launch.stand_in import words_of

_ARGUMENTS = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))), min_size=1
)


def _posix_words(script: str) -> list[str]:
    printed = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout
    return printed.decode().split("\0")[:-1]


def test_printed_line_of_hostile_arguments():
    line = commands.format_command(HOSTILE)
    assert "\n" not in line
    assert words_of(line) == HOSTILE


@settings(max_examples=50, deadline=None)
@given(_ARGUMENTS)
def test_printed_line_is_one_line_and_reads_back(arguments):
    line = commands.format_command(arguments)
    assert line.isprintable()
    assert words_of(line) == arguments


def test_remote_shell_reads_hostile_arguments():
    assert _posix_words(commands.format_remote(["printf", r"%s\0", *HOSTILE])) == HOSTILE


def test_remote_commands_stop_at_the_first_that_fails():
    script = commands.format_remote(["printf", r"a\0"], ["false"], ["printf", r"b\0"])
    assert _posix_words(f"{script} || true") == ["a"]


@pytest.mark.parametrize("text", ["", "A", "1a", "a_b", "a b", "a;b", "a/../b", "a-", "a" * 41, "a\n"])
def test_name_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="allowed: a small letter"):
        commands.parse_name(text)


def test_value_of_a_variable_is_refused_and_not_told():
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        commands.parse_variable("TOKEN=hidden")
    assert "hidden" not in str(caught.value)


def test_variable_that_is_not_set_is_refused(monkeypatch):
    monkeypatch.delenv("TOKEN", raising=False)
    with pytest.raises(argparse.ArgumentTypeError, match="TOKEN is not set"):
        commands.parse_variable("TOKEN")


def test_program_that_is_not_there():
    with pytest.raises(commands.LaunchError, match="no-such-program: no such program on PATH"):
        commands.Commands(dry_run=False).run(["no-such-program"])


def test_dry_run_runs_nothing(tmp_path, capfd):
    command = ["touch", str(tmp_path / "a b")]
    run = commands.Commands(dry_run=True)
    run.run(command)
    assert run.capture(command, assumed=(3, "yes")) == (3, "yes", "")
    assert not any(tmp_path.iterdir())
    assert [words_of(line) for line in capfd.readouterr().out.splitlines()] == [command, command]


def test_failure_names_the_command():
    with pytest.raises(commands.LaunchError, match="false: failed with exit status 1"):
        commands.Commands(dry_run=False).run(["false"])
