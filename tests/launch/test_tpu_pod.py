"""TPU slices: the commands for gcloud, through preemptions, failures and lost connections."""

import json
import os
import sys

import pytest

from tests.launch.hostile import HOSTILE
from tests.launch.stand_in import REPOSITORY, words_of

NOT_FOUND = [1, "", "ERROR: (gcloud) NOT_FOUND: Resource was not found"]
ACTIVE, SUSPENDED = [0, "ACTIVE", ""], [0, "SUSPENDED", ""]
OK, FAILED, LOST = [0, "", ""], [1, "", ""], [255, "", ""]
TRAIN = ["python", "-m", "birdie_jax.train"]
COMMAND = [*TRAIN, "--workdir=gs://bucket/run"]
ON_A_SHARE = [*TRAIN, "--workdir=/mnt/birdie/run"]
SECRET = "s3cret 'value' $(x)"


def options(name: str, action: str = "train", *more: str) -> list[str]:
    return [
        *(action, f"--name={name}", "--zone=us-east5-a", "--accelerator_type=v5p-128"),
        *("--runtime_version=v2-alpha-tpuv5", "--spot", "--poll_seconds=0", "--stop_seconds=5", *more),
    ]


def kinds(calls: list[list[str]]) -> list[str]:
    """Return what each call to gcloud was about: its verb, or for ssh the worker's action."""
    names = []
    for call in calls:
        verb = call[4]
        if verb == "ssh":
            script = next(a for a in call if a.startswith("--command="))
            verb = script.split("tpu_worker.sh ")[1].split()[0] if "tpu_worker.sh" in script else "unpack"
        names.append(verb)
    return names


def test_dry_run_prints_what_a_real_run_executes(stand_ins, launch, run_name):
    arguments = options(run_name, "train", "--pass_env=TOKEN", "--nfs=10.0.0.2:/share", "--project=mine")
    dry = launch("tpu_pod", *arguments, "--dry_run", "--", *ON_A_SHARE, *HOSTILE, TOKEN=SECRET)
    assert (dry.returncode, dry.stderr) == (0, "")
    assert stand_ins.calls() == []
    stand_ins.rules([("describe", [NOT_FOUND, ACTIVE])])
    real = launch("tpu_pod", *arguments, "--", *ON_A_SHARE, *HOSTILE, TOKEN=SECRET)
    assert real.returncode == 0
    printed = [words_of(line) for line in dry.stdout.splitlines()]
    assert printed == stand_ins.calls()
    assert printed[0] == [*ON_A_SHARE, *HOSTILE, "--check"]
    assert kinds(stand_ins.calls("gcloud")) == [
        *("describe", "create", "describe", "scp", "unpack", "scp"),
        *("mount", "install", "start", "follow", "delete"),
    ]


def test_logs_are_in_the_workdir(launch, run_name):
    done = launch(
        "tpu_pod", *options(run_name, "run", "--dry_run"), "--", *TRAIN, "--workdir=gs://bucket/run/"
    )
    (started,) = (line for line in done.stdout.splitlines() if " start " in line)
    assert " start gs://bucket/run/logs python " in started


def test_create_requests_the_configured_slices(stand_ins, launch, run_name):
    stand_ins.rules([("describe", [[0, "WAITING_FOR_RESOURCES", ""], [0, "PROVISIONING", ""], ACTIVE])])
    done = launch("tpu_pod", *options(run_name, "create", "--slices=3", "--valid_until_duration=6h"))
    assert done.returncode == 0
    create, *looks = stand_ins.calls()
    assert create == [
        *("gcloud", "compute", "tpus", "queued-resources", "create", run_name, "--zone=us-east5-a"),
        *("--node-count=3", f"--node-prefix={run_name}", "--accelerator-type=v5p-128"),
        *("--runtime-version=v2-alpha-tpuv5", "--scopes=https://www.googleapis.com/auth/cloud-platform"),
        *("--valid-until-duration=6h", "--spot", "--quiet"),
    ]
    assert kinds(looks) == ["describe"] * 3
    assert f"{run_name} is PROVISIONING" in done.stdout


