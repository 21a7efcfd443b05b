"""GKE: the JobSet is what Kubernetes reads as asked, and secrets go to kubectl's standard input alone."""

import json

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
    # kubectl reads YAML, of which JSON is a part.
    return yaml.safe_load((REPOSITORY / "build" / "launch" / f"{name}.jobset.json").read_text())


def pod(name: str) -> dict:
    (replicated,) = manifest(name)["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]["template"]["spec"]


def expanded(text: str) -> str:
    """Do what Kubernetes does to a container's arguments: `$(NAME)` is a variable, `$$` a dollar."""
    parts, at = [], 0
    while at < len(text):
        if text[at] == "$" and at + 1 < len(text):
            if text[at + 1] == "$":
                parts.append("$")
                at += 2
                continue
            if text[at + 1] == "(" and ")" in text[at:]:
                end = text.index(")", at)
                parts.append(f"<value of {text[at + 2 : end]}>")
                at = end + 1
                continue
        parts.append(text[at])
        at += 1
    return "".join(parts)


def test_dry_run_prints_what_a_real_run_executes(stand_ins, launch, run_name):
    arguments = options(run_name, "--pass_env=TOKEN", "--namespace=team")
    dry = launch("gke_jobset", *arguments, "--dry_run", "--", *COMMAND, *HOSTILE, TOKEN=SECRET)
    assert dry.returncode == 0 and stand_ins.calls() == []
    before = manifest(run_name)
    real = launch("gke_jobset", *arguments, "--", *COMMAND, *HOSTILE, TOKEN=SECRET)
    assert real.returncode == 0
    assert [words_of(line) for line in dry.stdout.splitlines()] == stand_ins.calls()
    apply = ["kubectl", "apply", "--server-side", "--namespace=team"]
    file = f"--filename=build/launch/{run_name}.jobset.json"
    assert stand_ins.calls() == [[*apply, "--filename=-"], [*apply, file]]
    assert manifest(run_name) == before


def test_secrets_are_in_standard_input_alone(stand_ins, launch, run_name):
    done = launch("gke_jobset", *options(run_name, "--pass_env=TOKEN"), "--", *COMMAND, TOKEN=SECRET)
    assert done.returncode == 0
    given = json.loads(stand_ins.standard_input()[0])
    assert (given["kind"], given["stringData"]) == ("Secret", {"TOKEN": SECRET})
    (container,) = pod(run_name)["containers"]
    assert container["env"] == [
        {
            "name": "TOKEN",
            "valueFrom": {"secretKeyRef": {"name": given["metadata"]["name"], "key": "TOKEN"}},
        }
    ]
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
    (replicated,) = whole["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    # 64 chips, 4 a host.
    assert (replicated["replicas"], job["completions"], job["parallelism"]) == (2, 16, 16)
    assert (job["completionMode"], job["backoffLimit"]) == ("Indexed", 0)
    assert pod(run_name)["restartPolicy"] == "Never"
    assert pod(run_name)["terminationGracePeriodSeconds"] == 60
    assert pod(run_name)["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "4x4x4",
        "cloud.google.com/gke-spot": "true",
    }
    (container,) = pod(run_name)["containers"]
    assert container["resources"]["limits"] == {"google.com/tpu": 4}
    (mount,), (volume,) = container["volumeMounts"], pod(run_name)["volumes"]
    assert (mount["name"], mount["mountPath"]) == (volume["name"], "/mnt/birdie")
    assert volume["persistentVolumeClaim"] == {"claimName": "shared"}
    assert "serviceAccountName" not in pod(run_name)


def test_run_in_a_bucket_needs_no_volume(stand_ins, launch, run_name):
    more = ["--service_account=birdie"]
    assert launch("gke_jobset", *options(run_name, *more), "--", *COMMAND).returncode == 0
    assert pod(run_name)["serviceAccountName"] == "birdie"
    (container,) = pod(run_name)["containers"]
    assert "volumes" not in pod(run_name) and "volumeMounts" not in container


def test_image_has_what_buckets_need():
    assert "'.[tpu,gcs]'" in (REPOSITORY / "launch/Dockerfile").read_text()


@pytest.mark.parametrize(
    ("arguments", "more", "message"),
    [
        (["--workdir=runs/a"], [], "--workdir: found 'runs/a', which the workers do not share"),
        (
            ["--workdir=/mnt/birdie/a"],
            [],
            "--claim=CLAIM: not given, and '/mnt/birdie/a' needs it; allowed:",
        ),
        (
            ["--workdir=gs://b/a"],
            ["--claim=c"],
            "--claim=CLAIM: given, and nothing in the command is below",
        ),
        (["--workdir=s3://b/a"], [], "--workdir: found 's3://b/a', to which orbax writes no checkpoints"),
        (["--workdir=gs:/b/a"], ["--claim=c"], "--workdir: found 'gs:/b/a'; allowed: gs://BUCKET/..."),
        (
            ["--workdir=gs://b/a", "--config.data.source=/mnt/birdie/x.jsonl"],
            [],
            "--claim=CLAIM: not given, and '/mnt/birdie/x.jsonl' needs it",
        ),
    ],
)
def test_run_that_pods_cannot_share(stand_ins, launch, run_name, *, arguments, more, message):
    done = launch("gke_jobset", *options(run_name, *more), "--", *TRAIN, *arguments)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, line.startswith(f"launch.gke_jobset: {message}")) == (1, True), line
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
    assert done.returncode != 0
    assert message in done.stderr
    assert stand_ins.calls() == []


def test_cluster_that_refuses(stand_ins, launch, run_name):
    stand_ins.rules([("apply", [[1, "", "no matches for kind JobSet"]])])
    done = launch("gke_jobset", *options(run_name), "--", *COMMAND)
    assert done.returncode == 1
    assert "no matches for kind JobSet" in done.stderr
