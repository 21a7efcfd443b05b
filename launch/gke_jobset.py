r"""Run on TPU slices in Google Kubernetes Engine, as a JobSet that Kubernetes starts again by itself.

    python -m launch.gke_jobset --name=birdie --image=us-docker.pkg.dev/project/birdie/birdie:1 \
        --accelerator=tpu-v5p-slice --topology=4x4x4 --claim=birdie --spot -- \
        python -m birdie_jax.train --config=configs/birdie_1_4b.py --workdir=/mnt/birdie/birdie

Writes the JobSet to `--manifest`, as JSON, and applies it with kubectl. One job of the set is one slice,
one pod one host of it. A pod that fails, or a slice that is taken away, ends the set's jobs; the JobSet
makes all of them anew, and the same command goes on from its checkpoint. Failures count towards
`--restarts`, disruptions do not. `--claim` names a PersistentVolumeClaim that many pods may write to; it is
mounted at /mnt/birdie, and is where the workdir has to be.

`--pass_env` makes a Secret of variables of this environment. Their values go to kubectl's standard input:
they are in no file, on no command line, and in no manifest.

Written after
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

from launch.commands import (
    REPOSITORY,
    Commands,
    LaunchError,
    exit_with,
    name,
    need,
    not_negative,
    parse,
    positive,
    values_of,
    variable,
)

_MOUNT = "/mnt/birdie"
_TOPOLOGY = re.compile(r"[1-9][0-9]*(x[1-9][0-9]*){1,2}")
# JAX's coordinator (https://docs.jax.dev) and that of the slices' common network.
_PORTS = (8482, 8080)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the manifest and apply it; return the exit status."""
    options, command = parse(make_parser(), arguments)
    run = Commands(options.dry_run)
    try:
        need(command)
        manifest = Path(options.manifest or f"build/launch/{options.name}.jobset.json")
        path = REPOSITORY / manifest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(jobset(options, command), indent=2) + "\n", encoding="utf-8")
        # The server keeps what it is sent, and no copy of it in an annotation.
        apply = ["kubectl", "apply", "--server-side", f"--namespace={options.namespace}"]
        if options.pass_env:
            values = values_of(options.pass_env, os.environ)
            run.run([*apply, "--filename=-"], given=json.dumps(secret(options, values)))
        run.run([*apply, f"--filename={manifest}"])
    except (LaunchError, OSError) as error:
        exit_with("gke_jobset", error)
    return 0


def jobset(options: argparse.Namespace, command: Sequence[str]) -> dict[str, Any]:
    """Return the JobSet.

    Raises:
        LaunchError: the slice cannot be divided among hosts of so many chips.
    """
    chips = math.prod(map(int, options.topology.split("x")))
    if chips % options.chips_per_host:
        raise LaunchError(
            f"--topology: {options.topology} has {chips} chips; allowed: a multiple of"
            f" --chips_per_host={options.chips_per_host}"
        )
    hosts = chips // options.chips_per_host
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    job = {
        "completionMode": "Indexed",
        "completions": hosts,
        "parallelism": hosts,
        # A host less stops the whole run: the JobSet starts all of it again, the job nothing by itself.
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onPodConditions": [disrupted]}]},
        "template": {"spec": _pod(options, command)},
    }
    disruption = {
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": options.name,
            # One job has one pool of nodes, which is one slice, to itself.
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "failurePolicy": {"maxRestarts": options.restarts, "rules": [disruption]},
            "replicatedJobs": [{"name": "slice", "replicas": options.slices, "template": {"spec": job}}],
        },
    }


def secret(options: argparse.Namespace, values: Mapping[str, str]) -> dict[str, Any]:
    """Return the Secret that holds the environment variables of a run."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": _secret_name(options)},
        "type": "Opaque",
        "stringData": dict(values),
    }


def literal(argument: str) -> str:
    """Return what Kubernetes reads as `argument`: it expands `$(NAME)`, and makes one dollar of two."""
    return argument.replace("$", "$$")


def _pod(options: argparse.Namespace, command: Sequence[str]) -> dict[str, Any]:
    container = {
        "name": "train",
        "image": options.image,
        "command": [literal(argument) for argument in command],
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
        # The JobSet restarts; and a pod failure policy asks for it.
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
    if options.claim:
        container["volumeMounts"] = [{"name": "run", "mountPath": _MOUNT}]
        pod["volumes"] = [{"name": "run", "persistentVolumeClaim": {"claimName": options.claim}}]
    return pod


def _secret_name(options: argparse.Namespace) -> str:
    return f"{options.name}-environment"


def _topology(text: str) -> str:
    if not _TOPOLOGY.fullmatch(text):
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: AxB or AxBxC, e.g. 4x4x4")
    return text


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the launcher's own options."""
    parser = argparse.ArgumentParser(
        prog="python -m launch.gke_jobset",
        usage="%(prog)s [options] -- COMMAND",
        description="Run on TPU slices in Google Kubernetes Engine.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--name", type=name, required=True, help="of the run and its JobSet")
    add("--namespace", default="default", help="of Kubernetes; default: default")
    add("--image", required=True, help="container image with this code and its packages")
    add("--accelerator", required=True, help="of the nodes, e.g. tpu-v5p-slice")
    add("--topology", type=_topology, required=True, help="of one slice, e.g. 4x4x4")
    add("--chips_per_host", type=positive, default=4, help="default 4")
    add("--slices", type=positive, default=1, help="how many; default 1")
    add("--spot", action="store_true", help="nodes that can be taken away")
    add("--claim", type=name, help=f"PersistentVolumeClaim, mounted at {_MOUNT}")
    add("--pass_env", type=variable, action="append", default=[], help="NAME of a variable for the command")
    add("--restarts", type=not_negative, default=20, help="after failures, at most so many; default 20")
    add("--stop_seconds", type=positive, default=300, help="for saving before the end; default 300")
    add("--manifest", help="file to write; default build/launch/NAME.jobset.json")
    add("--dry_run", action="store_true", help="write the manifest, print the commands, run nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
