"""Command lines: what is printed and what a remote shell is sent is read back as the same arguments."""

import argparse
import importlib
import subprocess

import pytest
from hypothesis import given
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


@pytest.mark.parametrize("text", ["0", "-1", "", "1.5", "x", "9" * 5000, "²"])
def test_a_number_that_is_none_is_refused(text):
    for parse in (commands.parse_positive, commands.parse_port):
        with pytest.raises(argparse.ArgumentTypeError, match="allowed: 1 "):
            parse(text)
    if text != "0":
        with pytest.raises(argparse.ArgumentTypeError, match="allowed: 0 or more"):
            commands.parse_non_negative(text)


@pytest.mark.parametrize("launcher", ["local", "slurm", "gke_jobset", "tpu_pod"])
@pytest.mark.parametrize("given", [[], ["--no_such\noption"], ["--name=" + "x" * 100_000], ["--name=a\nb"]])
def test_options_are_refused_in_one_short_line(launcher, given, capsys):
    parser = importlib.import_module(f"launch.{launcher}").make_parser()
    with pytest.raises(SystemExit) as end:
        parser.parse_args(given)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"launch.{launcher}: ")
    assert line.endswith(" (--help lists the options)")
    assert len(line) < 800


@pytest.mark.parametrize("launcher", ["local", "slurm", "gke_jobset", "tpu_pod"])
def test_no_option_takes_an_empty_text(launcher, capsys):
    parser = importlib.import_module(f"launch.{launcher}").make_parser()
    for action in parser._actions:
        if action.option_strings and action.nargs is None:
            with pytest.raises(SystemExit):
                parser.parse_args([f"{action.option_strings[0]}="])
            assert f"argument {action.option_strings[0]}: " in capsys.readouterr().err


def test_a_program_that_may_not_be_run(tmp_path):
    with pytest.raises(commands.LaunchError, match="cannot be run: Permission denied"):
        commands.Commands(dry_run=False).run([str(tmp_path)])