def test_preempted_in_mid_run_is_created_again_and_resumes(stand_ins, launch, run_name):
    # Looks: none there; created; after following; before creating again; created again.
    stand_ins.rules(
        [("describe", [NOT_FOUND, ACTIVE, SUSPENDED, SUSPENDED, ACTIVE]), ("follow", [LOST, OK])]
    )
    done = launch("tpu_pod", *options(run_name), "--", *COMMAND)
    assert done.returncode == 0, done.stderr
    calls = stand_ins.calls("gcloud")
    attempt = ["create", "describe", "scp", "unpack", "install", "start", "follow"]
    assert kinds(calls) == ["describe", *attempt, "describe", "describe", "delete", *attempt, "delete"]
    first, second = (call for call, kind in zip(calls, kinds(calls), strict=True) if kind == "start")
    assert first == second
    assert len(stand_ins.calls("git")) == 3, "the code is packed once"
    assert "the slices were preempted (SUSPENDED); restart 1 of 20" in done.stdout


def test_preemptions_are_followed_up_to_the_limit(stand_ins, launch, run_name):
    looks = [NOT_FOUND] + [ACTIVE, SUSPENDED, SUSPENDED] * 9
    stand_ins.rules([("describe", looks), ("follow", [LOST])])
    done = launch("tpu_pod", *options(run_name, "train", "--restarts=2"), "--", *COMMAND)
    assert done.returncode == 1
    assert done.stderr == (
        "launch.tpu_pod: the slices were preempted (SUSPENDED); giving up after --restarts=2\n"
    )
    assert kinds(stand_ins.calls("gcloud")).count("start") == 3
    assert kinds(stand_ins.calls("gcloud"))[-1] == "delete"


@pytest.mark.parametrize(
    ("looks", "installed", "state"),
    [
        (
            [NOT_FOUND, [0, "PROVISIONING", ""], [0, "FAILED", ""], [0, "FAILED", ""], ACTIVE],
            [OK],
            "FAILED",
        ),
        ([NOT_FOUND, ACTIVE, SUSPENDED, SUSPENDED, ACTIVE], [LOST, OK], "SUSPENDED"),
    ],
)
def test_preemption_before_the_run_is_named(stand_ins, launch, run_name, *, looks, installed, state):
    stand_ins.rules([("describe", looks), ("worker.sh install", installed)])
    done = launch("tpu_pod", *options(run_name), "--", *COMMAND)
    assert done.returncode == 0, done.stderr
    assert f"preempted ({state}); restart 1 of 20" in done.stdout
    assert kinds(stand_ins.calls("gcloud")).count("create") == 2


def test_failed_command_is_started_again_where_it_is(stand_ins, launch, run_name):
    stand_ins.rules(
        [("describe", [NOT_FOUND, ACTIVE]), ("follow", [[7, "", ""], OK]), ("worker.sh running", [FAILED])]
    )
    done = launch("tpu_pod", *options(run_name), "--", *COMMAND)
    assert done.returncode == 0
    after = kinds(stand_ins.calls("gcloud"))
    after = after[after.index("follow") :]
    assert after == [
        *("follow", "describe", "running", "describe", "stop", "status"),
        *("describe", "installed", "start", "follow", "delete"),
    ]
    assert "the command failed with exit status 7; restart 1 of 20" in done.stdout


@pytest.mark.parametrize("keeps", [False, True])
def test_command_that_always_fails(stand_ins, launch, run_name, keeps):
    """Idle slices are billed, so they are deleted, unless `--keep` is given."""
    stand_ins.rules(
        [("describe", [NOT_FOUND, ACTIVE]), ("follow", [[7, "", ""]]), ("worker.sh running", [FAILED])]
    )
    more = ["--restarts=1", *(["--keep"] if keeps else [])]
    done = launch("tpu_pod", *options(run_name, "train", *more), "--", *COMMAND)
    assert done.returncode == 1
    assert "the command failed with exit status 7; giving up after --restarts=1" in done.stderr
    assert ("delete" in kinds(stand_ins.calls("gcloud"))) is not keeps


def test_a_wrong_command_is_not_started_again(stand_ins, launch, run_name):
    """The launcher queries the workers' status, because gcloud may return another worker's."""
    stand_ins.rules(
        [
            *(("describe", [NOT_FOUND, ACTIVE]), ("follow", [[75, "", ""]])),
            *(("worker.sh running", [FAILED]), ("worker.sh status", [[0, "status 75\nstatus 2", ""]])),
        ]
    )
    done = launch("tpu_pod", *options(run_name), "--", *COMMAND)
    assert (done.returncode, kinds(stand_ins.calls("gcloud")).count("start")) == (2, 1)
    assert done.stderr == (
        "launch.tpu_pod: the command ended with exit status 2: it or its configuration is wrong\n"
    )
    assert kinds(stand_ins.calls("gcloud"))[-3:] == ["stop", "status", "delete"]


