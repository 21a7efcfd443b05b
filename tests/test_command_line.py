"""Invalid command lines: one line with the found and the allowed values, and status 2."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from birdie_jax import command_line
from birdie_jax.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    LeaseLost,
    NoBucketError,
    OtherCheckpointError,
    PromptError,
    RecordError,
    ScoreError,
    StoreError,
    TrainingDiverged,
    UnsuitableText,
    WorkdirInUse,
)
from tests.forked_runs import REPOSITORY
from tests.forked_verbs import run_commands

CONFIG = "--config=configs/tiny.py"
WORKDIR = "--workdir=never/made"
DEFAULTS = "from birdie_jax.config import default_config\n"
LONG = "x" * 100_000

# The text of a config file, and its message.
BAD_FILES = {
    "def get_config(:\n": "cannot be used: line 1: SyntaxError: ",
    "import no_such_module\n": "line 1: ModuleNotFoundError: No module named 'no_such_module'",
    "import sys\nsys.exit(3)\n": "cannot be used: line 2: SystemExit: 3",
    "def get_config():\n    raise SystemExit\n": "cannot be used: line 2: SystemExit",
    "def get_config():\n    return {}['a']\n": "cannot be used: line 2: KeyError: 'a'",
    "def get_config():\n    raise ValueError('two\\nlines')\n": "line 2: ValueError: two\\nlines",
    f"def get_config():\n    raise ValueError('x' * {len(LONG)})\n": "(100,000 characters)",
    "def get_config():\n    return get_config()\n": "line 2: RecursionError: ",
    "def get_config():\n    return {'seed': 1}\n": "a value of type dict; allowed: a ConfigDict",
    "def get_config():\n    pass\n": "get_config returned a value of type NoneType; allowed: a ConfigDict",
    f"{DEFAULTS}def get_config(variant):\n    return default_config()\n": ":VARIANT, as the file",
    "get_config = 3\n": "found no function get_config",
    # A ValueError before Python 3.11.4, and a SyntaxError since.
    "\0": "Error: source code string cannot contain null bytes",
}
BAD_VALUES = {
    "/no/such/file.py": "found no file; allowed: a Python file",
    "": "--config=: found no file",
    "configs": "found a folder; allowed: a Python file",
    "/dev/null": "found no file",
    "a\nb.py": "--config=a\\nb.py: found no file",
    LONG: "found no file",
    "configs/tiny.py:riddle": "--config=configs/tiny.py:riddle: config variant 'riddle' is unknown; ",
    "configs/tiny.py:a:b": "config variant 'a:b' is unknown",
    "tny": "--config=tny: found no file; allowed: a Python file such as configs/tiny.py, or a preset: tiny",
    "birdie_110m:hwak": "config variant 'hwak' is unknown; allowed: hawk, ",
    "birdie_110m:hawk,papr": "; each also with ,paper",
}
ARMS = """--config.objectives.arms="{'copy': {'objective': 'copying', 'weight': 1.0}}\""""
# Flags next to the file, and their messages.
BAD_FIELDS = {
    ("--config.no.such=1",): "config.no.such: unknown field 'no'; allowed: bandit, ",
    ("-config.no.such", "1"): "config.no.such: unknown field 'no'",
    ("--config.model.layers.x=1",): "unknown field 'x'; allowed: no fields",
    ("--config.init.frm=a",): "config.init.frm: unknown field 'frm'; allowed: from",
    ("--config.=1",): "found no name of a field; allowed: --config.section.field=value",
    ("--config.model.=1",): "found no name of a field",
    ("--config.f(x)=1",): "found no name of a field",
    ("--config.model[0]=1",): "unknown field 0; allowed: ",
    (f"--config.{LONG}=1",): "unknown field 'xxx",
    ("--config.model.layers=abc",): "config.model.layers: found 'abc'; allowed: an integer",
    ("--config.optimizer.learning_rate=fast",): "learning_rate: found 'fast'; allowed: a number",
    ("--config.model.bidirectional=maybe",): "model.bidirectional: found 'maybe'; allowed: true or false",
    ("--config.model.layer=3",): "config.model.layer: unknown field 'layer'; allowed: layers, ",
    ("--config.model.layers",): "Missing value for flag --config.model.layers",
    ("--config.model=3",): "config.model: found '3'; allowed: its fields one by one, as --config.model.",
    (f"--config.model.layers={LONG}",): "(100,000 characters); allowed: an integer",
    ("--config.objectives.arms.a.objective=copying",): (
        f"has no arm 'a'; allowed: one of it (there is none), or all arms in one value: {ARMS}"
    ),
    ("--config.objectives.arms.a=copying",): "has no arm 'a'; allowed: ",
    ("--config.objectives.arms=copying",): f"found 'copying'; allowed: all arms, as in {ARMS}",
    ("--config.objectives.arms={'a': {'weight': 1.0}, 'a': {}}",): (
        "config.objectives.arms: has the key 'a' twice; allowed: once"
    ),
    ("--config.data.corpora.a.weight=2",): "one of it (there is none), or all corpora in one value",
    ("--config.eval.tasks={'a': {'task': 'squad', 'task': 'glue'}}",): "has the key 'task' twice",
    ("--flagfile=/no/such/file",): "/no/such/file",
    ("--flagfile=/proc/self/mem",): "Input/output error",
    ("--flagfile=/dev/zero",): "--flagfile=/dev/zero: found a device; allowed: a file of flags",
    (f"--flagfile={sys.executable}",): "'utf-8' codec can't decode byte",
    ("--no_such_flag",): "Unknown command line flag 'no_such_flag'",
    ("two\nlines",): r"unknown argument 'two\nlines'; every option begins with --",
}
# Other invalid command lines, of any verb.
BAD_COMMANDS = {
    ("train",): (
        "--config is not given; --workdir is not given; example: "
        "python -m birdie_jax.train --config=configs/tiny.py --workdir=runs/tiny (--help lists the flags)"
    ),
    ("train", CONFIG): "--workdir is not given",
    ("train", WORKDIR): "--config is not given",
    ("train", CONFIG, "--workdir="): "--workdir=: found ''; allowed: the name of a file or folder",
    ("report", "--workdir="): "--workdir=: found ''; allowed: ",
    ("report", "runs/tiny"): "unknown argument 'runs/tiny'",
    ("report", WORKDIR, "runs/tiny"): "unknown argument 'runs/tiny'",
    ("export", "--workdir=", "--output=a"): "--workdir=: found ''; allowed: ",
    ("export", "--workdir=a", "--output="): "--output=: found ''; allowed: ",
    ("export", "--workdir=", "--output="): "file or folder; flag --output=: found ''; allowed: ",
    ("generate", "--prompt=a", "--workdir="): "--workdir=: found ''; allowed: ",
    ("generate", "--prompt=a", "--model="): "--model=: found ''; allowed: ",
    ("generate", "--workdir=a", "--prompt_file="): "--prompt_file=: found ''; allowed: ",
    ("generate", "--workdir=a", "--prompt_file=a", "--output="): "--output=: found ''; allowed: ",
    ("plan", CONFIG, "--topology=cpu:1", "--json="): "--json=: found ''; allowed: ",
    ("plan", CONFIG, "--topology=cpu:1", f"--largest_batch={LONG}"): "value should be one of",
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    """Return exit status and stderr of every command line above, by message."""
    folder = tmp_path_factory.mktemp("configs")
    commands = {}
    for number, text in enumerate(BAD_FILES):
        path = folder / f"{number}.py"
        path.write_text(text)
        commands[text] = ("train", f"--config={path}", WORKDIR)
    commands |= {value: ("train", f"--config={value}", WORKDIR) for value in BAD_VALUES}
    commands |= {fields: ("train", CONFIG, WORKDIR, *fields) for fields in BAD_FIELDS}
    commands |= {command: command for command in BAD_COMMANDS}
    results = run_commands(list(commands.values()))
    return dict(zip(commands, zip(commands.values(), results, strict=True), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "said"),
    [*BAD_FILES.items(), *BAD_VALUES.items(), *BAD_FIELDS.items(), *BAD_COMMANDS.items()],
    ids=lambda value: repr(value)[:60],
)
def test_an_invalid_command_line_is_refused_in_one_line(refusals, case, said):
    (verb, *_), (status, stdout, stderr) = refusals[case]
    assert (status, stdout) == (2, "")
    (line,) = stderr.splitlines()
    assert line.startswith(f"birdie_jax.{verb}: ")
    assert line.endswith(" (--help lists the flags)")
    assert said in line
    assert len(line) < 1200


@pytest.mark.slow
def test_a_configuration_is_checked_without_a_run(tmp_path):
    """Also without data, and for any devices."""
    check = ("train", CONFIG, f"--workdir={tmp_path}/run", "--check", "--config.data.prepared=/mnt/no")
    cases = {
        (): "",
        ("--config.mesh.data=64",): "",
        (
            "--config.batching.rows=0",
        ): "birdie_jax.train: config.batching.rows: found 0; allowed: at least 1",
        (
            "--config.objectives.mixture=birdy",
        ): "birdie_jax.train: config.objectives.mixture: found 'birdy'",
        ("--config.train.hooks=profiler",): "birdie_jax.train: config.train.hooks: found 'profiler'",
        ("--config.eval.tasks=\"{'a': {'task': 'phoneboko'}}\"",): "birdie_jax.train: config.eval.tasks",
    }
    results = run_commands([(*check, *more) for more in cases])
    for said, (status, stdout, stderr) in zip(cases.values(), results, strict=True):
        assert (status, stdout, stderr[: len(said)]) == (2 if said else 0, "", said), stderr
        assert bool(said) == bool(stderr)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_flags_can_change_one_arm_or_set_all_arms(tmp_path):
    file = tmp_path / "arms.py"
    file.write_text(
        f"{DEFAULTS}def get_config():\n    config = default_config()\n"
        "    config.objectives.arms = {'copy': {'objective': 'copying', 'weight': 1.0}}\n"
        "    return config\n"
    )
    arms = "--config.objectives.arms"
    given = [
        (f"--config={file}", f"{arms}.copy.weight=2.0"),
        (CONFIG, f"{arms}={{'copy': {{'objective': 'copying'}}}}"),
        ("--config=configs/tiny_corpora.py", "--config.data.corpora.packages.weight=2.0"),
        (f"--config={file}", f"{arms}.copy.wieght=2.0"),
        (f"--config={file}", f"{arms}.paste.weight=2.0"),
    ]
    # Readable files fail later, at an impossible mesh.
    results = run_commands([("plan", "--topology=cpu:1", *one, "--config.mesh.data=3") for one in given])
    assert [status for status, _, _ in results] == [2] * 5
    assert all("config.mesh" in stderr for _, _, stderr in results[:3])
    assert "has no field of that arm 'wieght'; allowed: one of it (objective, weight)" in results[3][2]
    assert "has no arm 'paste'; allowed: one of it (copy)" in results[4][2]


@pytest.mark.slow
def test_a_flag_can_set_a_field_of_a_corpus_that_the_file_omits(tmp_path):
    file = tmp_path / "corpora.py"
    file.write_text(
        f"{DEFAULTS}def get_config():\n    config = default_config()\n"
        "    config.data.corpora = {'a': {'source': 'a.txt'}}\n"
        "    return config\n"
    )
    refusals = {
        "max_epochs=9": "",
        "max_epochs=-1": "config.data.corpora.a.max_epochs: found -1.0; allowed: at least 0",
        "max_epochs=many": "config.data.corpora.a.max_epochs: found 'many'; allowed: a number",
        "prepared=b": "config.data.corpora.a: found both of source and prepared; allowed: one of them",
        "epochs=9": "no field of that corpus 'epochs'; allowed: one of it (source, prepared, weight, max_e",
    }
    check = ("train", f"--config={file}", WORKDIR, "--check")
    results = run_commands([(*check, f"--config.data.corpora.a.{field}") for field in refusals])
    for said, (status, _, stderr) in zip(refusals.values(), results, strict=True):
        assert status == (2 if said else 0) and said in stderr, stderr


@pytest.mark.parametrize(
    ("lines", "end", "status", "fault"),
    [
        (40_000, "return", 0, ""),
        (1, "return", 0, ""),
        (1, "refuse('report', ConfigError('a fault'))", 2, "a fault"),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.slow
def test_a_closed_pipe_ends_a_command_silently(*, lines, end, status, fault, unbuffered):
    """Like `head`, during a long output or before the end; the command still reports its faults."""
    program = (
        "import sys\n"
        "from birdie_jax.command_line import refuse, start\n"
        "from birdie_jax.errors import ConfigError\n"
        "def main(arguments):\n"
        "    sys.stdin.readline()\n"
        f"    for number in range({lines}):\n"
        "        print('line', number)\n"
        f"    {end}\n"
        "start('report', main)\n"
    )
    if unbuffered and fault:
        # Unbuffered output fails before the fault.
        status, fault = 0, ""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.write("continue\n")
        process.stdin.flush()
        said = process.stderr.read()
    assert said == (f"birdie_jax.report: {fault}\n" if fault else "")
    assert process.returncode == status


LINES = "two\nlines"


def caused_by(cause, error):
    error.__cause__ = cause
    return error


FULL, ABSENT = OSError(errno.ENOSPC, "full"), FileNotFoundError(errno.ENOENT, "absent")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        # These need another command, configuration or file; see docs/launch_local.md.
        *((ConfigError(LINES), 2), (DataError(LINES), 2), (PromptError(LINES), 2), (RecordError(LINES), 2)),
        *((NoBucketError(errno.EIO, LINES), 2), (OtherCheckpointError(LINES), 2)),
        *((caused_by(ABSENT, DataError(LINES)), 2), (caused_by(ABSENT, ConfigError(LINES)), 2)),
        # For these the same command may succeed later.
        *((StoreError(LINES), 1), (CheckpointError(LINES), 1), (TrainingDiverged(LINES), 1)),
        *(
            (WorkdirInUse(LINES), 1),
            (LeaseLost(LINES), 1),
            (ScoreError(LINES), 1),
            (TimeoutError(LINES), 1),
        ),
        *((caused_by(FULL, DataError(LINES)), 1), (caused_by(FULL, ConfigError(LINES)), 1)),
        (caused_by(TimeoutError(), DataError(LINES)), 1),
        (caused_by(caused_by(FULL, DataError("inner")), ConfigError(LINES)), 1),
        # These are not user errors.
        *((OSError("a fault"), None), (ValueError("a fault"), None), (UnsuitableText("a fault"), None)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_user_errors_are_one_line_and_other_errors_are_raised(monkeypatch, capsys, error, status):
    def run(main, **_):
        raise error

    monkeypatch.setattr(command_line.app, "run", run)
    with pytest.raises(SystemExit if status else type(error)) as end:
        command_line.start("report", print, TimeoutError)
    if status:
        assert end.value.code == status
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("birdie_jax.report: ") and line.endswith(r"two\nlines")


@pytest.mark.slow
def test_another_broken_pipe_is_raised():
    """For example of a connection to a store."""
    program = (
        "from birdie_jax.command_line import start\n"
        "def main(arguments):\n"
        "    raise BrokenPipeError(32, 'Broken pipe')\n"
        "start('report', main)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "BrokenPipeError: [Errno 32] Broken pipe" in done.stderr


# What the main thread does when SIGTERM arrives.
BUSY = {
    "waits": ("time.sleep(60)",),
    # Neither returns to the interpreter nor holds its lock, like a compilation.
    "in a library": (
        "lock = ctypes.create_string_buffer(99)",
        "[ctypes.CDLL(None).pthread_mutex_lock(lock) for _ in range(2)]",
    ),
    "trains": (
        "with StopRequest() as stop:",
        "    while not stop.signal:",
        "        time.sleep(0.01)",
        "print('saved')",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("busy", BUSY)
def test_sigterm_is_named_in_one_line(busy):
    """By the process itself, not by its forks."""
    program = (
        "import ctypes, os, signal, sys, time\n"
        "from birdie_jax.command_line import start\n"
        "from birdie_jax.engine.stop import StopRequest\n"
        "def main(arguments):\n"
        "    fork = os.fork()\n"
        "    if not fork:\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(60)\n"
        "        os._exit(0)\n"
        "    sys.stdin.readline()\n"
        "    os.kill(fork, signal.SIGTERM)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == -signal.SIGTERM\n"
        "    print('begun', flush=True)\n"
        f"{''.join(f'    {line}{os.linesep}' for line in BUSY[busy])}"
        "try:\n"
        "    start('report', main)\n"
        "finally:\n"
        "    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("continue\n")
        process.stdin.flush()
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        said = process.stdout.read(), process.stderr.read()
    line, status = "birdie_jax.report: stopped by SIGTERM\n", 143
    assert (*said, process.returncode) == (("saved\n", "", 0) if busy == "trains" else ("", line, status))
