"""GKE: Kubernetes reads the intended JobSet, and secrets are only in kubectl's standard input."""

import json
import re

import pytest
import yaml

from tests.launch.hostile import HOSTILE
from tests.launch.stand_in import REPOSITORY, words_of

TRAIN = ["python", "-m", "birdie_jax.train"]
COMMAND = [*TRAIN, "--workdir=gs://bucket/run"]
ON_A_SHARE = [*TRAIN, "--workdir=/mnt/birdie/run"]
SECRET = "s3cret 'value' $(x)"


def options(name: str, *more: str) -> list[str]:
    return [
        *(f"--name={name}", "--image=registry/image:1", "--accelerator=tpu-v5p-slice", "--topology=4x4x4"),
        *more,
    ]


def manifest(name: str) -> dict:
    # kubectl reads YAML, which includes JSON.
    return yaml.safe_load((REPOSITORY / "build" / "launch" / f"{name}.jobset.json").read_text())


def pod(name: str) -> dict:
    (replicated,) = manifest(name)["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]["template"]["spec"]


def expanded(text: str) -> str:
    """Do what Kubernetes does to a container's arguments: `$(NAME)` is a variable, `$$` a dollar."""
    return re.sub(
        r"\$\$|\$\(([^)]*)\)", lambda found: "$" if found[1] is None else f"<value of {found[1]}>", text
    )


def test_dry_run_prints_what_a_real_run_executes(stand_ins, launch, run_name):
    arguments = options(run_name, "--pass_env=TOKEN", "--namespace=team", "--service_account=birdie")
    dry = launch("gke_jobset", *arguments, "--dry_run", "--", *COMMAND, *HOSTILE, TOKEN=SECRET)
    assert dry.returncode == 0 and stand_ins.calls() == []
    before = manifest(run_name)
    real = launch("gke_jobset", *arguments, "--", *COMMAND, *HOSTILE, TOKEN=SECRET)
    assert real.returncode == 0
    assert [words_of(line) for line in dry.stdout.splitlines()] == stand_ins.calls()
    apply = ["kubectl", "apply", "--server-side", "--namespace=team"]
    file = f"--filename=build/launch/{run_name}.jobset.json"
    find = ["kubectl", "get", "--namespace=team", "jobset", run_name, "--ignore-not-found"]
    assert stand_ins.calls() == [
        [*COMMAND, *HOSTILE, "--check"],
        [*apply, "--filename=-"],
        [*find, "--output=jsonpath={.status.terminalState}"],
        [*apply, file],
    ]
    assert manifest(run_name) == before
    assert pod(run_name)["serviceAccountName"] == "birdie"
    (container,) = pod(run_name)["containers"]
    assert "volumes" not in pod(run_name) and "volumeMounts" not in container


def test_secrets_are_in_standard_input_alone(stand_ins, launch, run_name):
    done = launch("gke_jobset", *options(run_name, "--pass_env=TOKEN"), "--", *COMMAND, TOKEN=SECRET)
    assert done.returncode == 0
    given = json.loads(stand_ins.standard_input()[1])
    assert (given["kind"], given["stringData"]) == ("Secret", {"TOKEN": SECRET})
    (container,) = pod(run_name)["containers"]
    key = {"name": given["metadata"]["name"], "key": "TOKEN"}
    assert container["env"] == [{"name": "TOKEN", "valueFrom": {"secretKeyRef": key}}]
    seen = json.dumps([manifest(run_name), stand_ins.calls(), done.stdout, done.stderr])
    assert "s3cret" not in seen


def test_hostile_arguments_reach_the_container(stand_ins, launch, run_name):
    assert launch("gke_jobset", *options(run_name), "--", *COMMAND, *HOSTILE).returncode == 0
    (container,) = pod(run_name)["containers"]
    assert [expanded(argument) for argument in container["command"]] == [*COMMAND, *HOSTILE]
    assert expanded("$(HOME)") == "<value of HOME>"


def test_jobset(stand_ins, launch, run_name):
    more = ["--slices=2", "--restarts=5", "--spot", "--claim=shared", "--stop_seconds=60"]
    assert launch("gke_jobset", *options(run_name, *more), "--", *ON_A_SHARE).returncode == 0
    whole = manifest(run_name)
    assert (whole["apiVersion"], whole["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert whole["spec"]["failurePolicy"]["maxRestarts"] == 5
    # What Kubernetes says of a failed job, and what the set does then.
    for said, action in {
        "Pod a/b has condition DisruptionTarget matching FailJob rule at index 0": (
            "RestartJobSetAndIgnoreMaxRestarts"
        ),
        "Container train for pod a/b failed with exit code 2 matching FailJob rule at index 1": (
            "FailJobSet"
        ),
    }.items():
        (found,) = (
            rule["action"]
            for rule in whole["spec"]["failurePolicy"]["rules"]
            if any(re.search(pattern, said) for pattern in rule["onJobFailureMessagePatterns"])
        )
        assert found == action
    (replicated,) = whole["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    # 64 chips, 4 a host.
    assert (replicated["replicas"], job["completions"], job["parallelism"]) == (2, 16, 16)
    assert (job["completionMode"], job["backoffLimit"]) == ("Indexed", 0)
    assert job["podFailurePolicy"]["rules"][1]["onExitCodes"] == {"operator": "In", "values": [2]}
    assert pod(run_name)["restartPolicy"] == "Never"
    assert pod(run_name)["terminationGracePeriodSeconds"] == 60
    assert pod(run_name)["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "4x4x4",
        "cloud.google.com/gke-spot": "true",
    }
    (container,) = pod(run_name)["containers"]
    assert container["resources"]["limits"] == {"google.com/tpu": 4}
    # What buckets need is in the image.
    assert "install_packages tpu,gcs " in (REPOSITORY / "launch/Dockerfile").read_text()
    (mount,), (volume,) = container["volumeMounts"], pod(run_name)["volumes"]
    assert (mount["name"], mount["mountPath"]) == (volume["name"], "/mnt/birdie")
    assert volume["persistentVolumeClaim"] == {"claimName": "shared"}
    assert "serviceAccountName" not in pod(run_name)


def test_run_that_pods_cannot_share(stand_ins, launch, run_name):
    done = launch("gke_jobset", *options(run_name), "--", *ON_A_SHARE)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith("launch.gke_jobset: --claim=CLAIM: not given, and '/mnt/birdie/run' needs it")
    assert stand_ins.calls() == [] and not (REPOSITORY / f"build/launch/{run_name}.jobset.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--topology=4x"], "--topology: found '4x'; allowed: AxB or AxBxC"),
        (["--topology=1x3"], "--topology: 1x3 has 3 chips; allowed: a multiple of --chips_per_host=4"),
        (["--claim=A"], "--claim: found 'A'"),
        (["--service_account=a@b"], "--service_account: found 'a@b'"),
    ],
)
def test_refused(stand_ins, launch, run_name, change, message):
    done = launch("gke_jobset", *options(run_name, *change), "--", *COMMAND)
    assert done.returncode == 2
    assert message in done.stderr
    assert stand_ins.calls("kubectl") == []


@pytest.mark.parametrize(
    ("rules", "verbs"),
    [
        ([("get", [[0, "Failed", ""]])], ["get", "delete", "apply"]),
        (
            [("apply", [[1, "", "spec.replicatedJobs: field is immutable"], [0, "applied", ""]])],
            ["get", "apply", "delete", "apply"],
        ),
        ([], ["get", "apply"]),
    ],
)
def test_a_set_that_has_ended_or_changed_is_replaced(stand_ins, launch, run_name, rules, verbs):
    """Kubernetes does not change or restart a JobSet. A running set with the same manifest is kept."""
    stand_ins.rules(rules)
    done = launch("gke_jobset", *options(run_name), "--", *COMMAND)
    assert done.returncode == 0, done.stderr
    calls = stand_ins.calls("kubectl")
    assert [call[1] for call in calls] == verbs
    for call in calls:
        if call[1] == "delete":
            assert call[2:] == ["--namespace=default", "jobset", run_name, "--cascade=foreground"]


def test_a_wrong_configuration_is_not_applied(stand_ins, launch, run_name):
    stand_ins.rules([("--check", [[2, "", "birdie_jax.train: config.no: unknown field"]])])
    done = launch("gke_jobset", *options(run_name), "--", *COMMAND)
    assert (done.returncode, stand_ins.calls("kubectl")) == (2, [])
    assert done.stderr == "launch.gke_jobset: birdie_jax.train: config.no: unknown field\n"


def test_cluster_that_refuses(stand_ins, launch, run_name):
    stand_ins.rules([("apply", [[1, "", "no matches for kind JobSet"]])])
    done = launch("gke_jobset", *options(run_name), "--", *COMMAND)
    assert done.returncode == 1
    assert "no matches for kind JobSet" in done.stderr