def test_a_wrong_configuration_is_refused_before_anything_is_requested(stand_ins, launch, run_name):
    said = "birdie_jax.train: config.batching.rows: found 0; allowed: at least 1"
    stand_ins.rules([("--check", [[2, "", f"a warning\n{said}"]])])
    done = launch("tpu_pod", *options(run_name), "--", *COMMAND)
    assert (done.returncode, done.stderr) == (2, f"launch.tpu_pod: {said}\n")
    assert stand_ins.calls() == [[*COMMAND, "--check"]]


def test_a_machine_without_the_packages_does_not_check(stand_ins, launch, run_name):
    stand_ins.rules(
        [("--check", [[1, "", "ModuleNotFoundError: No module named 'jax'"]]), ("describe", [ACTIVE])]
    )
    done = launch("tpu_pod", *options(run_name), "--", *COMMAND)
    assert done.returncode == 0
    assert (
        "launch.tpu_pod: the configuration is not checked on this machine: ModuleNotFoundError: No module "
        "named 'jax'\n"
    ) in done.stdout


def test_lost_connection_is_made_again_and_nothing_restarted(stand_ins, launch, run_name):
    stand_ins.rules([("describe", [NOT_FOUND, ACTIVE]), ("follow", [LOST, LOST, OK])])
    done = launch("tpu_pod", *options(run_name), "--", *COMMAND)
    assert done.returncode == 0
    names = kinds(stand_ins.calls("gcloud"))
    assert (names.count("start"), names.count("follow"), names.count("stop")) == (1, 3, 0)
    assert "restart" not in done.stdout


def test_train_resumes_with_existing_slices(stand_ins, launch, run_name):
    stand_ins.rules([("describe", [ACTIVE])])
    done = launch("tpu_pod", *options(run_name, "train", "--keep"), "--", *COMMAND)
    assert done.returncode == 0
    assert kinds(stand_ins.calls("gcloud")) == ["describe", "installed", "start", "follow"]


def test_existing_slices_get_another_commit_and_environment(stand_ins, launch, run_name):
    stand_ins.rules(
        [("describe", [ACTIVE]), ("rev-parse", [[0, "c2", ""]]), ("worker.sh installed", [FAILED, OK])]
    )
    arguments = [*options(run_name, "train", "--keep", "--pass_env=TOKEN"), "--", *COMMAND]
    for _ in range(2):
        assert launch("tpu_pod", *arguments, TOKEN=SECRET).returncode == 0
    calls = stand_ins.calls("gcloud")
    sent = ["describe", "scp", "unpack", "scp", "install"]
    started = ["start", "follow"]
    assert kinds(calls) == [
        *("describe", "installed", *sent, *started),
        *("describe", "installed", "scp", *started),
    ]
    assert "installed tpu,gcs c2" in calls[1][6]


@pytest.mark.parametrize(
    ("rule", "status", "message", "requests"),
    [
        (
            ("describe", [[1, "", "PERMISSION_DENIED: no"]]),
            *(1, "state: PERMISSION_DENIED: no; existing slices stay, and are billed: "),
            ["describe"] * 5,
        ),
        (
            ("--porcelain", [[0, " M launch/local.py\n?? configs/new.py", ""]]),
            *(2, "not committed, and so not sent: launch/local.py, configs/new.py; commit them, or "),
            [],
        ),
        (
            ("--error-unmatch", [FAILED]),
            2,
            "--config: found configs/own.py; allowed: a file of the commit",
            [],
        ),
    ],
)
def test_refused_run_creates_nothing(stand_ins, launch, run_name, *, rule, status, message, requests):
    stand_ins.rules([rule])
    done = launch("tpu_pod", *options(run_name), "--", *COMMAND, "--config=configs/own.py:hawk")
    assert done.returncode == status
    assert message in done.stderr
    assert kinds(stand_ins.calls("gcloud")) == requests


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--name=a;b"], "--name: found 'a;b'"),
        (["--nfs=server:/x;reboot"], "--nfs: found 'server:/x;reboot'"),
        (["--restarts=-1"], "--restarts: found '-1'"),
        (["--slices=0"], "--slices: found '0'"),
        (["--pass_env=TOKEN=s3cret"], "--pass_env: allowed: the name"),
    ],
)
def test_refused(stand_ins, launch, run_name, change, message):
    done = launch("tpu_pod", *options(run_name, "train", *change), "--", *COMMAND, TOKEN="x")
    assert done.returncode == 2
    assert message in done.stderr
    assert "s3cret" not in done.stderr
    assert stand_ins.calls() == []


