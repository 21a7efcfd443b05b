"""Slurm: the arguments of sbatch, and its script on the first node of a job."""

import json
import os
import signal
import subprocess
import time

import pytest

from tests.launch.hostile import HOSTILE
from tests.launch.stand_in import REPOSITORY, words_of

COMMAND = ["python", "-m", "birdie_jax.train", "--workdir=/shared/run"]
SECRET = "s3cret value"


def options(*more: str) -> list[str]:
    return ["--name=birdie", "--nodes=2", "--gpus_per_node=8", "--time=24:00:00", *more]


def test_dry_run_prints_what_a_real_run_submits(stand_ins, launch, monkeypatch):
    for name in [name for name in os.environ if name.lower().endswith("_proxy") or "XDG" in name]:
        monkeypatch.delenv(name)
    arguments = options("--pass_env=TOKEN", "--partition=p", "--qos=q", "--account=a", "--constraint=h200")
    given = {
        "USER": "me",
        "TOKEN": SECRET,
        "LD_LIBRARY_PATH": "/opt/lib",
        "https_proxy": "http://proxy:3128",
    }
    dry = launch("slurm", *arguments, "--dry_run", "--", *COMMAND, *HOSTILE, **given)
    assert dry.returncode == 0 and stand_ins.calls() == []
    real = launch("slurm", *arguments, "--", *COMMAND, *HOSTILE, **given)
    assert real.returncode == 0
    assert [words_of(line) for line in dry.stdout.splitlines()] == stand_ins.calls()
    checked, submitted = stand_ins.calls()
    assert checked == [*COMMAND, *HOSTILE, "--check"]
    script = submitted.index("launch/slurm.sbatch")
    assert submitted[script + 1 :] == ["100", *COMMAND, *HOSTILE]
    assert submitted[:script] == [
        *("sbatch", "--job-name=birdie", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8"),
        *("--time=24:00:00", "--exclusive", "--mem=0", "--requeue", "--open-mode=append"),
        *("--output=birdie-%j.log", "--signal=TERM@300"),
        "--export=HOME,PATH,USER,LD_LIBRARY_PATH,https_proxy,TOKEN",
        *("--partition=p", "--account=a", "--qos=q", "--constraint=h200"),
    ]
    seen = json.dumps(stand_ins.calls()) + dry.stdout + dry.stderr + real.stdout + real.stderr
    assert "s3cret" not in seen


def test_refused_by_slurm(stand_ins, launch):
    stand_ins.rules([("--nodes", [[1, "", "sbatch: error: no such partition"]])])
    done = launch("slurm", *options(), "--", *COMMAND)
    assert done.returncode == 1
    assert "sbatch: error: no such partition" in done.stderr
    assert "failed with exit status 1" in done.stderr


def script(stand_ins, restarts: str, *command: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        ["bash", str(REPOSITORY / "launch" / "slurm.sbatch"), restarts, *command],
        env=stand_ins.environment(SLURM_JOB_ID="12", **environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_script_starts_the_command_byte_for_byte(stand_ins):
    arguments = [*COMMAND, *HOSTILE]
    process = script(stand_ins, "3", *arguments)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert stand_ins.calls() == [
        ["srun", "--kill-on-bad-exit=1", "--label", "--cpu-bind=none", "--export=ALL", *arguments]
    ]


@pytest.mark.parametrize(
    ("status", "restarts", "said"),
    [(1, 2, "restart 3 of 3"), (143, 2, "restart 3 of 3"), (7, 3, "giving up after 3 restarts")],
)
def test_script_puts_the_job_back_so_many_times(stand_ins, status, restarts, said):
    stand_ins.rules([("--label", [[status, "", ""]])])
    process = script(stand_ins, "3", *COMMAND, SLURM_RESTART_COUNT=str(restarts))
    assert process.communicate(timeout=30)[0] == f"slurm.sbatch: ended with {status}; {said}\n"
    if restarts < 3:
        assert stand_ins.calls("scontrol") == [["scontrol", "requeue", "12"]]
    else:
        assert (process.returncode, stand_ins.calls("scontrol")) == (status, [])


def test_script_does_not_put_back_a_wrong_command(stand_ins):
    stand_ins.rules([("--label", [[2, "", ""]])])
    process = script(stand_ins, "3", *COMMAND)
    assert process.communicate(timeout=30)[0] == (
        "slurm.sbatch: ended with 2: the command or its configuration is wrong; not put back\n"
    )
    assert (process.returncode, stand_ins.calls("scontrol")) == (2, [])


@pytest.mark.parametrize("status", [75, 137, 143])
def test_one_process_with_2_ends_the_job_whatever_ends_the_others(stand_ins, status):
    """Slurm kills the other processes, or they notice that one is lost and end with 75."""
    said = "srun: error: node7: task 1: Exited with exit code 2"
    stand_ins.rules(
        [("--label", [[status, "0: step 1", f"0: a warning\n{said}\nsrun: Terminating StepId"]])]
    )
    process = script(stand_ins, "3", *COMMAND)
    printed = process.communicate(timeout=30)[0].splitlines()
    assert {"0: step 1", "0: a warning", said} < {*printed}
    assert printed[-1].startswith("slurm.sbatch: ended with 2: ")
    assert (process.returncode, stand_ins.calls("scontrol")) == (2, [])


@pytest.mark.parametrize(
    "said", ["srun: error: a: task 1: Exited with exit code 22", "1: Exited with exit code 2"]
)
def test_other_statuses_and_the_output_of_a_process_do_not_count_as_2(stand_ins, said):
    stand_ins.rules([("--label", [[137, "", said]])])
    process = script(stand_ins, "3", *COMMAND)
    assert "ended with 137; restart 1 of 3" in process.communicate(timeout=30)[0]


def test_a_wrong_configuration_is_not_submitted(stand_ins, launch):
    stand_ins.rules([("--check", [[2, "", "birdie_jax.train: config.no: unknown field"]])])
    done = launch("slurm", *options(), "--", *COMMAND)
    assert (done.returncode, stand_ins.calls("sbatch")) == (2, [])
    assert done.stderr == "launch.slurm: birdie_jax.train: config.no: unknown field\n"


def test_job_that_slurm_ends_does_not_put_itself_back(stand_ins):
    """Cancelled or preempted: Slurm signals the script too, and knows itself what becomes of the job."""
    stand_ins.rules([("--label", ["slow"])])
    process = script(stand_ins, "3", *COMMAND)
    try:
        while not stand_ins.calls("srun"):
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "slurm.sbatch: ended with 143, by Slurm\n"
        assert process.poll() is None
        assert stand_ins.calls("scontrol") == []
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_workdir_that_cannot_be_written_is_refused_before_the_job_waits(stand_ins, launch):
    done = launch(
        "slurm", *options(), "--", "python", "-m", "birdie_jax.train", "--workdir=s3://bucket/run"
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith("launch.slurm: --workdir: found 's3://bucket/run'")
    assert stand_ins.calls() == []
