"""Kubernetes with the MPI operator: an MPIJob, v2beta1."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ddlrun.schedulers.submit import TIME_LIMIT, BatchJob, JobState, Scheduler, StateQuery

LABEL = "ddlrun/job"
LAUNCHER = f"{LABEL}={{id}},ddlrun/role=launcher"


def read_job(text: str) -> JobState | None:
    """Read `kubectl get mpijobs,pods -o json`: the job's last true condition, and its launcher's exit code."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    items = found.get("items", [found])
    jobs = [item for item in items if item.get("kind") == "MPIJob"]
    if not jobs:
        return None
    conditions = [one for one in jobs[0].get("status", {}).get("conditions", []) if one.get("status") == "True"]
    for one in conditions:
        if one["type"] == "Succeeded":
            return JobState("Succeeded", 0)
        if one["type"] == "Failed":
            late = "DeadlineExceeded" in f"{one.get('reason')} {one.get('message')}"
            return JobState("Failed", TIME_LIMIT if late else _exit_code(items))
    return JobState(conditions[-1]["type"] if conditions else "Pending")


def _exit_code(items: Sequence[Mapping[str, Any]]) -> int:
    launchers = [
        item for item in items
        if item.get("kind") == "Pod" and item["metadata"].get("labels", {}).get("ddlrun/role") == "launcher"
    ]  # fmt: skip
    launchers.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
    codes = [
        status.get("state", {}).get("terminated", {}).get("exitCode")
        for pod in launchers
        for status in pod.get("status", {}).get("containerStatuses", [])
    ]
    return next((int(code) for code in reversed(codes) if code), 1)


def _problems(batch: BatchJob) -> list[str]:
    wanted = "Kubernetes: say which image the pods are: --image NAME, with ddlrun, Open MPI and sshd in it"
    return [] if batch.image else [wanted]


KUBERNETES = Scheduler(
    name="kubernetes",
    title="Kubernetes",
    command="kubectl",
    template="mpijob.yaml.j2",
    submit=("kubectl", "create", "-f", "-", "-o", "name"),
    job_id=r"([a-z0-9.-]+)\s*$",
    questions=(
        StateQuery(("kubectl", "get", "mpijobs,pods", "-l", f"{LABEL}={{id}}", "-o", "json"), read_job),
        StateQuery(("kubectl", "get", "mpijob", "{id}", "-o", "json"), read_job),  # of the user's own template
    ),
    status=("kubectl", "get", "mpijobs,pods", "-l", f"{LABEL}={{id}}"),
    cancel=("kubectl", "delete", "mpijob", "{id}"),
    gone="NotFound|not found",
    time=str,
    stream=("kubectl", "logs", "-f", "--tail=-1", "-l", LAUNCHER),
    gpus=(("kubectl", "get", "nodes", "-o", r"jsonpath={.items[*].status.allocatable.nvidia\.com/gpu}"), r"[1-9]"),
    problems=_problems,
    refuses={
        "account": "Kubernetes has none; the namespace is kubectl's own",
        "exclusive": "a pod takes what its limits name; give --cores, --mem and --gpus as many as a host has",
        "modules": "an image has what it needs; give --image",
        "container": "the job's pods are containers; give --image",
        "log": "the launcher's log is in the pod: kubectl logs",
        "warn": "Kubernetes sends no signal before the limit; launch's --timeout ends the job by itself",
        "requeue": "the operator starts no job again after lost pods; launch's --restarts does",
        "directives": "a manifest has no directives; give your own --template",
    },
)