@pytest.mark.parametrize("scopes", [None, "storage-rw,logging-write"])
def test_service_account_of_a_bucket(stand_ins, launch, run_name, scopes):
    stand_ins.rules([("describe", [NOT_FOUND, ACTIVE])])
    more = ["--service_account=birdie@mine.iam.gserviceaccount.com"]
    more += [f"--scopes={scopes}"] if scopes else []
    done = launch("tpu_pod", *options(run_name, "train", *more), "--", *COMMAND)
    assert done.returncode == 0
    (create,) = (call for call in stand_ins.calls("gcloud") if call[4] == "create")
    assert "--service-account=birdie@mine.iam.gserviceaccount.com" in create
    assert f"--scopes={scopes or 'https://www.googleapis.com/auth/cloud-platform'}" in create


@pytest.mark.parametrize(
    ("command", "more", "extras"),
    [
        (COMMAND, [], "tpu,gcs"),
        ([*ON_A_SHARE, "--config.data.prepared=gs://bucket/pile"], ["--nfs=10.0.0.2:/share"], "tpu,gcs"),
        (ON_A_SHARE, ["--nfs=10.0.0.2:/share"], "tpu"),
        (["python", "-m", "birdie_jax.check_device"], [], "tpu"),
    ],
)
def test_workers_get_the_extras_that_the_command_needs(
    stand_ins, launch, run_name, *, command, more, extras
):
    stand_ins.rules([("describe", [NOT_FOUND, ACTIVE])])
    assert launch("tpu_pod", *options(run_name, "train", *more), "--", *command).returncode == 0
    scripts = " ".join(word for call in stand_ins.calls("gcloud") for word in call if "install" in word)
    assert scripts.endswith(f"tpu_worker.sh install {extras}")


def test_slices_are_made_ready_before_a_command_is_known(stand_ins, launch, run_name):
    stand_ins.rules([("describe", [ACTIVE])])
    assert launch("tpu_pod", *options(run_name, "push")).returncode == 0
    assert any(word.endswith("install tpu,gcs") for call in stand_ins.calls("gcloud") for word in call)
    done = launch("tpu_pod", *options(run_name))
    assert (done.returncode, "no command" in done.stderr) == (2, True)


def test_run_that_workers_cannot_share(stand_ins, launch, run_name):
    done = launch("tpu_pod", *options(run_name), "--", *ON_A_SHARE)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith(
        "launch.tpu_pod: --nfs=SERVER:/FOLDER: not given, and '/mnt/birdie/run' needs it"
    )
    assert stand_ins.calls() == []


def test_share_that_was_mounted_before_is_used(stand_ins, launch, run_name):
    """By `push --nfs=...`; `run` need not repeat it."""
    stand_ins.rules([("describe", [ACTIVE])])
    assert launch("tpu_pod", *options(run_name, "run"), "--", *ON_A_SHARE).returncode == 0


def test_command_arrives_byte_for_byte_and_secrets_without_being_seen(
    stand_ins, launch, run_name, tmp_path
):
    """To the far end, through a real shell and the real worker's script."""
    program = tmp_path / "record arguments.py"
    program.write_text(
        "import json, os, sys\n"
        "print('at work')\n"
        "json.dump([sys.argv[2:], os.environ['TOKEN'], os.getcwd()], open(sys.argv[1], 'w'))\n"
    )
    answers = [("archive", ["pack"]), ("scp", ["copy"]), ("ssh", ["remote"])]
    stand_ins.rules([*answers, ("describe", [NOT_FOUND, ACTIVE])])
    recorded = tmp_path / "recorded.json"
    command = [sys.executable, str(program), str(recorded), *HOSTILE]
    done = launch("tpu_pod", *options(run_name, "train", "--pass_env=TOKEN"), "--", *command, TOKEN=SECRET)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = stand_ins.home / "birdie" / run_name
    assert json.loads(recorded.read_text()) == [HOSTILE, SECRET, str(folder)]
    assert "] at work" in done.stdout
    assert [call[1:2] for call in stand_ins.calls("uv")] == [["venv"], *[["pip"]] * 3]
    environment = folder / ".launch" / "environment"
    assert environment.stat().st_mode & 0o777 == 0o600

    assert SECRET not in done.stdout + done.stderr
    assert "s3cret" not in json.dumps(stand_ins.calls()) + done.stdout + done.stderr
    assert not list(REPOSITORY.glob(f"build/launch/{run_name}.environment"))
    assert not list(tmp_path.rglob("injected")) and not os.path.exists(REPOSITORY / "injected")
