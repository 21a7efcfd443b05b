"""Printed commands, and those for a remote shell, are read back as the same arguments."""

import argparse
import contextlib
import importlib
import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch import commands
from launch.storage import check_storage
from tests.launch.hostile import HOSTILE
from tests.launch.stand_in import words_of

NO_NUMBERS = ["-1", "", "1.5", "x", "9" * 5000, "²"]
_ARGUMENTS = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))), min_size=1
)


each_launcher = pytest.mark.parametrize("launcher", ["local", "slurm", "gke_jobset", "tpu_pod"])


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


@pytest.mark.parametrize(
    ("parse", "texts", "allowed"),
    [
        (
            commands.parse_name,
            ["", "A", "1a", "a_b", "a b", "a;b", "a/../b", "a-", "a" * 41, "a\n"],
            "allowed: a small letter",
        ),
        (commands.parse_positive, ["0", *NO_NUMBERS], "allowed: 1 "),
        (commands.parse_port, ["0", *NO_NUMBERS], "allowed: 1 "),
        (commands.parse_non_negative, NO_NUMBERS, "allowed: 0 or more"),
        (commands.parse_variable, ["NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE is not set"),
        (commands.parse_variable, ["TOKEN=hidden"], "allowed: the name"),
    ],
)
def test_values_of_options_that_are_refused(parse, texts, allowed):
    for text in texts:
        with pytest.raises(argparse.ArgumentTypeError, match=allowed) as caught:
            parse(text)
        assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "shared", "message"),
    [
        (
            "--workdir=runs/a",
            False,
            "--workdir: found 'runs/a', which the workers do not share; allowed: gs:",
        ),
        ("--workdir=/home/run", True, "--workdir: found '/home/run', which the workers do not share"),
        ("--workdir /mnt/birdies", True, "--workdir: found '/mnt/birdies', which the workers do not share"),
        ("--workdir=", False, "--workdir: found '', which the workers do not share"),
        (
            "--workdir=/mnt/birdie/a",
            False,
            "--nfs: not given, and '/mnt/birdie/a' needs it; allowed: gs://",
        ),
        ("--workdir gs://b/a", True, "--nfs: given, but the command uses nothing below"),
        ("--workdir s3://b/a", False, "--workdir: found 's3://b/a', to which orbax writes no checkpoints"),
        ("--workdir=gs:/b/a", False, "--workdir: found 'gs:/b/a'; allowed: gs://BUCKET/..., or a folder"),
        ("--workdir=az://me:s3cret@b/a", False, "--workdir: found 'az://***@b/a'"),
        ("--workdir=gs://b/a --x=/mnt/birdie/t", False, "--nfs: not given, and '/mnt/birdie/t' needs it"),
        ("--workdir=gs://b/a --x=s3://b/t", False, "'s3://b/t': workers do not have the s3 extra"),
        ("--workdir=gs://b/a --x=gs://b/t", False, None),
        ("--workdir=/mnt/birdie/a", True, None),
        ("runs/a", False, None),
    ],
)
def test_run_that_workers_cannot_share(words, shared, message):
    with contextlib.ExitStack() as refused:
        if message:
            refused.enter_context(pytest.raises(commands.LaunchError, match=f"^{re.escape(message)}"))
        check_storage(["train", *words.split()], "--nfs", shared=shared)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["no-such-program"], "no-such-program: no such program on PATH"),
        (["false"], "false: failed with exit status 1"),
        (["/"], "cannot be run: Permission denied"),
    ],
)
def test_a_command_that_cannot_run_or_fails(command, message):
    with pytest.raises(commands.LaunchError, match=message):
        commands.Commands(dry_run=False).run(command)


def test_dry_run_runs_nothing(tmp_path, capfd):
    command = ["touch", str(tmp_path / "a b")]
    run = commands.Commands(dry_run=True)
    run.run(command)
    assert run.capture(command, assumed=(3, "yes")) == (3, "yes", "")
    assert not any(tmp_path.iterdir())
    assert [words_of(line) for line in capfd.readouterr().out.splitlines()] == [command, command]


@each_launcher
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


@each_launcher
def test_no_option_takes_an_empty_text(launcher, capsys):
    parser = importlib.import_module(f"launch.{launcher}").make_parser()
    for action in parser._actions:
        if action.option_strings and action.nargs is None:
            with pytest.raises(SystemExit):
                parser.parse_args([f"{action.option_strings[0]}="])
            assert f"argument {action.option_strings[0]}: " in capsys.readouterr().err
