r"""Run on TPU slices in Google Kubernetes Engine, as a JobSet that Kubernetes restarts automatically.

    python -m launch.gke_jobset --name=birdie --image=us-docker.pkg.dev/project/birdie/birdie:1 \
        --accelerator=tpu-v5p-slice --topology=4x4x4 --service_account=birdie --spot -- \
        python -m birdie_jax.train --config=configs/birdie_1_4b.py --workdir=gs://BUCKET/birdie

The launcher writes the JobSet to `--manifest`, as JSON, and applies it with kubectl. Each job of the set is
a slice, and each pod is a host of the slice. A pod that fails, or a slice that is preempted, ends the set's
jobs. The JobSet recreates all of them, and the same command resumes from its checkpoint. Failures count
towards `--restarts`, disruptions do not. A command that ends with 2, because it or its configuration is
wrong, fails the set. The launcher first deletes a set of the same name that has ended or has another
manifest.

The pods share no disk. The workdir is in a bucket that the Kubernetes service account of
`--service_account` can access, or below /mnt/birdie, where `--claim` mounts a PersistentVolumeClaim that
many pods may write to.

`--pass_env` creates a Secret from variables of this environment. kubectl reads their values from standard
input: no file, no command line and no manifest contains them.

Sources:
https://jobset.sigs.k8s.io/docs/concepts/
https://github.com/kubernetes-sigs/jobset/blob/main/examples/failure-policy/host-maintenance-event-model.yaml
https://docs.cloud.google.com/kubernetes-engine/docs/tutorials/tpu-multislice-kueue (selectors, resources)
https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container/ (`$(NAME)`)
"""

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .commands import (
    REPOSITORY,
    WRONG_COMMAND,
    Commands,
    LaunchError,
    Parser,
    UsageError,
    check_configuration,
    exit_with_error,
    parse_arguments,
    parse_name,
    parse_non_negative,
    parse_positive,
    parse_text,
    parse_variable,
    program,
    read_variables,
    require_command,
)
from .storage import MOUNT, check_storage

_TOPOLOGY = re.compile(r"[1-9][0-9]*(x[1-9][0-9]*){1,2}")
# The ports of JAX's coordinator (https://docs.jax.dev), and of the coordinator of the slices' network.
_PORTS = (8482, 8080)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the manifest and apply it; return the exit status."""
    options, command = parse_arguments(make_parser(), arguments)
    run = Commands(options.dry_run)
    try:
        require_command(command)
        check_storage(command, "--claim=CLAIM", shared=bool(options.claim))
        manifest = Path(options.manifest or f"build/launch/{options.name}.jobset.json")
        path = REPOSITORY / manifest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(make_jobset(options, command), indent=2) + "\n", encoding="utf-8")
        check_configuration(run, "gke_jobset", command)
        # A server-side apply keeps no copy of the manifest in an annotation.
        apply = ["kubectl", "apply", "--server-side", f"--namespace={options.namespace}"]
        if options.pass_env:
            values = read_variables(options.pass_env, os.environ)
            run.run([*apply, "--filename=-"], stdin=json.dumps(make_secret(options, values)))
        _apply_jobset(run, options, [*apply, f"--filename={manifest}"])
    except (LaunchError, OSError) as error:
        exit_with_error("gke_jobset", error)
    return 0


def _apply_jobset(run: Commands, options: argparse.Namespace, apply: Sequence[str]) -> None:
    """Apply the manifest; first delete a JobSet that has ended, or that has another manifest.

    Kubernetes neither changes an existing JobSet nor restarts one that has ended.

    Raises:
        LaunchError: kubectl failed.
    """
    jobset = [f"--namespace={options.namespace}", "jobset", options.name]
    ended = ["kubectl", "get", *jobset, "--ignore-not-found", "--output=jsonpath={.status.terminalState}"]
    # The set's pods have time to save, and are gone before new ones start.
    delete = ["kubectl", "delete", *jobset, "--cascade=foreground"]
    status, state, said = run.capture(ended, assumed=(0, ""))
    if status:
        raise LaunchError(f"{' '.join(ended[:5])}: failed with exit status {status}: {said}")
    if state:
        run.run(delete)
    status, written, said = run.capture(apply, assumed=(0, ""))
    if status and "immutable" in said:
        print("launch.gke_jobset: replaces the JobSet, which has another manifest", flush=True)
        run.run(delete)
        status, written, said = run.capture(apply, assumed=(0, ""))
    if status:
        raise LaunchError(f"{' '.join(apply[:5])}: failed with exit status {status}: {said}")
    if written:
        print(written, flush=True)


def make_jobset(options: argparse.Namespace, command: Sequence[str]) -> dict[str, Any]:
    """Return the JobSet of a run.

    Raises:
        UsageError: the slice cannot be divided into hosts with this number of chips.
    """
    chips = math.prod(map(int, options.topology.split("x")))
    if chips % options.chips_per_host:
        raise UsageError(
            f"--topology: {options.topology} has {chips} chips; allowed: a multiple of"
            f" --chips_per_host={options.chips_per_host}"
        )
    hosts = chips // options.chips_per_host
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    job = {
        "completionMode": "Indexed",
        "completions": hosts,
        "parallelism": hosts,
        # A lost host stops the whole run. The JobSet restarts all jobs, so a job restarts no pod.
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onPodConditions": [disrupted]},
                {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [WRONG_COMMAND]}},
            ]
        },
        "template": {"spec": _make_pod_spec(options, command)},
    }
    # Both kinds have the same reason; only the message distinguishes them.
    disruption = {
        "name": "disruption",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
        "onJobFailureMessagePatterns": ["condition DisruptionTarget"],
    }
    wrong_command = {
        "name": "wrong_command",
        "action": "FailJobSet",
        "onJobFailureReasons": ["PodFailurePolicy"],
        "onJobFailureMessagePatterns": [f"exit code {WRONG_COMMAND} "],
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": options.name,
            # Each job has its own node pool, which is one slice.
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "failurePolicy": {"maxRestarts": options.restarts, "rules": [wrong_command, disruption]},
            "replicatedJobs": [{"name": "slice", "replicas": options.slices, "template": {"spec": job}}],
        },
    }


def make_secret(options: argparse.Namespace, values: Mapping[str, str]) -> dict[str, Any]:
    """Return the Secret with the environment variables of a run."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": _secret_name(options)},
        "type": "Opaque",
        "stringData": dict(values),
    }


def escape_dollars(argument: str) -> str:
    """Escape an argument for Kubernetes, which expands `$(NAME)` and reads two dollars as one."""
    return argument.replace("$", "$$")


def _make_pod_spec(options: argparse.Namespace, command: Sequence[str]) -> dict[str, Any]:
    container = {
        "name": "train",
        "image": options.image,
        "command": [escape_dollars(argument) for argument in command],
        "ports": [{"containerPort": port} for port in _PORTS],
        "resources": {"limits": {"google.com/tpu": options.chips_per_host}},
    }
    if options.pass_env:
        container["env"] = [
            {"name": one, "valueFrom": {"secretKeyRef": {"name": _secret_name(options), "key": one}}}
            for one in options.pass_env
        ]
    selector = {
        "cloud.google.com/gke-tpu-accelerator": options.accelerator,
        "cloud.google.com/gke-tpu-topology": options.topology,
    }
    pod: dict[str, Any] = {
        # The JobSet restarts the run, and a pod failure policy requires "Never".
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": options.stop_seconds,
        "nodeSelector": selector,
        "containers": [container],
    }
    if options.spot:
        selector["cloud.google.com/gke-spot"] = "true"
        pod["tolerations"] = [
            {
                "key": "cloud.google.com/gke-spot",
                "operator": "Equal",
                "value": "true",
                "effect": "NoSchedule",
            }
        ]
    if options.service_account:
        pod["serviceAccountName"] = options.service_account
    if options.claim:
        container["volumeMounts"] = [{"name": "run", "mountPath": MOUNT}]
        pod["volumes"] = [{"name": "run", "persistentVolumeClaim": {"claimName": options.claim}}]
    return pod


def _secret_name(options: argparse.Namespace) -> str:
    return f"{options.name}-environment"


def _parse_topology(text: str) -> str:
    if not _TOPOLOGY.fullmatch(text):
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: AxB or AxBxC, e.g. 4x4x4")
    return text


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the launcher's own options."""
    parser = Parser(
        prog=program("gke_jobset"),
        usage="%(prog)s [options] -- COMMAND",
        description="Run on TPU slices in Google Kubernetes Engine.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--name", type=parse_name, required=True, help="name of the run and of its JobSet")
    add("--namespace", type=parse_text, default="default", help="namespace of Kubernetes; default: default")
    add("--image", type=parse_text, required=True, help="container image with this code and its packages")
    add(
        "--accelerator", type=parse_text, required=True, help="accelerator of the nodes, e.g. tpu-v5p-slice"
    )
    add("--topology", type=_parse_topology, required=True, help="topology of one slice, e.g. 4x4x4")
    add("--chips_per_host", type=parse_positive, default=4, help="TPU chips of a host; default 4")
    add("--slices", type=parse_positive, default=1, help="number of slices; default 1")
    add("--spot", action="store_true", help="nodes that can be preempted")
    add(
        "--service_account",
        type=parse_name,
        help="service account of Kubernetes, with rights to the bucket",
    )
    add("--claim", type=parse_name, help=f"PersistentVolumeClaim, mounted at {MOUNT}")
    add(
        "--pass_env",
        type=parse_variable,
        action="append",
        default=[],
        help="NAME of an environment variable",
    )
    add(
        "--restarts",
        type=parse_non_negative,
        default=20,
        help="maximum after failures; default 20",
    )
    add(
        "--stop_seconds",
        type=parse_positive,
        default=300,
        help="time for saving before SIGKILL; default 300",
    )
    add("--manifest", type=parse_text, help="file to write; default build/launch/NAME.jobset.json")
    add("--dry_run", action="store_true", help="write the manifest, print the commands, run nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
